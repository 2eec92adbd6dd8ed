"""The whole way in one call: what the command line and short scripts use instead of spelling the flow out.

``load_model`` finds a user's model, ``quantize`` calibrates it, ``build`` makes the program; each result holds what the
next needs and what a report wants to say.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx import GraphModule
from torch.utils import _pytree as pytree
from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e

from ethorch.backend.emit import NotWhole, lower_whole, program_of
from ethorch.backend.emit.build import Build
from ethorch.formats.pte_writer import write
from ethorch.lower.fx.export import check_module, check_outputs, described, exported
from ethorch.lower.fx.outputs import with_serializable_outputs
from ethorch.lower.fx.states import StateBuffer, with_codes
from ethorch.models.layouts import NhwcIo, nhwc_inputs
from ethorch.models.load import Inputs, UserModel
from ethorch.models.open_sizes import is_dynamic, unlimited
from ethorch.models.user_code import explained
from ethorch.quantization.config import QuantizationConfig, get_symmetric_quantization_config
from ethorch.quantization.constrained_weights import fold
from ethorch.quantization.prepare import prepare
from ethorch.quantization.quantizer import EthosUQuantizer, TOSAQuantizer
from ethorch.quantization.shared_buffers import kept, observe_together, only_read, state_buffers, with_own_buffers, write_back
from ethorch.support.errors import EthorchError, Unsupported, VelaError
from ethorch.support.garbage import collected_later
from ethorch.support.progress import stage
from ethorch.targets.compile_spec import ArmCompileSpec, EthosUCompileSpec
from ethorch.tosa.layout import nhwc_axis
from ethorch.vela import artifacts

logger = logging.getLogger(__name__)

__all__ = ["Build", "Inputs", "Session", "UserModel", "build", "quantize", "quantize_together", "with_nhwc_io"]

#: Calls in order: (name of the model, its inputs).
Session = Sequence[tuple[str, Inputs]]


def with_nhwc_io(model: UserModel) -> UserModel:
    """The model with inputs and outputs in NHWC (see ``ethorch.models.layouts``).

    Raises:
        EthorchError: it is quantized already: wrap the float model.
    """
    if model.quantized:
        raise EthorchError(
            "the model is quantized already; wrap the float model in ethorch.models.layouts.NhwcIo before torch.export."
        )
    calibration = [nhwc_inputs(inputs) for inputs in model.calibration]
    wrapped = NhwcIo(model.module)
    wrapped.training = False  # not eval(): a module that torch.export made refuses it
    return UserModel(wrapped, nhwc_inputs(model.example_inputs), calibration, dynamic_shapes=_nhwc_dims(model))


def _nhwc_dims(model: UserModel) -> list[dict[int, Any]] | None:
    """The open dims of the model's inputs where they are in NHWC."""
    if model.dynamic_shapes is None:
        return None
    tensors = [leaf for leaf in pytree.tree_leaves(model.example_inputs) if isinstance(leaf, Tensor)]
    dims = zip(tensors, model.dynamic_shapes, strict=True)
    return [{nhwc_axis(axis, x.dim()): size for axis, size in sizes.items()} for x, sizes in dims]


def quantize(
    model: UserModel, spec: ArmCompileSpec, config: QuantizationConfig | None = None, *, quantizer: TOSAQuantizer | None = None
) -> nn.Module:
    """The model with calibrated quantize and dequantize operators. Buffers that it changes are copies of the model's.

    Args:
        model: a model that is quantized already is given back as it is.
        spec: what is compiled for.
        config: of the model as a whole; int8, weights per channel, by default.
        quantizer: with settings of its own, instead of ``spec`` and ``config``.

    Raises:
        EthorchError: a calibration sample has another shape than the example inputs.
        UserCodeError: the model does not run with its inputs, or cannot be exported.
    """
    if model.quantized:
        return model.module
    if quantizer is None:
        quantizer = TOSAQuantizer(spec).set_global(config or get_symmetric_quantization_config(is_per_channel=True))
    for number, inputs in enumerate(model.calibration):
        _check_shapes(f"calibration sample {number}", inputs, model)
    if model.dynamic_shapes:  # what stays on the CPU computes in float
        quantizer.set_node_finder(None, lambda graph: filter(is_dynamic, graph.graph.nodes))
    prepared, buffers = _prepared(model, quantizer)
    samples = model.calibration or [model.example_inputs]
    with stage("calibrate", len(samples)) as step, torch.no_grad(), kept(buffers):
        for number, inputs in enumerate(samples):
            _observe(prepared, inputs, model, f"calibration sample {number}")
            step()
    with stage("convert"):
        converted: GraphModule = convert_pt2e(prepared)
        with_own_buffers({"": converted})
    return converted


