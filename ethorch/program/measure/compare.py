"""``Program.compare``: what a program computes, beside what the float and the quantized model compute."""

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
from ethorch.program.measure.ladder import Recorder, compare_delegates, compare_output, recorded_inputs, run_recorded
from ethorch.program.measure.layers import CompareLayers
from ethorch.program.measure.nodes_on_npu import nodes_on_npu
from ethorch.program.record import Record
from ethorch.quantization.prepare import prepare
from ethorch.quantization.schemes import quantizer_for
from ethorch.quantization.shared_buffers import start_from_initial_state
from ethorch.support.errors import EthorchError, Reason
from ethorch.support.progress import stage

_NOT_IN_FILE = (
    "the float model is missing: a .pte does not hold it. Give it, compare(x, model=model), and the outputs are compared; to see "
    "each operator, compare the program that ethorch.compile returns."
)
_QUANTIZED = "the float model is missing: the program was compiled of a quantized one. Give it: compare(x, model=model)."


def compared(record: Record, samples: Sequence[Inputs], model: nn.Module | None) -> Comparison:
    """The program on each of ``samples``, which are the model's inputs.

    Raises:
        EthorchError: the float model is not known.
    """
    user = record.model
    reference = model if model is not None else None if user is None or user.quantized else user.module
    if reference is None:
        raise EthorchError(_NOT_IN_FILE if user is None else _QUANTIZED)
    with torch.no_grad(), in_eval_mode(reference):
        return _compared(record, samples, reference)


def _compared(record: Record, samples: Sequence[Inputs], reference: nn.Module) -> Comparison:
    floats, fakes, found = _Outputs(), _Outputs(), _Outputs()
    delegates = () if record.build is None else record.build.delegates
    layers, missing = _layers(record, reference)
    runs: list[list[Recorder]] = []
    with stage("compare", len(samples)) as step:
        for sample in samples:
            results, recorders = run_recorded(record.pte, record.method, record.as_taken(sample))
            runs.append(recorders)
            found.append([_real(record, number, result) for number, result in enumerate(results)])
            floats.append(pytree.tree_leaves(_run(reference, sample)))
            fake = None
            if layers is not None:
                fake = layers.add(pytree.tree_leaves(sample), recorded_inputs(delegates, recorders))
            if fake is None and record.quantized is not None:
                fake = pytree.tree_leaves(_run(record.quantized, sample))
            if fake is not None:
                fakes.append(fake)
            step()
    rungs = zip(floats.columns, fakes.columns or repeat(None), found.columns, strict=False)
    outputs = tuple(compare_output(*rung) for rung in rungs)
    exact = tuple(compare_delegates(delegates, runs)) if delegates else ()
    return Comparison(outputs, exact, () if layers is None else layers.rows(), len(samples), missing)


class _Outputs(list[list[Any]]):
    """What one rung returns for each sample."""

    @property
    def columns(self) -> list[list[Any]]:
        """The same by output."""
        return [list(column) for column in zip(*self, strict=True)]


def _run(module: nn.Module, sample: Inputs) -> Any:
    """What the model returns, its buffers put back behind."""
    with start_from_initial_state(module):
        return pytree.tree_map(lambda leaf: leaf.clone() if isinstance(leaf, Tensor) else leaf, module(*sample))


def _real(record: Record, number: int, result: Any) -> Any:
    """An output as the model gives it: codes as the floats that they stand for."""
    codes = record.outputs[number].codes
    return codes.dequantize(result) if codes is not None and isinstance(result, Tensor) else result


def _layers(record: Record, reference: nn.Module) -> tuple[CompareLayers | None, str]:
    """What compares the operators, or None; and what is missing, if something is."""
    quantized, build, settings = record.quantized, record.build, record.settings
    if build is None or settings is None or not isinstance(quantized, GraphModule):
        return None, "operators: not compared, since a .pte does not hold the quantized model; ethorch.compile keeps it"
    delegated = {name for names in build.partition.delegated.values() for name in names}
    on_npu = nodes_on_npu(quantized, settings.spec, delegated)
    if isinstance(on_npu, Reason):
        return None, f"operators: not compared, since {on_npu.text}"
    prepared = _prepared(record, reference)
    layers = CompareLayers(quantized, prepared, on_npu)
    if layers.prepared is None:
        return layers, "operators: without float figures, since the float model's operators are not those of the quantized one"
    return layers, ""


def _prepared(record: Record, reference: nn.Module) -> GraphModule | None:
    """The float model's operators as the quantized model has them."""
    assert record.settings is not None and record.model is not None
    settings = record.settings.with_(scheme=record.config)
    with stage("prepare the float model"):
        inputs = record.model.example_inputs
        program = last_export(reference, inputs) or export_module(reference, inputs)
        return prepare(program.module(check_guards=False), quantizer_for(settings))
