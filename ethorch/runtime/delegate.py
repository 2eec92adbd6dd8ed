"""The C++ backend "EthosUBackend" of ExecuTorch's runtime, which calls Python to run delegates.

The C++ library passes the payload and the tensors of each delegate to a machine, which executes the NPU commands.
"""

from __future__ import annotations

import atexit
import ctypes
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Protocol, cast

import numpy.typing as npt

from ethorch.formats.payload import BACKEND_ID, SCRATCH_REGION, DelegatePayload
from ethorch.formats.pte_types import Method
from ethorch.runtime.executor import backend_names, operator_names
from ethorch.runtime.in_place import Buffers
from ethorch.runtime.library import executorch_copies, load_backends, load_library
from ethorch.runtime.many import Recording
from ethorch.support.errors import HostError
from ethorch.support.redirect import COUT_LOCK


class Machine(Protocol):
    """The interface of an object that executes a payload, such as ``ethorch.npu.Machine``."""

    def region(self, index: int) -> npt.NDArray[Any]: ...

    def run(self) -> object: ...


class Timed(Machine, Protocol):
    """A machine that measures the time of each operator in the last run."""

    def timeline(self) -> Sequence[tuple[str, float]]: ...


MachineFactory = Callable[[DelegatePayload], Machine]

_DONE = 1  # result of a successful run; a callback that raises an exception returns a different value


class Delegate:
    """A loaded delegate, with its machine and the persistent buffers to read in place."""

    def __init__(self, payload: DelegatePayload, machine: Machine, buffers: Buffers | None = None):
        self.payload, self.machine, self.buffers = payload, machine, buffers
        self.started = 0  # time in nanoseconds
        self._ran = machine

    def events(self) -> Iterator[tuple[str, int, int]]:
        """Iterate over the operators of the last run as tuples (operator, start, end), with times in nanoseconds."""
        if not hasattr(self._ran, "timeline"):
            return
        start = self.started
        for name, seconds in cast(Timed, self._ran).timeline():
            end = start + int(seconds * 1e9)
            yield name, start, end
            start = end

    def run(self, inputs: Any, outputs: Any) -> None:
        """Copy the inputs to the machine, run it, and copy the outputs back. The C++ library has already checked the tensors."""
        self.started = time.monotonic_ns()
        if not self.payload.scratch_bytes:  # a delegate that has no scratch region has no inputs and outputs
            self.machine.run()
            return
        reader = None if self.buffers is None else self.buffers.reader(inputs)
        self._ran, in_place = (self.machine, frozenset[int]()) if reader is None else reader
        scratch = self._ran.region(SCRATCH_REGION)
        if scratch.nbytes < self.payload.scratch_bytes or not scratch.flags.c_contiguous:
            raise HostError(f"expected a scratch region of {self.payload.scratch_bytes} contiguous bytes, got {scratch.nbytes}.")
        base = scratch.ctypes.data
        for index, tensor in enumerate(self.payload.inputs):
            if index not in in_place:
                ctypes.memmove(base + tensor.offset, inputs[index], tensor.nbytes)
        self._ran.run()
        for index, tensor in enumerate(self.payload.outputs):
            ctypes.memmove(outputs[index], base + tensor.offset, tensor.nbytes)


class _Calls(threading.local):
    def __init__(self) -> None:
        self.depth = 0
        self.machine: MachineFactory | None = None
        self.buffers: Callable[[DelegatePayload], Buffers | None] | None = None
        self.named: Mapping[str, bytes] = {}
        self.error: BaseException | None = None
        self.messages: list[str] = []
        self.recording: Recording | None = None