def quantize_together(
    models: Mapping[str, UserModel],
    sessions: Sequence[Session],
    quantizers: Mapping[str, EthosUQuantizer],
    *,
    alternatives: bool = False,
) -> dict[str, GraphModule]:
    """Models that share buffers, each with calibrated quantize and dequantize operators.

    A buffer that they share has one scale in all, and so has what an operator of a shared submodule computes. The results share a
    copy of it: running them leaves the models' buffers alone.

    Args:
        models: by name. What they share are the same tensors.
        sessions: calls in order, as (name, inputs); each session begins with the buffers' initial contents. Empty: each model's
            example inputs, one after the other.
        quantizers: by name.
        alternatives: the models are one at several shapes, and have one set of quantization parameters.

    Raises:
        EthorchError: a session calls a model that there is not, or one with other shapes than its example inputs.
        UserCodeError: as of ``quantize``.
    """
    for number, session in enumerate(sessions):
        for place, (name, inputs) in enumerate(session):
            if name not in models:
                known = ", ".join(map(repr, models))
                raise EthorchError(f"call {place} of calibration session {number} is of {name!r}; there are {known}.")
            _check_shapes(f"call {place} of calibration session {number}, of {name!r},", inputs, models[name])
    called = {name for session in sessions for name, _ in session}
    if sessions and not alternatives and (never := [name for name in models if name not in called]):
        raise EthorchError(f"no calibration session calls {', '.join(map(repr, never))}: its activations would have no ranges.")
    prepared, buffers = {}, list[Tensor]()
    for name, model in models.items():
        prepared[name], own = _prepared(model, quantizers[name])
        buffers += own
    for name, read in only_read(prepared).items():
        prepared[name], _ = _prepared(models[name], quantizers[name], read)
    observe_together(list(prepared.values()), [model.module for model in models.values()], alternatives)
    sessions = sessions or [[(name, model.example_inputs) for name, model in models.items()]]
    with stage("calibrate", sum(len(session) for session in sessions)) as step, torch.no_grad():
        for number, session in enumerate(sessions):
            with kept(buffers):
                for place, (name, inputs) in enumerate(session):
                    _observe(prepared[name], inputs, models[name], f"call {place} of calibration session {number}, of {name!r}")
                    step()
    with stage("convert"), collected_later():
        converted: dict[str, GraphModule] = {name: convert_pt2e(module) for name, module in prepared.items()}
        with_own_buffers(converted)
    return converted


def _observe(prepared: nn.Module, inputs: Inputs, model: UserModel, what: str) -> None:
    """Run the model with observers; where it fails because the user's model does, the error is of that."""
    try:
        prepared(*inputs)
    except EthorchError:
        raise
    except Exception:
        with explained(f"the model does not run with {what}, {described(inputs)}"):
            model.module(*inputs)
        raise


def _check_shapes(what: str, inputs: Inputs, model: UserModel) -> None:
    if (given := described(inputs, model.dynamic_shapes)) != (wanted := described(model.example_inputs, model.dynamic_shapes)):
        raise EthorchError(f"{what} is {given}; the example inputs, which fix the shapes, are {wanted}.")


