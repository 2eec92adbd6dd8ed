"""Runs a .pte in this process: ExecuTorch's own runtime, ethorch's delegate, and where the NPU would be, the simulator.

``delegate`` brings the delegate into the runtime, ``checks`` looks at what the runtime would crash on. Operators that no
delegate took run on ExecuTorch's CPU kernels.
"""

from __future__ import annotations

import os
import tempfile
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ethorch import npu
from ethorch.formats import pte
from ethorch.formats.payload import BACKEND_ID, DelegatePayload
from ethorch.runtime import many
from ethorch.runtime.checks import check_input, payloads
from ethorch.runtime.delegate import MachineFactory
from ethorch.runtime.elements import Elements
from ethorch.runtime.session import Session, together
from ethorch.support import trees
from ethorch.support.errors import HostError
from ethorch.support.quiet import quiet
from ethorch.support.redirect import COUT_LOCK
from ethorch.support.wording import count_noun

_KEPT_PROGRAMS = 8  # parsed command streams, with their decoded weights, kept for further loads of the same payload


class HostProgram:
    """One method of a .pte, ready to be called. Made by ``load``.

    Methods that share buffers, such as a language model's prefill and decode, are loaded together: ``program["decode"]`` is
    another method of the same file, and sees what this one wrote.

    Attributes:
        method: the method's name.
        methods: names of all that are loaded with it, itself among them.
        description: the method as the file describes it: values, inputs, operators, calls.
        delegates: the payload of each Ethos-U delegate, in the order of the file.
    """

    def __init__(self, session: Session, method: str, batch_machine: Callable[[DelegatePayload], npu.Machine] | None = None):
        self.method = method
        self.methods = tuple(session.descriptions)
        self.description = session.descriptions[method]
        self.delegates = payloads(self.description)
        self._session = session
        self._backend = session.backend
        self._batch_machine = batch_machine

    def __getitem__(self, method: str) -> HostProgram:
        """Another method that was loaded with this one; HostError where there is none of this name."""
        if method not in self.methods:
            raise HostError(
                f"method {method!r} was not loaded with {self.method!r}; with it were {', '.join(map(repr, self.methods))}. "
                "Methods that share no buffer are loaded by themselves: ethorch.runtime.load(path, method)."
            )
        return HostProgram(self._session, method, self._batch_machine)

    def reset(self) -> None:
        """Put what the program keeps from call to call back to its initial contents, for all methods that share it."""
        self._session.reset()

    def __call__(self, *inputs: Any) -> list[Any]:
        """Run once. Inputs may be nested as the exported model's were; outputs come flat, as tensors of PyTorch.

        Args:
            inputs: tensors, or arrays of NumPy.

        Raises:
            HostError: another number of inputs, or one of another type, dtype or shape; or a CPU kernel failed.
            MachineFault: the simulator stopped.
        """
        return _tensors(self._execute(self._ready(inputs)))

    def arrays(self, *inputs: Any) -> list[Any]:
        """Run once, as a call does; outputs are arrays of NumPy. Does not import torch."""
        return [x.array() if isinstance(x, Elements) else x for x in self._execute(self._ready(inputs))]

    def run_many(self, samples: Iterable[Sequence[Any]], threads: int | None = None) -> list[list[Any]]:
        """Run once for each sample, several at a time on the simulated NPU: the results of calling it with one after the other.

        Operators on the CPU run in ExecuTorch's runtime, one sample at a time. All runs there, one sample after the other, of
        programs whose calls depend on the calls before them (``many.keeps_state``), of those loaded with ``machine``, ``trace``
        or ``etdump``, and of small networks, for which that is quicker: ``npu.run_many`` runs their delegate alone.

        Args:
            samples: the inputs of each call, as a tuple or list.
            threads: of the simulator; None takes the CPUs that this process may use.

        Raises:
            HostError, MachineFault: as a call does, with the number of the sample.
        """
        ready = [self._ready(sample) for sample in samples]
        machine = self._batch_machine
        if machine is None or not self._pays_to_batch:
            return [_tensors(self._execute(inputs)) for inputs in ready]
        kept = sum(tensor.nbytes for payload in self.delegates for tensor in (*payload.inputs, *payload.outputs))
        at_once = max(1, min(many.MOST_INPUTS, many.BATCH_BYTES // max(kept, 1)))
        results: list[list[Any]] = []
        for first in range(0, len(ready), at_once):
            recordings = [many.Recording(first + k, inputs) for k, inputs in enumerate(ready[first : first + at_once])]
            many.run_batch(recordings, self._record, lambda number: self._backend.delegates[number].payload, machine, threads)
            for recording in recordings:
                assert recording.result is not None
                results.append(_tensors(recording.result))
        return results

    @cached_property
    def _pays_to_batch(self) -> bool:
        """Whether the NPU's part may be run apart, and is worth it."""
        if not 0 < len(self.delegates) <= many.MOST_DELEGATES or many.keeps_state(self.description):
            return False
        programs = [_npu_program(payload)[0] for payload in self.delegates]
        return not any(p.has_branches for p in programs) and sum(p.work for p in programs) >= many.LEAST_WORK

    def _record(self, recording: many.Recording) -> None:
        recording.start()
        with suppress(many.Paused):
            recording.result = self._execute(recording.inputs, recording)

    def _ready(self, inputs: Sequence[Any]) -> list[Any]:
        """The inputs of a call as the runtime takes them."""
        flat = trees.leaves(inputs)
        wanted = [self.description.values[index] for index in self.description.inputs]
        if len(flat) != len(wanted):
            raise HostError(
                f"method {self.method!r} takes {count_noun(len(wanted), 'input')}, found {len(flat)}. It takes: "
                f"{', '.join(map(str, wanted)) or 'none'}."
            )
        return [check_input(index, value, spec) for index, (value, spec) in enumerate(zip(flat, wanted, strict=True))]

    def _execute(self, ready: list[Any], recording: many.Recording | None = None) -> list[Any]:
        with self._backend.calling(f"run method {self.method!r}"):
            before, self._backend.calls.recording = self._backend.calls.recording, recording
            try:
                return self._session.execute(self.method, ready)
            finally:
                self._backend.calls.recording = before

    def write_etdump(self, path: str | os.PathLike[str]) -> None:
        """Write what the runs so far have recorded, for ``executorch.devtools.Inspector``.

        It shows the NPU operators of each delegate call, in seconds of this computer. The wheel of ExecuTorch 1.5 records its own
        operators beside them; that of 1.4 is built without ET_EVENT_TRACER_ENABLED, and each delegate call is a block there.

        Raises:
            HostError: loaded without ``etdump=True``, or nothing is recorded, or the file cannot be written.
        """
        target = Path(path)
        partial = target.with_name(f".{target.name}.{os.getpid()}")
        with COUT_LOCK:
            if self._session.program is None:
                raise HostError("the program was loaded without etdump=True.")
            try:
                with self._backend.calling("write an ETDump"):
                    self._session.program.write_etdump_result_to_file(os.fspath(partial), "")
                if not partial.is_file():
                    raise HostError(f"ExecuTorch wrote no {os.fspath(path)}: nothing has run, or it cannot write there.")
                os.replace(partial, target)
            finally:
                partial.unlink(missing_ok=True)

    def inspector(self, etrecord: str | os.PathLike[str] | None = None) -> Any:
        """``executorch.devtools.Inspector`` of what the runs so far have recorded; HostError as of ``write_etdump``.

        Args:
            etrecord: ``etrecord.bin`` of a program's folder, by which the Inspector maps events to operators and modules.
        """
        from executorch.devtools import Inspector  # a second of pandas

        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "program.etdp"
            self.write_etdump(path)
            with quiet():  # it warns of every operator's keyword arguments
                return Inspector(etdump_path=os.fspath(path), etrecord=None if etrecord is None else os.fspath(etrecord))


def load(
    source: str | os.PathLike[str] | bytes,
    method: str | None = None,
    *,
    machine: MachineFactory | None = None,
    trace: Any = None,
    etdump: bool = False,
    sources: Callable[[DelegatePayload, Sequence[tuple[str, bytes]]], npu.Sources] | None = None,
    budget: int | None = None,
) -> HostProgram:
    """Load one method of a .pte, made by ethorch or by ExecuTorch's own Arm backend, with those that share buffers with it.

    Args:
        source: path or contents of the .pte.
        method: which entry point; None is ``forward``, or the first of a file without it.
        machine: makes what each delegate runs on; None takes ``ethorch.npu.Machine``.
        trace: handed to each ``ethorch.npu.Machine``.
        etdump: record profiling events, for ``HostProgram.write_etdump``.
        sources: Returns which operator each command of a delegate works for, given its payload and compile specs;
            ``ethorch.vela.artifacts.reader(folder)`` does. Then faults, traces and profiling events name the operator.
        budget: work units that one run of a delegate may take; see ``ethorch.npu.Machine``, which names what it takes.

    Raises:
        EthorchError: ``sources`` has nothing that belongs to this program.
        ProgramError, PayloadError: there is no such file, or it or a delegate in it is malformed.
        HostError: no such method, no compiler, a backend or operator that this runtime lacks.
    """
    data = bytes(source) if isinstance(source, (bytes, bytearray, memoryview)) else pte.contents(source)
    parsed = pte.read(data)
    methods, method = parsed.methods, pte.entry_point(parsed, method)
    operators: dict[DelegatePayload, npu.Sources] = {}
    if sources is not None:
        for delegate in [delegate for one in together(methods, method).values() for delegate in one.delegates]:
            if delegate.id == BACKEND_ID:
                payload = delegate.payload
                operators[payload] = sources(payload, delegate.compile_specs)

    def usual(payload: DelegatePayload) -> npu.Machine:
        return npu_machine(payload, trace, operators.get(payload), budget)

    def over(payload: DelegatePayload, parsed: npu.Program, regions: Mapping[int, npt.NDArray[np.uint8]]) -> npu.Machine:
        program, staging = _npu_program(payload, parsed)
        return npu.Machine(program, payload.scratch_bytes, staging, regions=regions, budget=budget)

    batches = machine is None and trace is None and not etdump
    session = Session(data, together(methods, method), machine or usual, etdump, over if batches and not operators else None)
    return HostProgram(session, method, usual if batches else None)


def npu_machine(
    payload: DelegatePayload, trace: Any = None, sources: npu.Sources | None = None, budget: int | None = None
) -> npu.Machine:
    """A fresh ``ethorch.npu.Machine`` for a payload; the parsed stream and decoded weights are shared between loads."""
    program, staging = _npu_program(payload)
    return npu.Machine(program, payload.scratch_bytes, staging, trace=trace, sources=sources, budget=budget)


_programs: OrderedDict[tuple[bytes, bytes], tuple[npu.Program, int]] = OrderedDict()
_programs_lock = threading.Lock()


def _npu_program(payload: DelegatePayload, parsed: npu.Program | None = None) -> tuple[npu.Program, int]:
    """The payload's program, and its staging bytes; ``parsed`` is it without constants, where that is there."""
    key = payload.commands, payload.weights  # bytes keep their hash, and a program keeps these bytes
    with _programs_lock:
        if key not in _programs:
            program = parsed.with_constants(payload.weights) if parsed else npu.Program(payload.commands, payload.weights)
            _programs[key] = (program, npu.staging_bytes(program))
            if len(_programs) > _KEPT_PROGRAMS:
                _programs.popitem(last=False)
        _programs.move_to_end(key)
        return _programs[key]


def _tensors(outputs: Sequence[Any]) -> list[Any]:
    return [x.tensor() if isinstance(x, Elements) else x for x in outputs]
