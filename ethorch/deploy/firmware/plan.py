"""Plan the steps and tensor locations of the firmware, based on the memory plan of the .pte."""

# CPU tensors are stored in one buffer, at the offsets planned by ExecuTorch. Five rules change the plan:
# - State that the NPU can access in place is stored after the arena and is not copied.
# - Integer inputs of the first delegate and outputs of the last delegate are stored in the arena and are not copied.
# - State of a single delegate remains in the arena between runs and is copied once instead of twice.
# - Inputs are quantized first and outputs are dequantized last, so that an integer interface can skip both steps.
# - Inputs and outputs without planned memory are stored after the other CPU tensors.

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import accumulate

from ethorch.deploy.firmware.refusals import REMEDY, check_method
from ethorch.deploy.firmware.steps import (
    ARENA,
    CONSTANTS,
    TENSORS,
    Bases,
    Boundary,
    Codes,
    Constants,
    Copy,
    Kernel,
    Place,
    Plan,
    Run,
    Step,
    align,
)
from ethorch.figures.persistent_buffers import Reads, is_kept, reads_in_place
from ethorch.formats.payload import BACKEND_ID, DelegatePayload, IoTensor
from ethorch.formats.pte_types import VIEW, Call, Method, Move, Program
from ethorch.npu.in_place import IN_PLACE_ALIGNMENT
from ethorch.support.errors import EthorchError

_KEPT = "kept"  # provisional buffer of state until the arena's size is known
_QUANTIZE = "quantized_decomposed::quantize_per_tensor.out"
_DEQUANTIZE = "quantized_decomposed::dequantize_per_tensor.out"


def plan(program: Program, method: Method, constants: Constants | None = None, bases: Bases | None = None) -> Plan:
    """Plan the steps and memory of a method.

    Args:
        constants: Collection to which the constant tensors are added.
        bases: Locations of buffers shared with other methods.

    Raises:
        EthorchError: Firmware does not support the method. See :func:`check_method`.
        PayloadError, ProgramError: A delegate is malformed.
    """
    return _Planner(program, method, constants or Constants(program), bases).plan()


def read_payloads(method: Method) -> dict[int, DelegatePayload]:
    """Return the payloads of a method's Ethos-U delegates, keyed by delegate number.

    Raises:
        PayloadError: A payload is malformed.
    """
    return {n: delegate.payload for n, delegate in enumerate(method.delegates) if delegate.id == BACKEND_ID}