def _prepared(model: UserModel, quantizer: TOSAQuantizer, changed: Sequence[str] = ()) -> tuple[GraphModule, list[Tensor]]:
    """The model with observers, and its own buffers, whose memory is the user's module's.

    Args:
        changed: buffers that it reads and somebody else writes: no constants.
    """
    with stage("export"), collected_later():
        check_module(model.module, model.example_inputs)
        program = exported(model.module, model.example_inputs, model.dynamic_shapes)
        check_outputs(program)
        graph = fold(program.module(check_guards=False))
        write_back(graph, changed)
    names = {name for name, _ in graph.named_buffers()}
    with stage("prepare"), collected_later():
        prepared = prepare(graph, quantizer)
    names |= {name for name, _ in state_buffers(prepared)}  # a parameter that it writes is a buffer now
    return prepared, [buffer for name, buffer in prepared.named_buffers() if name in names]


def build(
    quantized: nn.Module,
    example_inputs: Inputs,
    spec: EthosUCompileSpec,
    *,
    etrecord: bool = False,
    shared: bool = False,
    wide: Collection[str] = (),
    dynamic_shapes: Sequence[dict[int, Any]] | None = None,
) -> Build:
    """Lower and serialize a quantized model for the spec's target. Vela compiles each delegate once.

    A model that is one delegate as a whole takes ``ethorch.backend.emit``'s way, in about the time that Vela takes. Of one with
    operators on the CPU, ExecuTorch is shown the CPU's part (``ethorch.backend.reduced``). What neither can take (control flow,
    channels last, what only Vela declines) ExecuTorch exports anew and partitions. The payloads are the same.
    Buffers that the model changes hold codes where what is written to them is quantized (``ethorch.lower.fx.states``).

    Args:
        etrecord: make ExecuTorch's ETRecord too, which holds the graphs that only ExecuTorch's own way makes.
        shared: buffers that are kept from call to call lie in a memory of their own, with their names, to be shared with other
            methods (``formats.pte_merge``).
        wide: counters that stay of int64.
        dynamic_shapes: the open dims of each input tensor; such a program goes ExecuTorch's way.

    Raises:
        EthorchError: ExecuTorch cannot make a program of it.
    """
    for number, axis in unlimited(dynamic_shapes or ()):
        logger.warning(
            "axis %d of input %d has no greatest size: ExecuTorch reserves memory for that of the example inputs, and the program "
            "accepts at most that. Export with Dim(..., max=N), or give shapes=[...]. [dynamic.no_maximum]",
            axis,
            number,
        )
    states: tuple[StateBuffer, ...] = ()
    with stage("compile"), collected_later():
        if isinstance(quantized, GraphModule):
            quantized, states = with_codes(with_serializable_outputs(quantized), wide)
        return replace(_built(quantized, example_inputs, spec, etrecord, shared, dynamic_shapes), states=states)


def _built(
    quantized: nn.Module,
    example_inputs: Inputs,
    spec: EthosUCompileSpec,
    etrecord: bool,
    shared: bool,
    dynamic_shapes: Sequence[dict[int, Any]] | None,
) -> Build:
    """As ``build``, of a graph whose buffers hold codes already."""
    if isinstance(quantized, GraphModule) and not etrecord and not dynamic_shapes:
        try:
            return _built_directly(quantized, spec)
        except (NotWhole, Unsupported, VelaError) as error:  # what is declined, the partitioner leaves to the CPU
            logger.debug("not directly: %s", error)
        from ethorch.backend.through_executorch import built_reduced  # 1.5 seconds of ExecuTorch

        try:
            return built_reduced(quantized, example_inputs, spec, shared=shared)
        except (NotWhole, Unsupported, VelaError) as error:
            logger.debug("not reduced: %s", error)
    from ethorch.backend.through_executorch import built_by_executorch  # 1.5 seconds, if not imported above

    return built_by_executorch(quantized, example_inputs, spec, etrecord=etrecord, shared=shared, dynamic_shapes=dynamic_shapes)


def _built_directly(quantized: GraphModule, spec: EthosUCompileSpec) -> Build:
    """As ``build``.

    Raises:
        NotWhole, VelaError: as of ``lower_whole``.
    """
    whole = lower_whole(quantized, spec)
    logger.info("%s", whole.partition.summary())
    if spec.path_for_intermediates:
        lowered = whole.lowered
        artifacts.write(Path(spec.path_for_intermediates), lowered.graph, lowered.tosa, lowered.payload, lowered.sources)
    return Build(write(program_of(whole, spec)), whole.partition, (whole.lowered,), spec)
