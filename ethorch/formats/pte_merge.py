"""Merge single-method programs into one program with shared constants and buffers.

As with ExecuTorch's ``share_mutable_buffers``, mutable buffers have the same offsets in ``SHARED_MEMORY`` in every method.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from ethorch.formats.pte_types import Extra, Method, Program, Value
from ethorch.formats.pte_writer import TENSOR_ALIGNMENT
from ethorch.support.errors import ProgramError

#: Index of the planned memory for shared buffers. Memory 1 contains each method's own tensors
#: (executorch/exir/passes/memory_planning_pass.py of 1.5).
SHARED_MEMORY = 2


def merge(programs: Mapping[str, Program], names: Mapping[str, Mapping[str, str]], method: str = "forward") -> Program:
    """Merge programs into one program with an entry point for each.

    Args:
        programs: Programs, keyed by entry point. The ``method`` of each program becomes the entry point. The other methods return
            constants and are renamed to ``<entry point>_<name>``.
        names: New names of mutable buffers, keyed by entry point and old name. Buffers with the same new name are shared. Default:
            ``<entry point>.<old name>``.

    Raises:
        ProgramError: Shared buffers differ in dtype, shape, dim order or initial value, or programs store different data under
            the same name. A temporary tensor has an initial value, or a persistent tensor is outside all buffers.
    """
    contents = _Contents()
    buffers = _Buffers()
    methods: dict[str, Method] = {}
    named: dict[str, bytes] = {}
    for name, program in programs.items():
        for key, data in program.named.items():
            if named.setdefault(key, data) != data:
                raise ProgramError(f"methods have different data under the name {key!r}; expected equal data.")
        for part, source in program.methods.items():
            entry_name = name if part == method else f"{name}_{part}"
            values = [
                value if _is_persistent(value) else contents.add_constant(program, value, f"a tensor of method {name!r}")
                for value in source.values
            ]
            places: list[tuple[Value, Value]] = []  # each buffer before and after the merge
            for number, value in enumerate(source.values):
                if _is_persistent(value) and value.extra is not None and value.extra.name:
                    new_name = names.get(name, {}).get(value.extra.name, f"{name}.{value.extra.name}")
                    values[number] = buffers.place_buffer(name, new_name, value, contents.add_initial(program, value))
                    places.append((value, values[number]))
            for number, value in enumerate(source.values):
                if _is_persistent(value) and not (value.extra is not None and value.extra.name):
                    values[number] = _place_inside(name, value, places)
            methods[entry_name] = replace(source, name=entry_name, values=tuple(values))
    sizes = {}
    for name, combined in methods.items():
        memories = combined.memories[:SHARED_MEMORY]
        memories += (0,) * (SHARED_MEMORY - len(memories))
        uses = any(value.place is not None and value.place[0] == SHARED_MEMORY for value in combined.values)
        sizes[name] = replace(combined, memories=(*memories, buffers.size) if uses else combined.memories)
    mutable = (tuple(contents.mutable),) if len(contents.mutable) > 1 else ()
    return Program(sizes, tuple(contents.constants), mutable, named, max(program.version for program in programs.values()))


def _is_persistent(value: Value) -> bool:
    return value.place is not None and value.place[0] >= SHARED_MEMORY


def _place_inside(method: str, value: Value, places: Sequence[tuple[Value, Value]]) -> Value:
    assert value.place is not None
    memory, offset = value.place
    for before, after in places:
        assert before.place is not None and after.place is not None
        within = offset - before.place[1]
        if memory == before.place[0] and within >= 0 and within + value.nbytes <= before.nbytes:
            return replace(value, place=(after.place[0], after.place[1] + within))
    raise ProgramError(f"method {method!r} stores {value} at byte {offset} of memory {memory}, outside the buffers of the method.")


class _Contents:
    def __init__(self) -> None:
        self.constants: list[bytes | memoryview] = [b""]
        self.mutable: list[bytes | memoryview] = [b""]
        self._constants: dict[bytes, int] = {}
        self._mutable: dict[bytes, int] = {}

    def add_constant(self, program: Program, value: Value, what: str) -> Value:
        if value.kind != "tensor" or not value.data or (value.extra is not None and value.extra.external):
            return value
        if value.planned:
            raise ProgramError(f"{what} has an initial value, but its memory is overwritten by the next call.")
        data = bytes(program.constants[value.data])
        if data not in self._constants:
            self._constants[data] = len(self.constants)
            self.constants.append(data)
        return replace(value, data=self._constants[data])

    def add_initial(self, program: Program, value: Value) -> int:
        if not value.data:
            return 0
        data = bytes(program.mutable[0 if value.extra is None else value.extra.segment][value.data])
        if data not in self._mutable:
            self._mutable[data] = len(self.mutable)
            self.mutable.append(data)
        return self._mutable[data]


class _Buffers:
    def __init__(self) -> None:
        self.size = 0
        self._placed: dict[str, tuple[str, Value]] = {}

    def place_buffer(self, method: str, name: str, value: Value, data: int) -> Value:
        if name not in self._placed:
            place = (SHARED_MEMORY, self.size)
            self.size += -(-value.nbytes // TENSOR_ALIGNMENT) * TENSOR_ALIGNMENT
            self._placed[name] = method, replace(value, place=place, data=data, extra=Extra(0, name))
            return self._placed[name][1]
        first_method, buffer = self._placed[name]
        if (buffer.dtype, buffer.shape, buffer.dim_order) != (value.dtype, value.shape, value.dim_order):
            raise ProgramError(
                f"buffer {name} is {buffer} in method {first_method!r} and {value} in {method!r}; expected equal dtypes, shapes "
                "and dim orders."
            )
        if buffer.data != data:
            raise ProgramError(f"buffer {name} has different initial values in methods {first_method!r} and {method!r}.")
        return buffer
