"""Run a model on its samples: from a user's model to the converted graph, of one method or of several that share buffers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.fx import GraphModule
from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e

from ethorch.lower.fx.export import check_module, check_outputs, describe_inputs, export_module
from ethorch.models.load import Inputs, UserModel
from ethorch.models.open_sizes import is_dynamic
from ethorch.models.user_code import explained
from ethorch.quantization.config import QuantizationConfig, get_symmetric_quantization_config
from ethorch.quantization.constrained_weights import fold
from ethorch.quantization.passes.state_buffers import only_read, state_buffers, write_back
from ethorch.quantization.prepare import prepare
from ethorch.quantization.quantizer import TOSAQuantizer
from ethorch.quantization.shared_buffers import kept, observe_together, with_own_buffers
from ethorch.support.errors import EthorchError
from ethorch.support.garbage import collected_later
from ethorch.support.progress import stage
from ethorch.targets.compile_spec import ArmCompileSpec

#: Calls in order: (name of the model, its inputs).
Session = Sequence[tuple[str, Inputs]]


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
    return quantize_methods({"forward": model}, [], {"forward": quantizer})["forward"]


def quantize_methods(
    models: Mapping[str, UserModel],
    sessions: Sequence[Session],
    quantizers: Mapping[str, TOSAQuantizer],
    *,
    alternatives: bool = False,
) -> dict[str, GraphModule]:
    """Models that share buffers, each with calibrated quantize and dequantize operators. One model is the case of a single name.

    A buffer that they share has one scale in all, and so has what an operator of a shared submodule computes. The results share a
    copy of it: running them leaves the models' buffers alone.

    Args:
        models: by name. What they share are the same tensors.
        sessions: calls in order, as (name, inputs); each session begins with the buffers' initial contents. Empty: of one model,
            its calibration samples, one after the other; of several, each one's example inputs.
        quantizers: by name.
        alternatives: the models are one at several shapes, and have one set of quantization parameters.

    Raises:
        EthorchError: a session calls a model that there is not, or one with other shapes than its example inputs.
        UserCodeError: as of ``quantize``.
    """
    for number, session in enumerate(sessions):
        for place, (name, inputs) in enumerate(session):
            what = _call(models, number, place, name)
            if name not in models:
                known = ", ".join(map(repr, models))
                raise EthorchError(f"call {place} of calibration session {number} is of {name!r}; there are {known}.")
            _check_shapes(what, inputs, models[name])
    if len(models) == 1 and not sessions:
        (only,) = models
        for place, inputs in enumerate(models[only].calibration):
            _check_shapes(_call(models, 0, place, only), inputs, models[only])
        sessions = [[(only, inputs) for inputs in models[only].calibration]] if models[only].calibration else []
    called = {name for session in sessions for name, _ in session}
    if sessions and not alternatives and (never := [name for name in models if name not in called]):
        raise EthorchError(f"no calibration session calls {', '.join(map(repr, never))}: its activations would have no ranges.")
    for name, model in models.items():
        if model.dynamic_shapes:  # what stays on the CPU computes in float
            quantizers[name].set_node_finder(None, lambda graph: filter(is_dynamic, graph.graph.nodes))
    prepared, buffers = {}, list[Tensor]()
    for name, model in models.items():
        prepared[name], own = _prepared(model, quantizers[name])
        buffers += own
    for name, read in only_read(prepared).items():
        prepared[name], _ = _prepared(models[name], quantizers[name], read)
    if len(models) > 1:
        observe_together(list(prepared.values()), [model.module for model in models.values()], alternatives)
    sessions = sessions or [[(name, model.example_inputs) for name, model in models.items()]]
    with stage("calibrate", sum(len(session) for session in sessions)) as step, torch.no_grad():
        for number, session in enumerate(sessions):
            with kept(buffers):
                for place, (name, inputs) in enumerate(session):
                    _observe(prepared[name], inputs, models[name], _call(models, number, place, name))
                    step()
    with stage("convert"), collected_later():
        converted: dict[str, GraphModule] = {name: convert_pt2e(module) for name, module in prepared.items()}
        with_own_buffers(converted)
    return converted


def _call(models: Mapping[str, UserModel], session: int, place: int, name: str) -> str:
    """Return how messages name a call."""
    return f"calibration sample {place}" if len(models) == 1 else f"call {place} of calibration session {session}, of {name!r},"


def _observe(prepared: nn.Module, inputs: Inputs, model: UserModel, what: str) -> None:
    """Run the model with observers; where it fails because the user's model does, the error is of that."""
    try:
        prepared(*inputs)
    except EthorchError:
        raise
    except Exception:
        with explained(f"the model does not run with {what}, {describe_inputs(inputs)}"):
            model.module(*inputs)
        raise


def _check_shapes(what: str, inputs: Inputs, model: UserModel) -> None:
    if (given := describe_inputs(inputs, model.dynamic_shapes)) != (
        wanted := describe_inputs(model.example_inputs, model.dynamic_shapes)
    ):
        raise EthorchError(f"{what} is {given}; the example inputs, which fix the shapes, are {wanted}.")


def _prepared(model: UserModel, quantizer: TOSAQuantizer, changed: Sequence[str] = ()) -> tuple[GraphModule, list[Tensor]]:
    """The model with observers, and its own buffers, whose memory is the user's module's.

    Args:
        changed: buffers that it reads and somebody else writes: no constants.
    """
    with stage("export"), collected_later():
        check_module(model.module, model.example_inputs)
        program = export_module(model.module, model.example_inputs, model.dynamic_shapes)
        check_outputs(program)
        graph = fold(program.module(check_guards=False))
        write_back(graph, changed)
    names = {name for name, _ in graph.named_buffers()}
    with stage("prepare"), collected_later():
        prepared = prepare(graph, quantizer)
    names |= {name for name, _ in state_buffers(prepared)}  # a parameter that it writes is a buffer now
    return prepared, [buffer for name, buffer in prepared.named_buffers() if name in names]