class HostBackend:
    """The C++ library registered with ExecuTorch, and all loaded delegates."""

    _OPEN = ctypes.CFUNCTYPE(ctypes.c_size_t, ctypes.c_void_p, ctypes.c_size_t)
    _RUN = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_size_t, ctypes.POINTER(ctypes.c_void_p), ctypes.POINTER(ctypes.c_void_p))
    _CLOSE = ctypes.CFUNCTYPE(None, ctypes.c_size_t)
    _REPORT = ctypes.CFUNCTYPE(None, ctypes.c_char_p)
    _SINK = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_uint64, ctypes.c_uint64)
    _EVENTS = ctypes.CFUNCTYPE(None, ctypes.c_size_t, ctypes.c_void_p, ctypes.c_void_p)

    def __init__(self) -> None:
        self.calls = _Calls()
        self.delegates: dict[int, Delegate] = {}
        self._next = 1
        self._lock = threading.Lock()
        self._copies = copies = executorch_copies()
        self.library = load_library()
        self._callbacks = (
            self._OPEN(self._open),
            self._RUN(self._run),
            self._CLOSE(self._close),
            self._REPORT(self._report),
            self._EVENTS(self._events),
        )
        self.library.ethorch_set_callbacks(*self._callbacks)
        # Delegates can be destroyed after the Python interpreter has ended.
        atexit.register(self.library.ethorch_set_callbacks, *[None] * len(self._callbacks))
        results = []
        for core in copies:
            results.append(self.library.ethorch_register(ctypes.c_void_p(core.register_backend)))
            if core.register_kernels and core.get_registered_kernels:
                kernels = (ctypes.c_void_p(core.get_registered_kernels), ctypes.c_void_p(core.register_kernels))
                self.library.ethorch_register_kernels(*kernels)
                self.library.ethorch_saturate_quantize(kernels[0])
        if not any(result == 0 for result in results):
            raise HostError(
                f"ExecuTorch did not register {BACKEND_ID} (error codes {results}). A different delegate with this name is "
                f"probably registered. Use a process in which no other {BACKEND_ID} is loaded."
            )

    @contextmanager
    def calling(
        self,
        action: str,
        machine: MachineFactory | None = None,
        named: Mapping[str, bytes] | None = None,
        buffers: Callable[[DelegatePayload], Buffers | None] | None = None,
    ) -> Iterator[None]:
        """Convert aborts inside ExecuTorch to exceptions, and propagate exceptions raised in callbacks.

        Only one thread at a time can be inside the context. See ``ethorch.support.redirect``.

        Args:
            action: Verb phrase for error messages, e.g. ``load method 'forward'``.
            machine: Function that creates the machine for a payload. Required to load delegates.
            named: Named data of the program. Required to load delegates.
            buffers: Function that returns the persistent buffers that a delegate reads in place. Default: all buffers are copied.
        """
        with COUT_LOCK, self._store_escaped_errors():
            yield from self._run_call(action, machine, named or {}, buffers)

    def _run_call(
        self,
        action: str,
        machine: MachineFactory | None,
        named: Mapping[str, bytes],
        buffers: Callable[[DelegatePayload], Buffers | None] | None,
    ) -> Iterator[None]:
        calls = self.calls
        previous = (calls.depth, calls.machine, calls.named, calls.buffers, calls.error, calls.messages)
        try:
            calls.depth, calls.machine, calls.named, calls.buffers = calls.depth + 1, machine, named, buffers
            calls.error, calls.messages = None, []
            for core in self._copies:
                self.library.ethorch_set_platform(ctypes.c_void_p(core.get_pal_impl))
            self.library.ethorch_guard(1)
            yield
            if calls.error is not None:  # raised in a callback that does not return an error code
                raise calls.error
        except Exception as error:
            if calls.error is not None:
                raise calls.error from None
            if isinstance(error, HostError):
                raise
            details = "; ".join([*dict.fromkeys(calls.messages), str(error).strip().splitlines()[0] if str(error) else ""])
            raise HostError(f"ExecuTorch failed to {action}: {details}") from error
        finally:
            calls.depth, calls.machine, calls.named, calls.buffers, calls.error, calls.messages = previous
            if not calls.depth:
                self.library.ethorch_guard(0)

    @contextmanager
    def _store_escaped_errors(self) -> Iterator[None]:
        """Store exceptions that escape from a callback. Python passes them only to ``sys.unraisablehook``."""
        # If a signal such as Ctrl-C arrives in C++ code, Python handles it at the start of the next callback, outside the
        # callback's ``try`` block.
        previous_hook = sys.unraisablehook

        def store(unraisable: sys.UnraisableHookArgs) -> None:
            is_own = f"{type(self).__name__}._" in f"{unraisable.err_msg} {unraisable.object}"
            if is_own and self.calls.depth:
                self.calls.error = self.calls.error or unraisable.exc_value
            else:
                previous_hook(unraisable)

        sys.unraisablehook = store
        try:
            yield
        finally:
            sys.unraisablehook = previous_hook

    def check_registered(self, description: Method) -> None:
        """Check that the runtime has all backends and operators that the program requires.

        Raises:
            HostError: A backend or an operator is missing.
        """
        available = {*backend_names(), BACKEND_ID}
        if any(delegate.id not in available for delegate in description.delegates):
            load_backends()
            available |= backend_names()
        for delegate in description.delegates:
            if delegate.id not in available:
                names = ", ".join(sorted(available))
                raise HostError(f"the program requires the backend {delegate.id!r}, but the runtime has only {names}.")
        missing = sorted(set(description.operators) - operator_names())
        if missing:
            raise HostError(
                f"the program requires operators for which ExecuTorch's runtime has no CPU kernel: {', '.join(missing)}."
            )

    def _open(self, address: int, size: int) -> int:
        try:
            factory = self.calls.machine
            if factory is None:
                raise HostError(
                    f"a program with {BACKEND_ID} delegates was not loaded by ethorch.runtime. Use ethorch.runtime.load."
                )
            payload = DelegatePayload.unpack(ctypes.string_at(address, size), self.calls.named)
            buffers = None if self.calls.buffers is None else self.calls.buffers(payload)
            delegate = Delegate(payload, factory(payload), buffers)
            with self._lock:
                number, self._next = self._next, self._next + 1
                self.delegates[number] = delegate
            return number
        except BaseException as error:
            self.calls.error = error
            return 0

    def _run(self, number: int, inputs: Any, outputs: Any) -> int:
        try:
            delegate, recording = self.delegates[number], self.calls.recording
            if recording is None:
                delegate.run(inputs, outputs)
            else:
                recording.call(number, delegate.payload, inputs, outputs)
            return _DONE
        except BaseException as error:
            self.calls.error = error
            return 0

    def _events(self, number: int, sink: int, context: int) -> None:
        add_event = self._SINK(sink)
        for name, start, end in self.delegates[number].events():
            add_event(context, name.encode(), start, end)

    def _close(self, number: int) -> None:
        self.delegates.pop(number, None)

    def _report(self, message: bytes) -> None:
        self.calls.messages.append(message.decode(errors="replace"))


_registering = threading.Lock()
_registered: HostBackend | None = None


def host_backend() -> HostBackend:
    """Return the backend of this process. The first call builds and registers the backend.

    Raises:
        HostError: A compiler or ExecuTorch is missing, or ExecuTorch does not register the backend.
    """
    global _registered
    with _registering:
        if _registered is None:
            _registered = HostBackend()
        return _registered
