"""Runs of a program and of its float model on the model's samples."""

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
from ethorch.support.metrics import sqnr_db

_MEASURED_SAMPLES = 8


def accuracy_of_samples(record: Record) -> Accuracy:
    """The SQNR over at most 8 of the model's samples, which follow one another as in calibration."""
    model = _model(record)
    samples = (model.calibration or [model.example_inputs])[:_MEASURED_SAMPLES]
    wanted, found = [], []
    loaded = runtime.load(record.pte, record.method)
    with torch.no_grad(), in_eval_mode(model.module), preserve_buffers(model.module.buffers()):
        for sample in samples:
            wanted.append(_exact(model, sample))
            found.append(_made(record, loaded, sample))
    return Accuracy(sqnr_db(wanted, found), len(samples))


def accuracy_in_sessions(record: Record) -> Accuracy | None:
    """The SQNR of one method's outputs in the first sessions, all methods called in order, in float and in the runtime.

    Sessions end once it was called 8 times; None where none calls it.
    """
    parts = {name: record[name] for name in record.methods}
    models = {name: _model(part) for name, part in parts.items()}
    sessions = record.sessions or [[(name, model.example_inputs) for name, model in models.items()]]
    wanted: list[list[Tensor]] = []
    found: list[list[Any]] = []
    loaded = _Loaded(record, parts)
    with ExitStack() as context:
        context.enter_context(torch.no_grad())
        for model in models.values():
            context.enter_context(in_eval_mode(model.module))
        for session in sessions:
            loaded.reset()
            with preserve_buffers(buffer for model in models.values() for buffer in model.module.buffers()):
                for name, inputs in session:
                    exact = _exact(models[name], inputs)
                    made = _made(parts[name], loaded.methods[name], inputs)
                    if name == record.method:
                        wanted.append(exact)
                        found.append(made)
            if len(wanted) >= _MEASURED_SAMPLES:
                break
    return Accuracy(sqnr_db(wanted, found), len(wanted)) if wanted else None


class _Loaded:
    """Methods of one file in the runtime, apart from what the user's Program keeps."""

    def __init__(self, record: Record, names: Iterable[str]):
        self._sessions: list[runtime.HostProgram] = []
        self.methods: dict[str, runtime.HostProgram] = {}
        for name in names:
            if name not in self.methods:
                self._sessions.append(runtime.load(record.pte, name))
                self.methods.update({other: self._sessions[-1][other] for other in self._sessions[-1].methods})

    def reset(self) -> None:
        """Put what they keep back to its initial contents."""
        for loaded in self._sessions:
            loaded.reset()


def _exact(model: UserModel, inputs: tuple[Any, ...]) -> list[Tensor]:
    """The float model's outputs; copies, since one may be a buffer that the next call changes."""
    return [leaf.clone() if isinstance(leaf, Tensor) else leaf for leaf in pytree.tree_leaves(model.module(*inputs))]


def _made(record: Record, loaded: runtime.HostProgram, inputs: tuple[Any, ...]) -> list[Any]:
    """The program's outputs, as floats."""
    return record.floats(loaded(*pytree.tree_leaves(record.as_taken(inputs))))


def _model(record: Record) -> UserModel:
    assert record.model is not None
    return record.model
