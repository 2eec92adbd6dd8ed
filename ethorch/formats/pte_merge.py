"""Several programs of one method each as one program: contents stored once, buffers that methods share in one place.

Buffers that are kept from call to call go to a memory of their own, ``SHARED_MEMORY``, in which every method has them at the same
offset: ExecuTorch's ``share_mutable_buffers`` plans so too, and runtimes that give the methods of a program one set of memories
need nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from ethorch.formats.pte_types import Extra, Method, Program, Value
from ethorch.formats.pte_writer import TENSOR_ALIGNMENT
from ethorch.support.errors import ProgramError

#: Planned memories of a method from this one on hold buffers that methods share; memory 1 holds a method's own tensors
#: (executorch/exir/passes/memory_planning_pass.py of 1.5).
SHARED_MEMORY = 2


def merged(programs: Mapping[str, Program], names: Mapping[str, Mapping[str, str]], method: str = "forward") -> Program:
    """One program with an entry point for each of ``programs``.

    Args:
        programs: name of the entry point -> the program whose ``method`` it becomes. What else a program has are figures; they
            are called ``NAME_FIGURE`` then.
        names: name of the entry point -> name of a buffer that it keeps, as its program has it -> the buffer's name in the whole.
            Equal names are one buffer.

    Raises:
        ProgramError: a buffer has another type, shape or initial contents in one method than in another; it lies among tensors that
            are not kept; or two programs have other data under one name.
    """
    contents = _Contents()
    buffers = _Buffers()
    methods: dict[str, Method] = {}
    named: dict[str, bytes] = {}
    for name, program in programs.items():
        for key, data in program.named.items():
            if named.setdefault(key, data) != data:
                raise ProgramError(f"methods have different data under the name {key!r}; it has to be one thing in all of them.")
        for part, found in program.methods.items():
            own = name if part == method else f"{name}_{part}"
            values = [
                value if _kept(value) else contents.moved(program, value, f"a tensor of method {name!r}") for value in found.values
            ]
            places: list[tuple[Value, Value]] = []  # each buffer as it was and as it is
            for number, value in enumerate(found.values):
                if _kept(value) and value.extra is not None and value.extra.name:
                    known = names.get(name, {}).get(value.extra.name, f"{name}.{value.extra.name}")
                    values[number] = buffers.placed(name, known, value, contents.initial(program, value))
                    places.append((value, values[number]))
            for number, value in enumerate(found.values):
                if _kept(value) and not (value.extra is not None and value.extra.name):
                    values[number] = _inside(name, value, places)
            methods[own] = replace(found, name=own, values=tuple(values))
    sizes = {}
    for name, found in methods.items():
        memories = found.memories[:SHARED_MEMORY]
        memories += (0,) * (SHARED_MEMORY - len(memories))
        uses = any(value.place is not None and value.place[0] == SHARED_MEMORY for value in found.values)
        sizes[name] = replace(found, memories=(*memories, buffers.size) if uses else found.memories)
    mutable = (tuple(contents.mutable),) if len(contents.mutable) > 1 else ()
    return Program(sizes, tuple(contents.constants), mutable, named, max(program.version for program in programs.values()))


def _kept(value: Value) -> bool:
    """Is it kept from call to call?"""
    return value.place is not None and value.place[0] >= SHARED_MEMORY


def _inside(method: str, value: Value, places: Sequence[tuple[Value, Value]]) -> Value:
    """A tensor that is a part of a buffer, or a buffer in another shape, where the buffer lies now."""
    assert value.place is not None
    memory, offset = value.place
    for before, after in places:
        assert before.place is not None and after.place is not None
        within = offset - before.place[1]
        if memory == before.place[0] and within >= 0 and within + value.nbytes <= before.nbytes:
            return replace(value, place=(after.place[0], after.place[1] + within))
    raise ProgramError(
        f"method {method!r} keeps {value} at byte {offset} of memory {memory}, which is a part of none of its buffers."
    )


class _Contents:
    """Bytes of constants and initial bytes of buffers; equal ones are stored once."""

    def __init__(self) -> None:
        self.constants: list[bytes | memoryview] = [b""]
        self.mutable: list[bytes | memoryview] = [b""]
        self._constants: dict[bytes, int] = {}
        self._mutable: dict[bytes, int] = {}

    def moved(self, program: Program, value: Value, what: str) -> Value:
        """A value that is not kept, with the number that its bytes have now."""
        if value.kind != "tensor" or not value.data or (value.extra is not None and value.extra.external):
            return value
        if value.planned:
            raise ProgramError(f"{what} has initial contents, and lies among tensors that the next call overwrites.")
        data = bytes(program.constants[value.data])
        if data not in self._constants:
            self._constants[data] = len(self.constants)
            self.constants.append(data)
        return replace(value, data=self._constants[data])

    def initial(self, program: Program, value: Value) -> int:
        """The number that a buffer's initial bytes have now; 0 of one without."""
        if not value.data:
            return 0
        data = bytes(program.mutable[0 if value.extra is None else value.extra.segment][value.data])
        if data not in self._mutable:
            self._mutable[data] = len(self.mutable)
            self.mutable.append(data)
        return self._mutable[data]


class _Buffers:
    """Where each buffer lies; ``size`` is the bytes of all."""

    def __init__(self) -> None:
        self.size = 0
        self._known: dict[str, tuple[str, Value]] = {}

    def placed(self, method: str, name: str, value: Value, data: int) -> Value:
        """The buffer's value in ``method``, with its place in the whole."""
        if name not in self._known:
            place = (SHARED_MEMORY, self.size)
            self.size += -(-value.nbytes // TENSOR_ALIGNMENT) * TENSOR_ALIGNMENT
            self._known[name] = method, replace(value, place=place, data=data, extra=Extra(0, name))
            return self._known[name][1]
        other, known = self._known[name]
        if (known.dtype, known.shape, known.dim_order) != (value.dtype, value.shape, value.dim_order):
            raise ProgramError(
                f"buffer {name} is {known} in method {other!r} and {value} in {method!r}; it has to be the same in both."
            )
        if known.data != data:
            raise ProgramError(f"buffer {name} begins with other contents in method {other!r} than in {method!r}.")
        return known
