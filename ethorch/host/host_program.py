"""Runs a .pte on this desk: the real ExecuTorch runtime in this process, our delegate, and the NPU machine.

``bridge`` brings the delegate into the runtime, ``host_checks`` looks at what the runtime would crash on. Operators that
no delegate took run on ExecuTorch's CPU kernels.
"""

from __future__ import annotations

import hashlib
import os
import threading
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ethorch import native
from ethorch import program as programs
from ethorch.bridge import Machine, MachineFactory, the_bridge
from ethorch.errors import HostError
from ethorch.host_checks import check_input, check_kernel_calls, payloads
from ethorch.payload import BACKEND_ID, DelegatePayload

if TYPE_CHECKING:
    from ethorch import npu

_KEPT_PROGRAMS = 8  # parsed command streams, with their decoded weights, kept for further loads of the same payload


class HostProgram:
    """One method of a .pte, ready to be called. Made by ``load``.

    Attributes:
        method: the method's name.
        description: the method as the file describes it: values, inputs, operators, calls.
        delegates: the payload of each Ethos-U delegate, in the order of the file.
    """

    def __init__(
        self, data: bytes, method: str, description: programs.Method, machine: MachineFactory, etdump: bool = False
    ):
        self.method = method
        self.description = description
        self.delegates = payloads(description)
        self._bridge = the_bridge()
        self._running = False
        self._bridge.check_registered(description)
        check_kernel_calls(description)
        with self._bridge.calling(f"load method {method!r}", machine):
            from executorch.runtime import Runtime, Verification

            self._program = Runtime.get().load_program(
                data, verification=Verification.InternalConsistency, enable_etdump=etdump
            )
            self._method = self._program.load_method(method)

    def __call__(self, *inputs: Any) -> list[Any]:
        """Run once. Inputs may be nested as the exported model's were; outputs come flat, as the runtime gives them.

        Raises:
            HostError: another number of inputs, or one of another type, dtype or shape; or a CPU kernel failed.
            MachineFault: the NPU machine stopped.
        """
        flat = _flatten(inputs)
        wanted = [self.description.values[index] for index in self.description.inputs]
        if len(flat) != len(wanted):
            raise HostError(
                f"method {self.method!r} takes {len(wanted)} inputs, found {len(flat)}. It takes: "
                f"{', '.join(map(str, wanted)) or 'none'}."
            )
        ready = [check_input(index, value, spec) for index, (value, spec) in enumerate(zip(flat, wanted, strict=True))]
        with self._bridge.calling(f"run method {self.method!r}"):
            if self._running:
                raise HostError(f"method {self.method!r} was called from inside a run of itself; load it once more for that.")
            self._running = True
            try:
                return list(self._method.execute(ready))
            finally:
                self._running = False

    def write_etdump(self, path: str | os.PathLike[str]) -> None:
        """Write what the runs so far have recorded, for ``executorch.devtools.Inspector``.

        It shows each delegate call as a block of events, one for each NPU operator, in seconds of this desk. The wheel's
        runtime records nothing of its own: it is built without ET_EVENT_TRACER_ENABLED.

        Raises:
            HostError: loaded without ``etdump=True``, or nothing has run, or the file cannot be written.
        """
        with native.REDIRECTING:
            if not self._program._program.has_etdump():
                raise HostError("the program was loaded without etdump=True.")
            with self._bridge.calling("write an ETDump"):
                self._program.write_etdump_result_to_file(os.fspath(path), "")
        if not Path(path).is_file():
            raise HostError(f"ExecuTorch wrote no {os.fspath(path)}: nothing has run, or it cannot write there.")


def load(
    source: str | os.PathLike[str] | bytes,
    method: str = "forward",
    *,
    machine: MachineFactory | None = None,
    trace: Any = None,
    etdump: bool = False,
    sources: str | os.PathLike[str] | None = None,
) -> HostProgram:
    """Load one method of a .pte, made by ethorch or by ExecuTorch's own Arm backend.

    Args:
        source: path or contents of the .pte.
        method: which entry point.
        machine: makes what each delegate runs on; None takes ``ethorch.npu.Machine``.
        trace: handed to each ``ethorch.npu.Machine``.
        etdump: record profiling events, for ``HostProgram.write_etdump``.
        sources: the folder that the compile spec's ``dump_intermediate_artifacts_to`` named, of either backend. Then
            faults, traces and profiling events name the operator a command works for.

    Raises:
        EthorchError: ``sources`` has nothing that belongs to this program.
        ProgramError, PayloadError: the file or a delegate in it is malformed.
        HostError: no such file or method, no compiler, a backend or operator that this runtime lacks.
    """
    if isinstance(source, (bytes, bytearray, memoryview)):
        data = bytes(source)
    else:
        try:
            data = Path(source).read_bytes()
        except OSError as error:
            raise HostError(f"cannot read {os.fspath(source)}: {error.strerror}.") from None
    methods = programs.read(data).methods
    if method not in methods:
        raise HostError(f"the program has no method {method!r}; it has {', '.join(map(repr, sorted(methods)))}.")
    operators: dict[DelegatePayload, npu.Sources] = {}
    if sources is not None:
        from ethorch import dumps

        for delegate in methods[method].delegates:
            if delegate.id == BACKEND_ID:
                payload = DelegatePayload.unpack(delegate.blob)
                operators[payload] = dumps.sources(sources, payload, delegate.compile_specs)

    def usual(payload: DelegatePayload) -> Machine:
        return npu_machine(payload, trace, operators.get(payload))

    return HostProgram(data, method, methods[method], machine or usual, etdump)


def npu_machine(payload: DelegatePayload, trace: Any = None, sources: npu.Sources | None = None) -> Machine:
    """A fresh ``ethorch.npu.Machine`` for a payload; the parsed stream and decoded weights are shared between loads."""
    from ethorch import npu

    program, staging = _npu_program(payload)
    return npu.Machine(program, payload.scratch_bytes, staging, trace=trace, sources=sources)


_programs: OrderedDict[tuple[bytes, bytes], tuple[npu.Program, int]] = OrderedDict()
_programs_lock = threading.Lock()


def _npu_program(payload: DelegatePayload) -> tuple[npu.Program, int]:
    from ethorch import npu

    key = (hashlib.sha256(payload.commands).digest(), hashlib.sha256(payload.weights).digest())
    with _programs_lock:
        if key not in _programs:
            program = npu.Program(payload.commands, payload.weights)
            _programs[key] = (program, npu.staging_bytes(program))
            if len(_programs) > _KEPT_PROGRAMS:
                _programs.popitem(last=False)
        _programs.move_to_end(key)
        return _programs[key]


def _flatten(inputs: Sequence[Any]) -> list[Any]:
    if not any(isinstance(value, (list, tuple, dict)) for value in inputs):
        return list(inputs)
    from torch.utils import _pytree

    return _pytree.tree_leaves(tuple(inputs))
