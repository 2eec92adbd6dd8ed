"""How near a program's outputs are to its float model's."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from ethorch.metrics import sqnr_db
from ethorch.model_files import UserModel, in_eval_mode
from ethorch.program.facts import Accuracy

if TYPE_CHECKING:
    from ethorch.program.program import Program  # the 2 seconds of torch, for a type

_MEASURED_SAMPLES = 8


def accuracy_of_samples(program: Program) -> Accuracy:
    """The SQNR over at most 8 of the model's samples."""
    model = _model(program)
    samples = (model.calibration or [model.example_inputs])[:_MEASURED_SAMPLES]
    wanted, found = [], []
    with torch.no_grad(), in_eval_mode(model.module):
        for sample in samples:
            wanted.append(pytree.tree_leaves(model.module(*sample)))
            found.append(_made(program, sample))
    return Accuracy(sqnr_db(wanted, found), len(samples))


def accuracy_in_sessions(program: Program) -> Accuracy | None:
    """The SQNR of one method's outputs in the first sessions, all methods called in order, in float and in the runtime.

    Sessions end once it was called 8 times; None where none calls it.
    """
    parts = {name: program[name] for name in program.methods}
    sessions = program.sessions or [[(name, _model(part).example_inputs) for name, part in parts.items()]]
    wanted: list[list[Tensor]] = []
    found: list[list[Any]] = []
    with ExitStack() as context:
        context.enter_context(torch.no_grad())
        for part in parts.values():
            context.enter_context(in_eval_mode(_model(part).module))
        buffers = {buffer: buffer.clone() for part in parts.values() for buffer in _model(part).module.buffers()}
        for session in sessions:
            for part in parts.values():
                part.reset()
            for name, inputs in session:
                exact = [leaf.clone() for leaf in pytree.tree_leaves(_model(parts[name]).module(*inputs))]
                made = _made(parts[name], inputs)
                if name == program.method:
                    wanted.append(exact)
                    found.append(made)
            for buffer, contents in buffers.items():
                buffer.copy_(contents)
            if len(wanted) >= _MEASURED_SAMPLES:
                break
        for part in parts.values():
            part.reset()
    return Accuracy(sqnr_db(wanted, found), len(wanted)) if wanted else None


def _made(program: Program, inputs: tuple[Any, ...]) -> list[Any]:
    """The program's outputs, as floats."""
    return program.floats(program.host(*pytree.tree_leaves(program.as_taken(inputs))))


def _model(program: Program) -> UserModel:
    assert program.model is not None
    return program.model
