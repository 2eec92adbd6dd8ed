"""Move operators to the CPU if Vela or the lowering of a delegate rejects them, and lower the program again.

ExecuTorch partitions before it compiles, so ``preprocess`` cannot return operators to the CPU.
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
    """Make ExecuTorch's ``to_backend`` retry for ethorch's partitioners. Repeated calls have no effect."""
    for form in (ExportedProgram, MethodProgramsPartitionerSpec):
        function = to_backend.dispatch(form)
        if not hasattr(function, _MARK):
            to_backend.register(form, _add_retries(function))


def _add_retries(function: Callable[..., Any]) -> Callable[..., Any]:

    @functools.wraps(function)
    def attempts(program: Any, *rest: Any) -> Any:
        pairs = [(program, user) for user in rest] if rest else _pairs(program)
        users = [(edge, user) for edge, user in pairs if isinstance(user, DryRunPartitioner)]
        while True:
            for edge, user in users:
                user.prepare(edge)
            before = [copy.deepcopy(user.report) for _, user in users]
            try:
                lowered = function(program, *rest)
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
                    logger.info("a command stream exceeds the maximum length; a new delegate begins with %s", cut)
                    for (_, user), report in zip(users, before, strict=True):
                        user.begins[cut] = user.begins.get(cut, 0) + 1  # one level later than in the last attempt
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
    logger.warning(
        "a delegate cannot be compiled, so the program is lowered again with these operators on the CPU: %s",
        "; ".join(f"{place}: {reason.text}" for place, reason in new.items()),
    )
    for (edge, user), report in zip(users, before, strict=True):
        user.declined.update(new)
        user.report.restore(report)
        user.break_up_what_stays(edge)


def _pairs(spec: MethodProgramsPartitionerSpec) -> list[tuple[ExportedProgram, Partitioner]]:
    return [(spec.method_to_edge_program[name], user) for name, user in spec.method_to_partitioner.items()]