class _Planner:
    def __init__(self, program: Program, method: Method, constants: Constants, bases: Bases | None):
        self.program, self.method, self.values = program, method, method.values
        self.constants, self.bases = constants, bases
        self.payloads = read_payloads(method)
        self.places: dict[int, Place] = {}
        self.in_place: set[tuple[int | None, int]] = set()  # (delegate, input number) pairs that are read in place
        self.written: set[tuple[int | None, int]] = set()  # (delegate, output number) pairs that are written in place
        self.reaches: dict[int, int] = {}
        self.reads: Mapping[int, Reads] = {} if bases is None else bases.reads

    def plan(self) -> Plan:
        check_method(self.method, self.payloads)
        if self.bases is None:
            self.reads = reads_in_place(self.method, self.payloads)
        end = self._place_all()
        calls = [step for chain in self.method.chains for step in chain.instructions if isinstance(step, (Call, Move))]
        numbered = list(enumerate(calls))
        first, body, last = self._split(numbered)
        inputs = tuple(self._boundary("input", n, i, first) for n, i in enumerate(self.method.inputs))
        outputs = tuple(self._boundary("output", n, i, last) for n, i in enumerate(self.method.outputs))
        states = self._states(calls)
        self._into_arena(inputs, outputs, body, last, {*states, *self._find_shared_values()})
        states_in_arena = self._keep_in_arena(states, body) if self.bases is None else ()
        arena_bytes = self._place_after_arena()
        states_in_arena += tuple(i for i in states if i not in states_in_arena and self.places[i].buffer == ARENA)
        steps = tuple(step for number, call in body for step in self._steps(number, call))
        used = self._extent(calls)
        initial = tuple(
            (self.places[index], bytes(self.program.mutable[value.extra.segment if value.extra else 0][value.data]))
            for index, value in enumerate(self.values)
            if value.kind == "tensor" and value.planned and value.data
        )
        return Plan(
            self.method,
            self.payloads,
            self.places,
            tuple(Kernel(number, call.operator, call.args) for number, call in first),
            steps,
            tuple(Kernel(number, call.operator, call.args) for number, call in last),
            inputs,
            outputs,
            arena_bytes,
            used if end else 0,
            self._extent([call for _, call in body]),
            end,
            initial,
            tuple(states),
            states_in_arena,
            self.reaches,
        )

    # locations ------------------------------------------------------------------------------------------------------------

    def _place_all(self) -> int:
        memories = [align(size) for size in self.method.memories[1:]]
        if self.bases is not None:
            starts = [Place(TENSORS, self.bases.private_offset), *self.bases.shared]
            end = self.bases.private_offset + sum(memories[:1])
        elif self.reads:
            starts = [Place(TENSORS, 0), *(Place(_KEPT, start) for start in accumulate(memories[1:], initial=0))]
            end = sum(memories[:1])
        else:
            starts = [Place(TENSORS, start) for start in accumulate(memories, initial=0)]
            end = sum(memories)
        for index, value in enumerate(self.values):
            if value.kind != "tensor":
                continue
            if value.place is not None:
                start = starts[value.place[0] - 1]
                self.places[index] = Place(start.buffer, start.offset + value.place[1])
            elif value.extra and value.extra.external:
                raise EthorchError(
                    f"the program stores {value.extra.name!r} in a separate .ptd file. Compile the model without external "
                    f"constants, or {REMEDY}"
                )
            elif value.data:
                self.places[index] = Place(CONSTANTS, self.constants.offset(value.data))
        for index in dict.fromkeys((*self.method.inputs, *self.method.outputs)):
            if index not in self.places and not self._is_view(index):
                self.places[index] = Place(TENSORS, end)
                end += align(self.values[index].nbytes)
        for step in (step for chain in self.method.chains for step in chain.instructions):
            if isinstance(step, Call) and step.operator == VIEW and step.args[-1] not in self.places:
                self.places[step.args[-1]] = self.places[step.args[0]]
            elif isinstance(step, Move) and self.values[step.target].kind == "tensor" and step.target not in self.places:
                self.places[step.target] = self.places[step.source]
        return end

    def _find_shared_values(self) -> list[int]:
        return [i for i, value in enumerate(self.values) if is_kept(value)]

    def _is_view(self, index: int) -> bool:
        return any(call.operator == VIEW and call.args[-1] == index for call in self.method.calls)

    def _extent(self, calls: Sequence[Call | Move]) -> int:
        touched = {index for call in calls for index in (*self._reads(call), *self._writes(call))}
        touched |= {index for index, value in enumerate(self.values) if value.kind == "tensor" and value.planned and value.data}
        ends = [p.offset + self.values[i].nbytes for i in touched if (p := self.places[i]).buffer == TENSORS]
        return align(max(ends, default=0))

    # the order ---------------------------------------------------------------------------------------------------------

    def _tensors(self, args: Sequence[int]) -> list[int]:
        tensors = []
        for arg in args:
            value = self.values[arg]
            items = value.items if value.kind.startswith("tensor") and value.kind != "tensor" else (arg,)
            tensors += [item for item in items if item >= 0 and self.values[item].kind == "tensor" and item in self.places]
        return tensors

    def _writes(self, call: Call | Move) -> list[int]:
        # A delegate writes its outputs; quantize, dequantize and view operators write the last argument; others can write any
        # argument.
        if isinstance(call, Move):
            return self._tensors([call.target])
        if call.delegate is not None:
            return self._tensors(call.args[len(self.payloads[call.delegate].inputs) :])
        if call.operator in (_QUANTIZE, _DEQUANTIZE, VIEW):
            return self._tensors(call.args[-1:])
        return self._tensors(call.args)

    def _reads(self, call: Call | Move) -> list[int]:
        if isinstance(call, Move):
            return self._tensors([call.source])
        if call.delegate is not None:
            return self._tensors(call.args[: len(self.payloads[call.delegate].inputs)])
        if call.operator in (_QUANTIZE, _DEQUANTIZE, VIEW):
            return self._tensors(call.args[:1])
        return self._tensors(call.args)

    def _overlap(self, some: Sequence[int], others: Sequence[int]) -> bool:
        def ends(index: int) -> tuple[str, int, int]:
            place = self.places[index]
            return place.buffer, place.offset, place.offset + max(self.values[index].nbytes, 1)

        spans = [ends(index) for index in others]
        return any(a == c and b < f and e < d for a, b, d in map(ends, some) for c, e, f in spans)

    def _may_swap(self, first_call: Call | Move, second_call: Call | Move) -> bool:
        writes, reads = self._writes(first_call), self._reads(first_call)
        return not (
            self._overlap(writes, (*self._reads(second_call), *self._writes(second_call)))
            or self._overlap(reads, self._writes(second_call))
        )

    def _split(
        self, calls: list[tuple[int, Call | Move]]
    ) -> tuple[list[tuple[int, Call]], list[tuple[int, Call | Move]], list[tuple[int, Call]]]:
        first: list[tuple[int, Call]] = []
        body: list[tuple[int, Call | Move]] = []
        for number, call in calls:
            begins = isinstance(call, Call) and call.operator == _QUANTIZE and call.args[0] in self.method.inputs
            if begins and all(self._may_swap(call, earlier) for _, earlier in body):
                assert isinstance(call, Call)
                first.append((number, call))
            else:
                body.append((number, call))
        last: list[tuple[int, Call]] = []
        for entry in reversed(body[:]):
            number, call = entry
            ends = isinstance(call, Call) and call.operator == _DEQUANTIZE and call.args[-1] in self.method.outputs
            if ends and all(self._may_swap(call, later) for n, later in body if n > number):
                assert isinstance(call, Call)
                last.insert(0, (number, call))
                body.remove(entry)
        # An input remains float if it has other float uses or several sets of quantization parameters.
        for _, call in first[:]:
            index = call.args[0]
            others = [n for n, c in (*body, *last) if index in self._reads(c)]
            if others or sum(c.args[0] == index for _, c in first) > 1:
                moved = [entry for entry in first if entry[1].args[0] == index]
                first = [entry for entry in first if entry not in moved]
                body[:0] = [(number, c) for number, c in moved]
        return first, body, last

    def _boundary(self, side: str, number: int, index: int, converts: list[tuple[int, Call]]) -> Boundary:
        at, end = (0, -1) if side == "input" else (-1, 0)
        for _, call in converts:
            if call.args[at] == index:
                scale, zero_point = (self.values[call.args[n]].number for n in (1, 2))
                return Boundary(side, number, index, Codes(call.args[end], float(scale), int(zero_point)))
        return Boundary(side, number, index, None)

    # integer values in the NPU's memory --------------------------------------------------------------------------------------

    def _into_arena(
        self,
        inputs: Sequence[Boundary],
        outputs: Sequence[Boundary],
        body: list[tuple[int, Call | Move]],
        last: list[tuple[int, Call]],
        state_values: set[int],
    ) -> None:
        runs = [(n, call) for n, call in body if isinstance(call, Call) and call.delegate is not None]
        if not runs:
            return
        number, call = runs[0]
        payload = self.payloads[call.delegate or 0]
        for end in inputs:
            index = end.codes.index if end.codes else end.index
            readers = [c for _, c in (*body, *last) if index in (*self._reads(c), *self._writes(c))]
            at = [n for n, arg in enumerate(call.args[: len(payload.inputs)]) if arg == index]
            if readers == [call] and len(at) == 1 and index not in self.method.outputs and index not in state_values:
                self.places[index] = Place(ARENA, payload.inputs[at[0]].offset)
        number, call = runs[-1]
        payload = self.payloads[call.delegate or 0]
        for end in outputs:
            index = end.codes.index if end.codes else end.index
            others = [c for n, c in body if n != number and index in (*self._reads(c), *self._writes(c))]
            at = [n for n, arg in enumerate(call.args[len(payload.inputs) :]) if arg == index]
            if (
                not others
                and len(at) == 1
                and index not in self.method.inputs
                and index not in state_values
                and not self._is_shared(index)
            ):
                self.places[index] = Place(ARENA, payload.outputs[at[0]].offset)

    def _keep_in_arena(self, states: Sequence[int], body: Sequence[tuple[int, Call | Move]]) -> tuple[int, ...]:
        """Move states to the arena, where the method's only delegate reads them. Return the moved states' indices."""
        # This saves one copy for each state. Vela can reuse the input's memory after the state is read. After the run, the new
        # value is therefore copied from the output to the input, and no other output may overlap the input.
        runs = [call for _, call in body if isinstance(call, Call) and call.delegate is not None]
        if len(runs) != 1:
            return ()
        (call,) = runs
        payload = self.payloads[call.delegate or 0]
        count, state_values = len(payload.inputs), list[int]()
        for index in states:
            at, outputs = call.args[:count], call.args[count:]
            if at.count(index) != 1 or outputs.count(index) != 1 or not self.values[index].data:
                continue
            home, source = payload.inputs[at.index(index)], payload.outputs[outputs.index(index)]
            others = [io for io in payload.outputs if io is not source]
            parts = [i for i in self.places if i != index and self._overlap([index], [i])]
            if source.offset != home.offset:
                others.append(source)
            if not parts and not any(_overlap_in_arena(home, io) for io in others):
                self.places[index] = Place(ARENA, home.offset)
                state_values.append(index)
        return tuple(state_values)

    def _place_after_arena(self) -> int:
        calls = {call.delegate: call for call in self.method.calls if call.delegate is not None}
        inputs: dict[int, dict[int, int]] = {}  # delegate -> number of an input stored after the arena -> index of the value
        outputs: dict[int, dict[int, int]] = {}
        for number, reads in self.reads.items():
            count, args = len(reads.payload.inputs), calls[number].args
            inputs[number] = {n: args[n] for n in reads.numbers if self._is_after_arena(args[n])}
            outputs[number] = {n: args[count + n] for n in reads.outputs if self._is_after_arena(args[count + n])}
        ends = [
            self.reads[n].scratch_end(inputs[n], outputs[n]) if n in self.reads else payload.scratch_bytes
            for n, payload in self.payloads.items()
        ]
        end = align(max(ends, default=0))
        state_places = [(i, place.offset) for i, place in self.places.items() if place.buffer == _KEPT]
        spans = sorted((offset, offset + self.values[i].nbytes, i) for i, offset in state_places)
        first = last = 0
        for start, stop, index in spans:
            if start >= last:  # no overlap with the previous range
                end, first = align(end + last - first), start - start % IN_PLACE_ALIGNMENT
            self.places[index] = Place(ARENA, end + start - first)
            last = max(last, stop)
        reach = [p.offset + self.values[i].nbytes for i, p in self.places.items() if p.buffer == ARENA]
        total = max([align(end + last - first), *map(align, reach)])
        for number, payload in self.payloads.items():
            read, written = (
                {n: self.places[index].offset for n, index in side.get(number, {}).items()} for side in (inputs, outputs)
            )
            if read or written:
                self.payloads[number] = replace(payload, commands=self.reads[number].commands(read, written))
                self.in_place |= {(number, n) for n in read}
                self.written |= {(number, n) for n in written}
            self.reaches[number] = total if read or written else payload.scratch_bytes
        return total

    def _is_after_arena(self, index: int) -> bool:
        behind = self.bases is not None and any(place.buffer == ARENA for place in self.bases.shared)
        return self.places[index].buffer == _KEPT or (behind and is_kept(self.values[index]))

    def _is_shared(self, index: int) -> bool:
        # A view shares the value's memory, so the value must not be moved.
        return any(c.operator == VIEW and index in (c.args[0], c.args[-1]) for c in self.method.calls)

    def _states(self, calls: Sequence[Call | Move]) -> list[int]:
        """Return the indices of the tensors read before they are written."""
        written = set(self.method.inputs)
        states: list[int] = []
        for call in calls:
            in_place = isinstance(call, Call) and call.delegate is None and call.operator not in (_QUANTIZE, _DEQUANTIZE, VIEW)
            outs = set(self._tensors(call.args[-1:])) if in_place and isinstance(call, Call) else set()
            mutates = in_place and isinstance(call, Call) and call.operator.split(".")[0].endswith("_")
            for index in self._reads(call):
                unset = self.values[index].planned and index not in written and index not in states
                if unset and (index not in outs or mutates):
                    states.append(index)
            written.update(self._writes(call))
        return states

    # steps -------------------------------------------------------------------------------------------------------------

    def _steps(self, number: int, call: Call | Move) -> list[Step]:
        if isinstance(call, Move):
            return self._make_copy(call.source, call.target) if self.values[call.source].kind == "tensor" else []
        if call.operator == VIEW:
            return self._make_copy(call.args[0], call.args[-1])
        if call.delegate is None:
            return [Kernel(number, call.operator, call.args)]
        payload = self.payloads[call.delegate]
        count = len(payload.inputs)
        before = [
            Copy(self.places[arg], Place(ARENA, io.offset), io.nbytes)
            for n, (arg, io) in enumerate(zip(call.args[:count], payload.inputs, strict=True))
            if (call.delegate, n) not in self.in_place
        ]
        after = [
            Copy(Place(ARENA, io.offset), self.places[arg], io.nbytes)
            for n, (arg, io) in enumerate(zip(call.args[count:], payload.outputs, strict=True))
            if (call.delegate, n) not in self.written
        ]
        moved = [tuple(copied for copied in side if copied.source != copied.target) for side in (before, after)]
        return [Run(number, call.delegate, *moved)]

    def _make_copy(self, source: int, target: int) -> list[Step]:
        source_place, target_place = self.places[source], self.places[target]
        return [] if source_place == target_place else [Copy(source_place, target_place, self.values[target].nbytes)]


def _overlap_in_arena(first: IoTensor, second: IoTensor) -> bool:
    return first.offset < second.offset + second.nbytes and second.offset < first.offset + first.nbytes
