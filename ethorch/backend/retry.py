"""Lowering once more without what Vela declined, and before that the changes that no partitioner may make.

ExecuTorch partitions first and compiles the delegates then, too late for a partitioner to hear of what Vela declines: the
partitioner sees weights without values, and nothing that ``preprocess`` returns takes a delegate back. So ``to_backend``
itself gets a second attempt, also if a delegate's lowering refuses an operator because of the values of its constants.
"""

from __future__ import annotations

import copy
import functools
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from executorch.exir.backend.backend_api import MethodProgramsPartitionerSpec, to_backend
from executorch.exir.backend.partitioner import Partitioner
from torch.export import ExportedProgram

from ethorch.backend.dry_run_partitioner import DryRunPartitioner, refusal_of
from ethorch.lower.partition_report import PartitionReport
from ethorch.support.errors import Reason, Unsupported, VelaError
from ethorch.tosa.ir import Origin

logger = logging.getLogger(__name__)

_MARK = "ethorch_retries"


def install() -> None:
    """Let ExecuTorch's ``to_backend`` try again for partitioners of ethorch; others see no difference. Idempotent.

    ``to_backend`` dispatches on the type of its first argument. The two forms that take a partitioner are registered anew,
    around themselves. The partitioners' constructor calls this, so that nothing changes before there is one.
    """
    for form in (ExportedProgram, MethodProgramsPartitionerSpec):
        once = to_backend.dispatch(form)
        if not hasattr(once, _MARK):
            to_backend.register(form, _with_retries(once))


def _with_retries(once: Callable[..., Any]) -> Callable[..., Any]:
    """``once``, called again as long as Vela declines something new. Nothing is compiled twice unless Vela raised.

    A delegate whose command stream is too long becomes two; what is too long by itself goes to the CPU.
    """

    @functools.wraps(once)
    def attempts(program: Any, *rest: Any) -> Any:
        pairs = [(program, user) for user in rest] if rest else _pairs(program)
        users = [(edge, user) for edge, user in pairs if isinstance(user, DryRunPartitioner)]
        while True:
            for edge, user in users:
                user.prepare(edge)
            before = [copy.deepcopy(user.report) for _, user in users]
            try:
                lowered = once(program, *rest)
                for _, user in users:
                    user.checks.warn()
                return lowered
            except Unsupported as refusal:
                place = refusal.place
                if place is None or all(place in user.declined for _, user in users):
                    raise
                _decline(users, before, {place: refusal.reason})
            except VelaError as error:
                cut = error.too_long
                if cut is not None and any(user.begins.get(cut, 0) <= len(user.begins) for _, user in users):
                    logger.info("a delegate has too many commands; %s begins another", cut)
                    for (_, user), report in zip(users, before, strict=True):
                        user.begins[cut] = user.begins.get(cut, 0) + 1  # past those that began one before it
                        user.report.restore(report)
                    continue
                new = {
                    place: words for place, words in error.declined.items() if any(place not in user.declined for _, user in users)
                }
                if not new:
                    raise
                _decline(users, before, {place: refusal_of(words) for place, words in new.items()})

    setattr(attempts, _MARK, True)
    return attempts


def _decline(
    users: Sequence[tuple[ExportedProgram, DryRunPartitioner]], before: Sequence[PartitionReport], new: Mapping[Origin, Reason]
) -> None:
    """Leave the operators at these places to the CPU, with their reasons, and restore the partitioners' reports."""
    logger.warning(
        "a delegate was refused; again without %s", "; ".join(f"{place}: {reason.text}" for place, reason in new.items())
    )
    for (edge, user), report in zip(users, before, strict=True):
        user.declined.update(new)
        user.report.restore(report)
        user.break_up_what_stays(edge)


def _pairs(spec: MethodProgramsPartitionerSpec) -> list[tuple[ExportedProgram, Partitioner]]:
    """Each method's program and its partitioner."""
    return [(spec.method_to_edge_program[name], user) for name, user in spec.method_to_partitioner.items()]
