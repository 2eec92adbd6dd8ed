"""Combine the methods of a program in one firmware project."""

# The arena has the size required by the largest method. Shared state, such as caches, is stored after the arena if the NPU can
# access it there. Otherwise it is stored at the start of the CPU's buffer, before each method's private state and the temporary
# tensors.

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

from ethorch.deploy.firmware.plan import plan, read_payloads
from ethorch.deploy.firmware.steps import ARENA, TENSORS, Bases, Constants, Place, Plan, align
from ethorch.figures.persistent_buffers import Reads, all_have_contents, reads_in_place
from ethorch.formats.pte_merge import SHARED_MEMORY
from ethorch.formats.pte_types import Method, Program
from ethorch.support.errors import EthorchError, Reason

_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


@dataclass(frozen=True)
class MethodsPlan:
    """A plan for methods that share buffers.

    Attributes:
        arena_bytes, tensors_bytes, codes_tensors_bytes: Maximum over all methods. See :class:`Plan`.
        state_bytes: Bytes of shared state, plus private memory of methods with private state. 0 for a single method.
        constants: Distinct constant tensors, concatenated, each aligned to 16 bytes.
        initial: Location and initial value of each buffer.
    """

    plans: Mapping[str, Plan]
    arena_bytes: int
    tensors_bytes: int
    codes_tensors_bytes: int
    state_bytes: int
    constants: bytes
    initial: tuple[tuple[Place, bytes], ...]

    @property
    def several(self) -> bool:
        return len(self.plans) > 1

    @property
    def has_codes(self) -> bool:
        """True if a method has a float input or output that is also available as integer values."""
        return any(method_plan.has_codes for method_plan in self.plans.values())

    @property
    def keeps_state(self) -> bool:
        """True if a run depends on earlier runs."""
        return any(method_plan.keeps_state for method_plan in self.plans.values())

    @property
    def has_state_in_arena(self) -> bool:
        """True if the arena stores state between runs."""
        return any(method_plan.states_in_arena for method_plan in self.plans.values())


def plan_methods(program: Program, names: Sequence[str]) -> MethodsPlan:
    """Plan methods that share buffers.

    Raises:
        EthorchError: A method cannot be planned, or methods assign different initial values to one location. A method
            name is not a C identifier, or two names differ only in case.
        PayloadError, ProgramError: A delegate is malformed.
    """
    constants = Constants(program)
    if len(names) == 1:
        (name,) = names
        method_plan = plan(program, program.methods[name], constants)
        return MethodsPlan(
            {name: method_plan},
            method_plan.arena_bytes,
            method_plan.tensors_bytes,
            method_plan.codes_tensors_bytes,
            0,
            constants.data,
            method_plan.initial,
        )
    _check_names(names)
    memories = [program.methods[name].memories for name in names]
    sizes_by_memory = [[sizes[n] for sizes in memories if n < len(sizes)] for n in range(SHARED_MEMORY, max(map(len, memories)))]
    *offsets, shared_bytes = accumulate((align(max(sizes)) for sizes in sizes_by_memory), initial=0)
    reads = _reads_of_all([program.methods[name] for name in names])
    if any(reads):
        ends = [_scratch_end(program.methods[name], method_reads) for name, method_reads in zip(names, reads, strict=True)]
        shared, end = [Place(ARENA, align(max(ends)) + offset) for offset in offsets], 0
    else:
        shared, end = [Place(TENSORS, offset) for offset in offsets], shared_bytes
    state_bytes = shared_bytes - end
    alone = {name: _has_unshared_state(plan(program, program.methods[name])) for name in names}
    plans: dict[str, Plan] = {}
    for name in sorted(names, key=lambda name: not alone[name]):  # methods with private state come first
        bases = Bases(end, tuple(shared), reads[names.index(name)])
        plans[name] = plan(program, program.methods[name], constants, bases)
        end = plans[name].end if alone[name] else end
    return MethodsPlan(
        {name: plans[name] for name in names},
        max(method_plan.arena_bytes for method_plan in plans.values()),
        max(method_plan.tensors_bytes for method_plan in plans.values()),
        max(method_plan.codes_tensors_bytes for method_plan in plans.values()),
        state_bytes + end,
        constants.data,
        _initial(plans),
    )


def _reads_of_all(methods: Sequence[Method]) -> list[Mapping[int, Reads]]:
    if not all(map(all_have_contents, methods)):
        return [{} for _ in methods]
    return [reads_in_place(method, read_payloads(method)) for method in methods]


def _scratch_end(method: Method, reads: Mapping[int, Reads]) -> int:
    ends = [
        reads[number].scratch_end(reads[number].numbers, reads[number].outputs) if number in reads else payload.scratch_bytes
        for number, payload in read_payloads(method).items()
    ]
    return max(ends, default=0)


def _has_unshared_state(method_plan: Plan) -> bool:
    places = (method_plan.method.values[index].place for index in method_plan.states)
    return any(place is not None and place[0] < SHARED_MEMORY for place in places)


def _initial(plans: Mapping[str, Plan]) -> tuple[tuple[Place, bytes], ...]:
    first_by_place: dict[Place, tuple[str, bytes]] = {}
    for name, method_plan in plans.items():
        for place, content in method_plan.initial:
            first_name, first_content = first_by_place.setdefault(place, (name, content))
            if first_content != content:
                raise make_error(
                    Reason(
                        "firmware.initial_contents",
                        f"methods {first_name!r} and {name!r} assign different initial values to a shared buffer of "
                        f"{len(content)} bytes",
                        "Compile the methods together (pass a dict to ethorch.compile), or select one method with --method.",
                    )
                )
    return tuple((place, content) for place, (_, content) in first_by_place.items())


def _check_names(names: Sequence[str]) -> None:
    for name in names:
        others = [candidate for candidate in names if candidate != name and candidate.upper() == name.upper()]
        if others or not _IDENTIFIER.fullmatch(name):
            problem = f"equals {others[0]!r} in upper case" if others else "is not a C identifier"
            raise make_error(
                Reason(
                    "firmware.method_name",
                    f"method name {name!r} cannot be the prefix of C function and macro names, because it {problem}",
                    "Rename the method and compile again, or select one method with --method.",
                )
            )


def make_error(reason: Reason) -> EthorchError:
    """Create the error for a project that cannot be generated."""
    return EthorchError(f"{reason.text} [{reason.id}]. {reason.remedy}")
