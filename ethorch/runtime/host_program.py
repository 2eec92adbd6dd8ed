"""Run programs in this process, with ExecuTorch's runtime, ethorch's EthosUBackend and the NPU simulator.

ExecuTorch's CPU kernels compute operators outside delegates.
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

_CACHED_PROGRAMS = 8  # maximum number of cached command streams with decoded weights


class HostProgram:
    """A callable method of a .pte, returned by ``load``.

    Methods that share mutable buffers are loaded together. For example, ``program["decode"]`` shares the buffers of ``program``.

    Attributes:
        methods: Names of the methods that were loaded together.
        description: Parsed description of the method: values, inputs, operators and calls.
        delegates: Payload of each Ethos-U delegate, in file order.
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
        """Return another method that was loaded together with this method.

        Raises:
            HostError: A method with this name was not loaded together with this method.
        """
        if method not in self.methods:
            raise HostError(
                f"expected a method that was loaded together with {self.method!r} ({', '.join(map(repr, self.methods))}), "
                f"got {method!r}. Use ethorch.runtime.load(path, method) for methods that do not share buffers."
            )
        return HostProgram(self._session, method, self._batch_machine)

    def reset(self) -> None:
        """Restore the initial values of mutable buffers, in all methods that share them."""
        self._session.reset()

    def __call__(self, *inputs: Any) -> list[Any]:
        """Run the method once, and return the flattened outputs as PyTorch tensors.

        Args:
            inputs: Tensors or NumPy arrays, flattened or nested like the inputs of the exported model.

        Raises:
            HostError: The number, type, dtype or shape of the inputs is wrong, or a CPU kernel failed.
            MachineFault: The command stream is invalid.
        """
        return _to_tensors(self._execute(self._prepare_inputs(inputs)))

    def arrays(self, *inputs: Any) -> list[Any]:
        """Run the method once without importing torch, and return the flattened outputs as NumPy arrays."""
        return [x.array() if isinstance(x, Elements) else x for x in self._execute(self._prepare_inputs(inputs))]

    def run_many(self, samples: Iterable[Sequence[Any]], threads: int | None = None) -> list[list[Any]]:
        """Run the method once for each sample, simulating the NPU for several samples at a time.

        Results equal those of separate calls. CPU operators always process one sample at a time. So do delegates if results can
        depend on previous calls (``many.keeps_state``), if a command stream has branches, or if the network is small or has more
        than eight delegates. Programs loaded with ``machine``, ``trace`` or ``etdump`` also process one sample at a time.

        Args:
            samples: Tuple or list of inputs for each call.
            threads: Number of simulator threads. Default: the number of available CPUs.

        Raises:
            HostError: See :meth:`__call__`.
            MachineFault: The command stream is invalid. ``image`` is the sample's index if samples are simulated
                together.
        """
        ready = [self._prepare_inputs(sample) for sample in samples]
        machine = self._batch_machine
        if machine is None or not self._should_batch:
            return [_to_tensors(self._execute(inputs)) for inputs in ready]
        io_bytes = sum(tensor.nbytes for payload in self.delegates for tensor in (*payload.inputs, *payload.outputs))
        batch_size = max(1, min(many.MOST_INPUTS, many.BATCH_BYTES // max(io_bytes, 1)))
        results: list[list[Any]] = []
        for first in range(0, len(ready), batch_size):
            recordings = [many.Recording(first + k, inputs) for k, inputs in enumerate(ready[first : first + batch_size])]
            many.run_batch(recordings, self._record, lambda number: self._backend.delegates[number].payload, machine, threads)
            for recording in recordings:
                assert recording.result is not None
                results.append(_to_tensors(recording.result))
        return results

    @cached_property
    def _should_batch(self) -> bool:
        if not 0 < len(self.delegates) <= many.MOST_DELEGATES or many.keeps_state(self.description):
            return False
        programs = [_npu_program(payload)[0] for payload in self.delegates]
        return not any(p.has_branches for p in programs) and sum(p.work for p in programs) >= many.LEAST_WORK

    def _record(self, recording: many.Recording) -> None:
        recording.start()
        with suppress(many.Paused):
            recording.result = self._execute(recording.inputs, recording)

    def _prepare_inputs(self, inputs: Sequence[Any]) -> list[Any]:
        flat = trees.leaves(inputs)
        specs = [self.description.values[index] for index in self.description.inputs]
        if len(flat) != len(specs):
            raise HostError(
                f"method {self.method!r}: expected {count_noun(len(specs), 'input')} ({', '.join(map(str, specs)) or 'none'}), "
                f"got {len(flat)}."
            )
        return [check_input(index, value, spec) for index, (value, spec) in enumerate(zip(flat, specs, strict=True))]

    def _execute(self, ready: list[Any], recording: many.Recording | None = None) -> list[Any]:
        with self._backend.calling(f"run method {self.method!r}"):
            previous, self._backend.calls.recording = self._backend.calls.recording, recording
            try:
                return self._session.execute(self.method, ready)
            finally:
                self._backend.calls.recording = previous

    def write_etdump(self, path: str | os.PathLike[str]) -> None:
        """Write the recorded events to a file for ``executorch.devtools.Inspector``.

        The events contain the simulation time of the NPU operators in each delegate call. Only ExecuTorch 1.5 records CPU
        operators.

        Raises:
            HostError: The program was loaded without ``etdump=True``, no events were recorded, or the file cannot be written.
        """
        target = Path(path)
        partial = target.with_name(f".{target.name}.{os.getpid()}")
        with COUT_LOCK:
            if self._session.program is None:
                raise HostError(
                    "writing an ETDump requires a program loaded with etdump=True. Use ethorch.runtime.load(..., etdump=True)."
                )
            try:
                with self._backend.calling("write an ETDump"):
                    self._session.program.write_etdump_result_to_file(os.fspath(partial), "")
                if not partial.is_file():
                    raise HostError(
                        f"ExecuTorch did not write {os.fspath(path)}. Run the program first, and check that the file is writable."
                    )
                os.replace(partial, target)
            finally:
                partial.unlink(missing_ok=True)

    def inspector(self, etrecord: str | os.PathLike[str] | None = None) -> Any:
        """Return an ``executorch.devtools.Inspector`` for the recorded events.

        Args:
            etrecord: Path of ``etrecord.bin`` in a program folder. The file maps events to operators.

        Raises:
            HostError: See :meth:`write_etdump`.
        """
        from executorch.devtools import Inspector  # importing pandas takes 1 s

        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "program.etdp"
            self.write_etdump(path)
            with quiet():  # Inspector warns about keyword arguments of operators
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
    """Load a method, and all methods that share its buffers, from a .pte compiled by ethorch or ExecuTorch's Arm backend.

    Args:
        source: Path or contents of the .pte.
        method: Method name. Default: ``forward``, or the first method of a file without ``forward``.
        machine: Function that creates the machine for each delegate. Default: ``ethorch.npu.Machine``.
        trace: Function called with a ``Trace`` after each NPU operation.
        etdump: Whether to record events for ``HostProgram.write_etdump``.
        sources: Function that receives a payload and its compile specs and returns the operator of each command, e.g.
            ``ethorch.vela.artifacts.reader(folder)``. Faults, traces and events then contain operator names.
        budget: Maximum work units for each run of a delegate. See ``ethorch.npu.Machine``.

    Raises:
        EthorchError: ``sources`` has no data for this program.
        ProgramError, PayloadError: The file does not exist, or the file or a delegate is malformed.
        SpecError: The method does not exist.
        HostError: A compiler, a backend or an operator is missing.
    """
    data = bytes(source) if isinstance(source, (bytes, bytearray, memoryview)) else pte.contents(source)
    parsed = pte.read(data)
    methods, method = parsed.methods, pte.entry_point(parsed, method)
    operators: dict[DelegatePayload, npu.Sources] = {}
    if sources is not None:
        for delegate in [delegate for description in together(methods, method).values() for delegate in description.delegates]:
            if delegate.id == BACKEND_ID:
                payload = delegate.payload
                operators[payload] = sources(payload, delegate.compile_specs)

    def create_machine(payload: DelegatePayload) -> npu.Machine:
        return npu_machine(payload, trace, operators.get(payload), budget)

    def create_machine_over(
        payload: DelegatePayload, parsed: npu.Program, regions: Mapping[int, npt.NDArray[np.uint8]]
    ) -> npu.Machine:
        program, staging = _npu_program(payload, parsed)
        return npu.Machine(program, payload.scratch_bytes, staging, regions=regions, budget=budget)

    can_batch = machine is None and trace is None and not etdump
    session = Session(
        data,
        together(methods, method),
        machine or create_machine,
        etdump,
        create_machine_over if can_batch and not operators else None,
    )
    return HostProgram(session, method, create_machine if can_batch else None)


def npu_machine(
    payload: DelegatePayload, trace: Any = None, sources: npu.Sources | None = None, budget: int | None = None
) -> npu.Machine:
    """Create an ``ethorch.npu.Machine`` for a payload. The parsed command stream and the decoded weights are cached."""
    program, staging = _npu_program(payload)
    return npu.Machine(program, payload.scratch_bytes, staging, trace=trace, sources=sources, budget=budget)


_programs: OrderedDict[tuple[bytes, bytes], tuple[npu.Program, int]] = OrderedDict()
_programs_lock = threading.Lock()


def _npu_program(payload: DelegatePayload, parsed: npu.Program | None = None) -> tuple[npu.Program, int]:
    key = payload.commands, payload.weights  # hashes of bytes are cached, and the program refers to the same bytes objects
    with _programs_lock:
        if key not in _programs:
            program = parsed.with_constants(payload.weights) if parsed else npu.Program(payload.commands, payload.weights)
            _programs[key] = (program, npu.staging_bytes(program))
            if len(_programs) > _CACHED_PROGRAMS:
                _programs.popitem(last=False)
        _programs.move_to_end(key)
        return _programs[key]


def _to_tensors(outputs: Sequence[Any]) -> list[Any]:
    return [x.tensor() if isinstance(x, Elements) else x for x in outputs]
