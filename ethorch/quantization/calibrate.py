"""Post-training quantization: export, prepare, calibrate and convert."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.fx import GraphModule

from ethorch.lower.fx.export import check_module, check_outputs, describe_inputs, export_module
from ethorch.models.load import Inputs, UserModel
from ethorch.models.open_sizes import is_dynamic
from ethorch.models.user_code import convert_user_errors
from ethorch.quantization.config import QuantizationConfig, get_symmetric_quantization_config
from ethorch.quantization.constrained_weights import fold
from ethorch.quantization.passes.state_buffers import find_foreign_buffers, state_buffers, write_back
from ethorch.quantization.prepare import convert, prepare
from ethorch.quantization.quantizer import TOSAQuantizer
from ethorch.quantization.shared_buffers import copy_written_buffers, observe_together, preserve_buffers
from ethorch.support.errors import EthorchError, unknown_name
from ethorch.support.garbage import delay_collection
from ethorch.support.progress import stage
from ethorch.targets.compile_spec import ArmCompileSpec

#: Calls (model name, inputs) in order.
Session = Sequence[tuple[str, Inputs]]


def quantize(
    model: UserModel, spec: ArmCompileSpec, config: QuantizationConfig | None = None, *, quantizer: TOSAQuantizer | None = None
) -> nn.Module:
    """Quantize a model by calibration. The quantized model has copies of the buffers that it writes.

    Args:
        model: Float model. A quantized model is returned unchanged.
        config: Config of the whole model. Default: int8 with per-channel weights.
        quantizer: Quantizer to use instead of ``spec`` and ``config``.

    Raises:
        EthorchError: The shapes of a sample differ from the shapes of the example inputs.
        UserCodeError: The model raises an error or cannot be exported.
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
    operators: Mapping[str, QuantizationConfig | None] | None = None,
) -> dict[str, GraphModule]:
    """Quantize one or more models, which may share buffers.

    Shared buffers, and results of operators in shared submodules, have the same scale in all models. The returned models share
    copies of the buffers.

    Args:
        sessions: Sequences of calls (name, inputs). Each session starts with the initial values of the buffers. Default: the
            calibration samples if there is a single model with samples, and to the example inputs otherwise.
        alternatives: Whether the models are the same model with different input shapes, and share all quantization parameters.
        operators: Configs of operators by FX name. Models without the operator ignore its config.

    Raises:
        SpecError: No model contains an operator named in ``operators``.
        EthorchError: A session calls an unknown model, a sample and the example inputs differ in shape, or a model is never called.
        UserCodeError: See :func:`quantize`.
    """
    for number, session in enumerate(sessions):
        for place, (name, inputs) in enumerate(session):
            call = _describe_call(models, number, place, name)
            if name not in models:
                names = ", ".join(map(repr, models))
                raise EthorchError(f"call {place} of calibration session {number}: expected a method ({names}), got {name!r}.")
            _check_shapes(call, inputs, models[name])
    if len(models) == 1 and not sessions:
        (only,) = models
        for place, inputs in enumerate(models[only].calibration):
            _check_shapes(_describe_call(models, 0, place, only), inputs, models[only])
        sessions = [[(only, inputs) for inputs in models[only].calibration]] if models[only].calibration else []
    called = {name for session in sessions for name, _ in session}
    if sessions and not alternatives and (never := [name for name in models if name not in called]):
        raise EthorchError(
            f"no calibration session calls {', '.join(map(repr, never))}. Add a call, so that activation ranges can be calibrated."
        )
    for name, model in models.items():
        if model.dynamic_shapes:  # operators with dynamic shapes run on the CPU in float
            quantizers[name].set_node_finder(None, lambda graph: filter(is_dynamic, graph.graph.nodes))
    prepared, buffers = {}, list[Tensor]()
    for name, model in models.items():
        prepared[name], model_buffers = _prepare(model, quantizers[name], operators=operators)
        buffers += model_buffers
    for name in operators or ():
        if all(name not in quantizer.settings.names for quantizer in quantizers.values()):
            raise unknown_name("module", name, list_modules(models))
    for name, read in find_foreign_buffers(prepared).items():
        prepared[name], _ = _prepare(models[name], quantizers[name], read, operators)
    if len(models) > 1:
        observe_together(list(prepared.values()), [model.module for model in models.values()], alternatives)
    sessions = sessions or [[(name, model.example_inputs) for name, model in models.items()]]
    with stage("calibrate", sum(len(session) for session in sessions)) as step, torch.no_grad():
        for number, session in enumerate(sessions):
            with preserve_buffers(buffers):
                for place, (name, inputs) in enumerate(session):
                    _observe(prepared[name], inputs, models[name], _describe_call(models, number, place, name))
                    step()
    with stage("convert"), delay_collection():
        converted: dict[str, GraphModule] = {name: convert(module) for name, module in prepared.items()}
        copy_written_buffers(converted)
    return converted


def list_modules(models: Mapping[str, UserModel]) -> list[str]:
    """Return the submodule names of all models, or ``["(none)"]``."""
    return sorted({name for model in models.values() for name in model.submodules() if name}) or ["(none)"]


def _describe_call(models: Mapping[str, UserModel], session: int, place: int, name: str) -> str:
    return f"calibration sample {place}" if len(models) == 1 else f"call {place} of calibration session {session} ({name!r})"


def _observe(prepared: nn.Module, inputs: Inputs, model: UserModel, call: str) -> None:
    try:
        prepared(*inputs)
    except EthorchError:
        raise
    except Exception:
        with convert_user_errors(f"the model does not run with {call}, {describe_inputs(inputs)}"):
            model.module(*inputs)
        raise


def _check_shapes(call: str, inputs: Inputs, model: UserModel) -> None:
    actual, expected = (describe_inputs(tensors, model.dynamic_shapes) for tensors in (inputs, model.example_inputs))
    if actual != expected:
        raise EthorchError(f"{call}: expected {expected}, as in the example inputs, got {actual}.")


def _prepare(
    model: UserModel,
    quantizer: TOSAQuantizer,
    changed: Sequence[str] = (),
    operators: Mapping[str, QuantizationConfig | None] | None = None,
) -> tuple[GraphModule, list[Tensor]]:
    with stage("export"), delay_collection():
        check_module(model.module, model.example_inputs)
        program = export_module(model.module, model.example_inputs, model.dynamic_shapes)
        check_outputs(program)
        graph = fold(program.module(check_guards=False))
        write_back(graph, changed)
    for name in {node.name for node in graph.graph.nodes if node.op == "call_function"} & set(operators or ()):
        quantizer.set_node_name(name, (operators or {})[name])
    names = {name for name, _ in graph.named_buffers()}
    with stage("prepare"), delay_collection():
        prepared = prepare(graph, quantizer)
    names |= {name for name, _ in state_buffers(prepared)}  # prepare() turns written parameters into buffers
    return prepared, [buffer for name, buffer in prepared.named_buffers() if name in names]
