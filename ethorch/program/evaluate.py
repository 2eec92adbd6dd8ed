from __future__ import annotations

import functools
import itertools
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import joblib
import torch
from torch import nn
from torch.utils import _pytree as pytree

from ethorch import runtime
from ethorch.models.load import in_eval_mode
from ethorch.models.samples import Keywords, Sample, Samples, read_samples
from ethorch.program.measure.meters import meter
from ethorch.program.program import Program, host_of, load, record_of, select
from ethorch.quantization.shared_buffers import start_from_initial_state
from ethorch.runtime.many import keeps_state
from ethorch.support import tables
from ethorch.support.errors import EthorchError, SpecError
from ethorch.support.keywords import suggest_keywords
from ethorch.support.metrics import OutputRatios
from ethorch.support.progress import stage
from ethorch.support.progress_display import display_progress
from ethorch.support.quiet import quiet
from ethorch.support.rendering import as_html, as_text
from ethorch.support.text_files import finite
from ethorch.support.wording import count_noun
from ethorch.support.worker import Task

if TYPE_CHECKING:
    from rich.console import RenderableType

NPU, FLOAT, QUANTIZED = "npu", "float", "quantized"
_BATCH = 32
_NO_FIGURES = (
    "There are no figures, because the samples have no labels and the program does not contain the float model. Use labeled "
    "samples (a folder with one subfolder per class), or pass the model."
)


@dataclass(frozen=True)
class SampleResult:
    """The name and label of a sample, and its flattened, dequantized outputs for ``npu``, ``float`` and ``quantized``."""

    name: str
    label: Any
    outputs: Mapping[str, Sequence[Any]]


