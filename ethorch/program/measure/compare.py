from __future__ import annotations

from collections.abc import Sequence
from itertools import repeat
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx import GraphModule
from torch.utils import _pytree as pytree

from ethorch.lower.fx.export import export_module, last_export
from ethorch.models.load import Inputs, in_eval_mode
from ethorch.program.comparison import Comparison
from ethorch.program.measure.ladder import Recorder, collect_inputs, compare_delegates, compare_output, run_recorded
from ethorch.program.measure.layers import CompareLayers
from ethorch.program.measure.nodes_on_npu import nodes_on_npu
from ethorch.program.record import Record
from ethorch.quantization.prepare import prepare
from ethorch.quantization.schemes import quantizer_for
from ethorch.quantization.shared_buffers import start_from_initial_state
from ethorch.support.errors import EthorchError, Reason
from ethorch.support.progress import stage

_NOT_IN_FILE = (
    "compare requires the float model, but a .pte does not contain the float model. Use compare(x, model=model) to compare the "
    "outputs. To compare each operator, use a program returned by ethorch.compile, or `ethorch compare MODEL`."
)
_QUANTIZED = "compare requires the float model, but the program was compiled from a quantized model. Use compare(x, model=model)."


def compare_samples(record: Record, samples: Sequence[Inputs], model: nn.Module | None) -> Comparison:
    """Compare a program with its float and quantized models on samples, by output and by operator.

    Args:
        samples: Model inputs, one tuple for each inference.
        model: Float model. Default: the model of the record.

    Raises:
        EthorchError: The float model is unknown.
    """
    user_model = record.model
    reference = model if model is not None else None if user_model is None or user_model.quantized else user_model.module
    if reference is None:
        raise EthorchError(_NOT_IN_FILE if user_model is None else _QUANTIZED)
    with torch.no_grad(), in_eval_mode(reference):
        return _compare_with(record, samples, reference)


def _compare_with(record: Record, samples: Sequence[Inputs], reference: nn.Module) -> Comparison:
    floats, fakes, program_outputs = _Outputs(), _Outputs(), _Outputs()
    delegates = () if record.build is None else record.build.delegates
    layers, missing = _open_layers(record, reference)
    runs: list[list[Recorder]] = []
    with stage("compare", len(samples)) as step:
        for sample in samples:
            results, recorders = run_recorded(record.pte, record.method, record.as_taken(sample))
            runs.append(recorders)
            program_outputs.append([_dequantize(record, number, result) for number, result in enumerate(results)])
            floats.append(pytree.tree_leaves(_run(reference, sample)))
            fake = None
            if layers is not None:
                fake = layers.add(pytree.tree_leaves(sample), collect_inputs(delegates, recorders))
            if fake is None and record.quantized is not None:
                fake = pytree.tree_leaves(_run(record.quantized, sample))
            if fake is not None:
                fakes.append(fake)
            step()
    rungs = zip(floats.columns, fakes.columns or repeat(None), program_outputs.columns, strict=False)
    outputs = tuple(compare_output(*rung) for rung in rungs)
    exact = tuple(compare_delegates(delegates, runs)) if delegates else ()
    return Comparison(outputs, exact, () if layers is None else layers.rows(), len(samples), missing)


class _Outputs(list[list[Any]]):
    @property
    def columns(self) -> list[list[Any]]:
        return [list(column) for column in zip(*self, strict=True)]


def _run(module: nn.Module, sample: Inputs) -> Any:
    with start_from_initial_state(module):
        return pytree.tree_map(lambda leaf: leaf.clone() if isinstance(leaf, Tensor) else leaf, module(*sample))


def _dequantize(record: Record, number: int, result: Any) -> Any:
    codes = record.outputs[number].codes
    return codes.dequantize(result) if codes is not None and isinstance(result, Tensor) else result


def _open_layers(record: Record, reference: nn.Module) -> tuple[CompareLayers | None, str]:
    quantized, build, settings = record.quantized, record.build, record.settings
    if build is None or settings is None or not isinstance(quantized, GraphModule):
        return None, "operators are not compared, because a .pte does not contain the quantized model. Use ethorch.compile."
    delegated = {name for names in build.partition.delegated.values() for name in names}
    on_npu = nodes_on_npu(quantized, settings.spec, delegated)
    if isinstance(on_npu, Reason):
        return None, f"operators are not compared, because {on_npu.text}"
    prepared = _prepare_reference(record, reference)
    layers = CompareLayers(quantized, prepared, on_npu)
    if layers.prepared is None:
        return layers, "operators have no float figures, because the operators of the float model and the quantized model differ"
    return layers, ""


def _prepare_reference(record: Record, reference: nn.Module) -> GraphModule | None:
    assert record.settings is not None and record.model is not None
    settings = record.settings.with_(scheme=record.config)
    with stage("prepare the float model"):
        inputs = record.model.example_inputs
        program = last_export(reference, inputs) or export_module(reference, inputs)
        return prepare(program.module(check_guards=False), quantizer_for(settings, reference))
