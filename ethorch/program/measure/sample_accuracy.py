"""Measure the SQNR of a program relative to its float model on calibration samples."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from ethorch import runtime
from ethorch.models.load import UserModel, in_eval_mode
from ethorch.program.facts import Accuracy
from ethorch.program.record import Record
from ethorch.quantization.shared_buffers import preserve_buffers
from ethorch.support.metrics import OutputRatios

_MEASURED_SAMPLES = 8


def accuracy_of_samples(record: Record) -> Accuracy:
    """Return the SQNR on at most 8 calibration samples, run in order without resetting buffers."""
    model = _model(record)
    samples = (model.calibration or [model.example_inputs])[:_MEASURED_SAMPLES]
    ratios = OutputRatios()
    loaded = runtime.load(record.pte, record.method)
    with torch.no_grad(), in_eval_mode(model.module), preserve_buffers(model.module.buffers()):
        for sample in samples:
            ratios.add(_run_model(model, sample), _run_program(record, loaded, sample))
    return Accuracy(ratios.db, len(samples))


def accuracy_in_sessions(record: Record) -> Accuracy | None:
    """Return the SQNR of one method. Calibration sessions run in order until they have called the method at least 8 times.

    Return None if no session calls the method.
    """
    parts = {name: record[name] for name in record.methods}
    models = {name: _model(part) for name, part in parts.items()}
    sessions = record.sessions or [[(name, model.example_inputs) for name, model in models.items()]]
    ratios, count = OutputRatios(), 0
    loaded = _LoadedMethods(record, parts)
    with ExitStack() as context:
        context.enter_context(torch.no_grad())
        for model in models.values():
            context.enter_context(in_eval_mode(model.module))
        for session in sessions:
            loaded.reset()
            with preserve_buffers(buffer for model in models.values() for buffer in model.module.buffers()):
                for name, inputs in session:
                    reference = _run_model(models[name], inputs)
                    outputs = _run_program(parts[name], loaded.methods[name], inputs)
                    if name == record.method:
                        ratios.add(reference, outputs)
                        count += 1
            if count >= _MEASURED_SAMPLES:
                break
    return Accuracy(ratios.db, count) if count else None


class _LoadedMethods:
    def __init__(self, record: Record, names: Iterable[str]):
        self._sessions: list[runtime.HostProgram] = []
        self.methods: dict[str, runtime.HostProgram] = {}
        for name in names:
            if name not in self.methods:
                session = runtime.load(record.pte, name)
                self._sessions.append(session)
                self.methods.update({method: session[method] for method in session.methods})

    def reset(self) -> None:
        for loaded in self._sessions:
            loaded.reset()


def _run_model(model: UserModel, inputs: tuple[Any, ...]) -> list[Tensor]:
    return [leaf.clone() if isinstance(leaf, Tensor) else leaf for leaf in pytree.tree_leaves(model.module(*inputs))]


def _run_program(record: Record, loaded: runtime.HostProgram, inputs: tuple[Any, ...]) -> list[Any]:
    return record.floats(loaded(*pytree.tree_leaves(record.as_taken(inputs))))


def _model(record: Record) -> UserModel:
    assert record.model is not None
    return record.model