@dataclass(frozen=True)
class Evaluation:
    """The result of ``ethorch.evaluate``.

    Attributes:
        seconds: Total run time of all models on the host.
        results: Figures of ``npu``, ``float`` and ``quantized``, by name. ``sqnr_db`` is the lowest SQNR among all outputs.
        confusion: For classification, a confusion matrix for each key of ``results``. Its rows are labels.
        interrupted: Whether the evaluation was interrupted. The figures cover only finished samples.
        sample_results: One result per sample, or empty if ``keep`` is False.
    """

    samples: int
    seconds: float
    results: Mapping[str, Mapping[str, float]]
    confusion: Mapping[str, Sequence[Sequence[int]]]
    interrupted: bool = False
    sample_results: tuple[SampleResult, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return the attributes except ``sample_results`` as JSON-compatible data."""
        return {name: finite(data) for name, data in vars(self).items() if name != "sample_results"}

    def rich(self) -> RenderableType:
        """Return a Rich table with a row for each of ``npu``, ``float`` and ``quantized``, and a column for each figure."""
        from rich.console import Group

        names = list(dict.fromkeys(name for figures in self.results.values() for name in figures))
        table = tables.table()
        table.add_column("")
        for name in names:
            table.add_column(name, justify="right")
        for column, figures in self.results.items():
            table.add_row(column, *(_figure(name, figures.get(name)) for name in names))
        rate = self.samples / self.seconds if self.seconds else 0.0
        last = f"{count_noun(self.samples, 'sample')} in {self.seconds:.1f} s, {rate:,.1f} per second on the host"
        return Group(table if names else _NO_FIGURES, "", last + (" (interrupted)." if self.interrupted else "."))

    def __str__(self) -> str:
        return as_text(self.rich())

    def _repr_html_(self) -> str:
        return as_html(self.rich())


def _figure(name: str, value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:.2%}" if name.startswith(("top", "agreement")) else f"{value:,.4g}"


@suggest_keywords
def evaluate(
    program: Program | str | os.PathLike[str],
    data: Any,
    *,
    metric: Any = None,
    postprocess: Callable[[Any], Any] | None = None,
    against: Sequence[str] = (FLOAT, QUANTIZED),
    batch: int = _BATCH,
    jobs: int | None = None,
    keep: bool = False,
    progress: bool | None = None,
) -> Evaluation:
    """Evaluate a program on a data set with the simulated NPU, and compute metrics.

    The float and fake-quantized models, if available, are run as well. With the float model, the figures include
    ``sqnr_db`` and ``agreement`` (share of samples whose first output has the float model's argmax). If the program has state, the
    samples are run as one sequence that starts with the initial state.

    Args:
        program: Program, or the path of a ``.pte`` or saved folder.
        data: Samples with labels, in any form that ``ethorch.samples`` accepts, e.g. a Dataset, a DataLoader or a folder.
        metric: A torchmetrics object, or a function (list of outputs, list of labels) that returns a number or a dict.
            ``"map"`` computes the mean average precision of detections. Default, if there are labels: top-1
            accuracy, and top-5 accuracy for more than 5 classes.
        postprocess: Function that converts a model's outputs to the input of the metric. For ``"map"``, it must return a dict of
            ``boxes`` (float[N, 4]: left, top, right, bottom), ``scores`` (float[N]) and ``labels`` (int[N]). The label of each
            sample is a dict of ``boxes`` and ``labels``.
        against: Models to compare the NPU with: ``float`` and ``quantized``. Models that the program does not contain are omitted.
        batch: Number of samples per call. It affects memory use but not results.
        jobs: Number of joblib processes, which run with the backend of ``joblib.parallel_config``. Default: threads.
        keep: Whether to return the outputs of every sample.
        progress: See ``ethorch.compile``.

    Raises:
        SpecError: ``against`` or ``metric`` is invalid, or ``jobs`` is set for a program with state or several shapes.
        EthorchError: The data set is empty, a sample has wrong inputs, or a package for ``"map"`` is not installed.
    """
    if not isinstance(program, Program):
        program = load(program)
    columns = _columns(program, against)
    if jobs is not None and record_of(program).selection is not None:
        raise SpecError("jobs does not support programs with several shapes. Remove jobs, or evaluate program['NAME'].")
    if jobs is not None and keeps_state(record_of(program).description):
        raise SpecError(
            f"jobs={jobs} does not support programs with state, because calls that share state must run in order. Remove jobs."
        )
    model = record_of(program).model
    example, *others = record_of(program).examples
    keywords = Keywords() if model is None else model.keywords
    source = read_samples(data, example, keywords=keywords, others=others, open_dims=record_of(program).open_dims)
    meters = {column: meter(metric) for column in columns}
    results_kept: list[SampleResult] = []
    closeness = _Closeness()
    count, interrupted, started = 0, False, time.perf_counter()
    total = _length(data)
    beside = {column: _beside(program, column) for column in columns[1:]}
    with quiet(), display_progress(progress), stage("evaluate", total) as step, torch.no_grad(), ExitStack() as states:
        for module in beside.values():
            states.enter_context(start_from_initial_state(module))
        try:
            for part, part_outputs in _on_npu(program, source, batch, jobs):
                for sample, outputs in zip(part, part_outputs, strict=True):
                    answers = {NPU: record_of(program).floats(outputs)}
                    for column, module in beside.items():
                        with in_eval_mode(module):
                            answers[column] = [_copy_tensor(leaf) for leaf in _answer(program, column, module, sample)]
                    for column, flat in answers.items():
                        meters[column].add(postprocess(flat) if postprocess else flat, sample.label)
                    closeness.add(answers)
                    if keep:
                        results_kept.append(SampleResult(sample.name, sample.label, answers))
                    count += 1
                    step()
        except KeyboardInterrupt:
            interrupted = True
    if not count and not interrupted:
        raise EthorchError("expected at least one sample in the data set, got none.")
    results = {column: {**meters[column].figures(), **closeness.figures(column)} for column in columns}
    confusion = {column: matrix for column in columns if (matrix := meters[column].confusion())}
    return Evaluation(count, time.perf_counter() - started, results, confusion, interrupted, tuple(results_kept))


def _columns(program: Program, against: Sequence[str]) -> list[str]:
    for name in against:
        if name not in (FLOAT, QUANTIZED):
            raise SpecError(f"against: expected {FLOAT!r} or {QUANTIZED!r}, got {name!r}.")
    columns = {QUANTIZED} if record_of(program).quantized is not None else set()
    model = record_of(program).model
    if model is not None and not model.quantized:
        columns.add(FLOAT)
    return [NPU, *(name for name in (FLOAT, QUANTIZED) if name in against and name in columns)]


def _length(dataset: Any) -> int | None:
    limit = None
    if isinstance(dataset, Samples):
        dataset, limit = dataset.source, dataset.limit
    if isinstance(dataset, (str, os.PathLike, Mapping)) or not hasattr(dataset, "__len__"):
        return limit
    count = len(dataset)
    batch_size = getattr(dataset, "batch_size", None)
    if batch_size is not None and hasattr(dataset, "dataset") and hasattr(dataset.dataset, "__len__"):
        count = len(dataset.dataset)
    return count if limit is None else min(count, limit)


def _beside(program: Program, column: str) -> nn.Module:
    if column == QUANTIZED:
        quantized = record_of(program).quantized
        assert quantized is not None
        return quantized
    model = record_of(program).model
    assert model is not None
    return model.module


def _answer(program: Program, column: str, module: nn.Module, sample: Sample) -> list[Any]:
    if column == FLOAT or record_of(program).selection is None:
        return list(pytree.tree_leaves(module(*sample.inputs)))
    flat = pytree.tree_leaves(sample.inputs)
    part, filled = select(program, flat)
    quantized = record_of(part).quantized
    assert quantized is not None
    return record_of(program).crop(pytree.tree_leaves(quantized(*filled)), flat)


def _copy_tensor(leaf: Any) -> Any:
    # Copy an output tensor, because the next call can overwrite an output that is a mutable buffer.
    return leaf.clone() if isinstance(leaf, torch.Tensor) else leaf


def _on_npu(
    program: Program, source: Iterable[Sample], batch: int, workers: int | None
) -> Iterator[tuple[list[Sample], list[list[Any]]]]:
    parts = _parts(iter(source), max(batch, 1))
    if record_of(program).selection is not None:
        for part in parts:
            yield part, _of_methods(program, part)
        return
    if workers is None:
        loaded = runtime.load(program.pte, record_of(program).method)
        for part in parts:
            yield part, loaded.run_many([_flat(program, sample) for sample in part])
        return
    sent: list[list[Sample]] = []
    task = Task.of(_run)

    def tasks() -> Iterator[Any]:
        for part in parts:
            sent.append(part)
            yield joblib.delayed(task)(program.pte, record_of(program).method, [_flat(program, sample) for sample in part])

    for outputs_of_part in joblib.Parallel(n_jobs=workers, return_as="generator")(tasks()):
        yield sent.pop(0), outputs_of_part


def _of_methods(program: Program, samples: Sequence[Sample]) -> list[list[Any]]:
    flat = [pytree.tree_leaves(sample.inputs) for sample in samples]
    groups: dict[str, list[tuple[int, list[Any]]]] = {}
    for number, inputs in enumerate(flat):
        part, filled = select(program, inputs)
        groups.setdefault(record_of(part).method, []).append((number, filled))
    outputs: dict[int, list[Any]] = {}
    for name, group in groups.items():
        part = program[name]
        runs = host_of(part).run_many([list(pytree.tree_leaves(record_of(part).as_taken(tuple(filled)))) for _, filled in group])
        outputs |= {number: record_of(program).crop(run, flat[number]) for (number, _), run in zip(group, runs, strict=True)}
    return [outputs[number] for number in range(len(samples))]


def _parts(source: Iterator[Sample], size: int) -> Iterator[list[Sample]]:
    while part := list(itertools.islice(source, size)):
        yield part


def _flat(program: Program, sample: Sample) -> list[Any]:
    return list(pytree.tree_leaves(record_of(program).as_taken(sample.inputs)))


def _run(data: bytes, method: str, inputs: Sequence[Sequence[Any]]) -> list[list[Any]]:
    return _load(data, method).run_many(inputs, threads=1)


@functools.lru_cache(maxsize=2)
def _load(data: bytes, method: str) -> runtime.HostProgram:
    return runtime.load(data, method)


class _Closeness:
    """An accumulator of SQNR and agreement, which compare the NPU and the quantized model with the float model."""

    def __init__(self) -> None:
        self._ratios: dict[str, OutputRatios] = {}
        self._same: dict[str, int] = {}
        self._count = 0

    def add(self, answers: Mapping[str, Sequence[Any]]) -> None:
        if FLOAT not in answers:
            return
        self._count += 1
        reference = answers[FLOAT]
        for column, outputs in answers.items():
            if column == FLOAT:
                continue
            self._ratios.setdefault(column, OutputRatios()).add(reference, outputs)
            if isinstance(reference[0], torch.Tensor) and reference[0].numel():
                self._same[column] = self._same.get(column, 0) + int(reference[0].argmax() == outputs[0].argmax())

    def figures(self, column: str) -> dict[str, float]:
        if column not in self._ratios or not self._count:
            return {}
        return {"sqnr_db": self._ratios[column].db, "agreement": self._same.get(column, 0) / self._count}
