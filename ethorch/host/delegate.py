"""The bridge into ExecuTorch's runtime: a small C++ delegate, registered as "EthosUBackend", that calls back into Python.

``runtime/*.cpp`` is built on first use into a per-user cache. From then on ExecuTorch hands each delegate's payload and
tensors to the library, which hands them on to a machine.
"""

from __future__ import annotations

import atexit
import ctypes
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, cast

from ethorch import native
from ethorch import program as programs
from ethorch.errors import HostError
from ethorch.payload import BACKEND_ID, SCRATCH_REGION, DelegatePayload

if TYPE_CHECKING:
    import numpy as np


class Machine(Protocol):
    """What a delegate is run on: ``ethorch.npu.Machine``, or a stand-in."""

    def region(self, index: int) -> np.ndarray: ...

    def run(self) -> object: ...


class Timed(Machine, Protocol):
    """A machine that knows how long each operator of its last run took."""

    def timeline(self) -> Sequence[tuple[str, float]]: ...


MachineFactory = Callable[[DelegatePayload], Machine]


class _Runner:
    """One delegate inside the runtime: its payload and its machine."""

    def __init__(self, payload: DelegatePayload, machine: Machine):
        self.payload, self.machine = payload, machine
        self.started = 0  # of the last run, in nanoseconds

    def events(self) -> Iterator[tuple[str, int, int]]:
        """(operator, start, end in nanoseconds) of the last run, one after the other."""
        if not hasattr(self.machine, "timeline"):
            return
        start = self.started
        for name, seconds in cast(Timed, self.machine).timeline():
            end = start + int(seconds * 1e9)
            yield name, start, end
            start = end

    def run(self, inputs: Any, outputs: Any) -> None:
        """Copy inputs in, run, copy outputs out. The C++ side has checked the number and size of both."""
        self.started = time.monotonic_ns()
        if not self.payload.scratch_bytes:  # so there are no tensors either
            self.machine.run()
            return
        scratch = self.machine.region(SCRATCH_REGION)
        if scratch.nbytes < self.payload.scratch_bytes or not scratch.flags.c_contiguous:
            raise HostError(
                f"the machine's scratch region has {scratch.nbytes} bytes; the payload needs "
                f"{self.payload.scratch_bytes}."
            )
        base = scratch.ctypes.data
        for index, tensor in enumerate(self.payload.inputs):
            ctypes.memmove(base + tensor.offset, inputs[index], tensor.nbytes)
        self.machine.run()
        for index, tensor in enumerate(self.payload.outputs):
            ctypes.memmove(outputs[index], base + tensor.offset, tensor.nbytes)


class _Calls(threading.local):
    """What happened in the runtime call that this thread is in."""

    def __init__(self) -> None:
        self.depth = 0
        self.machine: MachineFactory | None = None
        self.error: BaseException | None = None
        self.messages: list[str] = []


class Bridge:
    """The loaded library, registered with ExecuTorch, and the delegates that live inside it."""

    _OPEN = ctypes.CFUNCTYPE(ctypes.c_size_t, ctypes.c_void_p, ctypes.c_size_t)
    _RUN = ctypes.CFUNCTYPE(
        ctypes.c_int, ctypes.c_size_t, ctypes.POINTER(ctypes.c_void_p), ctypes.POINTER(ctypes.c_void_p)
    )
    _CLOSE = ctypes.CFUNCTYPE(None, ctypes.c_size_t)
    _REPORT = ctypes.CFUNCTYPE(None, ctypes.c_char_p)
    _SINK = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_uint64, ctypes.c_uint64)
    _EVENTS = ctypes.CFUNCTYPE(None, ctypes.c_size_t, ctypes.c_void_p, ctypes.c_void_p)

    def __init__(self) -> None:
        self.calls = _Calls()
        self.runners: dict[int, _Runner] = {}
        self._next = 1
        self._lock = threading.Lock()
        copies = _executorch_copies()
        self.library = load_library()
        self._callbacks = (
            self._OPEN(self._open),
            self._RUN(self._run),
            self._CLOSE(self._close),
            self._REPORT(self._report),
            self._EVENTS(self._events),
        )
        self.library.ethorch_set_callbacks(*self._callbacks)
        # Delegates may be destroyed after Python is gone.
        atexit.register(self.library.ethorch_set_callbacks, *[None] * len(self._callbacks))
        results = []
        for register_backend, get_pal_impl in copies:
            results.append(self.library.ethorch_register(ctypes.c_void_p(register_backend)))
            self.library.ethorch_set_platform(ctypes.c_void_p(get_pal_impl))
        if not any(result == 0 for result in results):
            raise HostError(
                f"ExecuTorch refused to register {BACKEND_ID} (error codes {results}); another delegate of this name "
                "may already be registered in this process. Use a process without it."
            )

    @contextmanager
    def calling(self, what: str, machine: MachineFactory | None = None) -> Iterator[None]:
        """A call into ExecuTorch: its aborts become exceptions, and the exception of a machine becomes the call's.

        One thread at a time: see ``native.REDIRECTING``.
        """
        with native.REDIRECTING:
            yield from self._calling(what, machine)

    def _calling(self, what: str, machine: MachineFactory | None) -> Iterator[None]:
        calls = self.calls
        before = (calls.machine, calls.error, calls.messages)
        calls.machine, calls.error, calls.messages = machine, None, []
        calls.depth += 1
        self.library.ethorch_guard(1)
        try:
            yield
        except Exception as error:
            if isinstance(error, HostError):
                raise
            if calls.error is not None:
                raise calls.error from None
            said = "; ".join([*dict.fromkeys(calls.messages), str(error).strip().splitlines()[0] if str(error) else ""])
            raise HostError(f"ExecuTorch could not {what}: {said}") from error
        finally:
            calls.depth -= 1
            calls.machine, calls.error, calls.messages = before
            if not calls.depth:
                self.library.ethorch_guard(0)

    def check_registered(self, description: programs.Method) -> None:
        """HostError when the program needs a backend or operator that this runtime does not have."""
        from executorch.runtime import Runtime

        runtime = Runtime.get()
        known = {*runtime.backend_registry.registered_backend_names, BACKEND_ID}
        for delegate in description.delegates:
            if delegate.id not in known:
                have = ", ".join(sorted(known))
                raise HostError(f"the program needs backend {delegate.id!r}; this runtime has {have}.")
        missing = sorted(set(description.operators) - runtime.operator_registry.operator_names)
        if missing:
            raise HostError(
                "the program needs operators that ExecuTorch's desk runtime has no CPU kernel for: "
                f"{', '.join(missing)}."
            )

    def _open(self, address: int, size: int) -> int:
        try:
            factory = self.calls.machine
            if factory is None:
                raise HostError(f"a program with {BACKEND_ID} delegates was loaded without ethorch.host.load.")
            payload = DelegatePayload.unpack(ctypes.string_at(address, size))
            runner = _Runner(payload, factory(payload))
            with self._lock:
                number, self._next = self._next, self._next + 1
                self.runners[number] = runner
            return number
        except BaseException as error:
            self.calls.error = error
            return 0

    def _run(self, number: int, inputs: Any, outputs: Any) -> int:
        try:
            self.runners[number].run(inputs, outputs)
            return 0
        except BaseException as error:
            self.calls.error = error
            return 1

    def _events(self, number: int, sink: int, context: int) -> None:
        give = self._SINK(sink)
        for name, start, end in self.runners[number].events():
            give(context, name.encode(), start, end)

    def _close(self, number: int) -> None:
        self.runners.pop(number, None)

    def _report(self, message: bytes) -> None:
        self.calls.messages.append(message.decode(errors="replace"))


_bridge_lock = threading.Lock()
_bridge: Bridge | None = None


def the_bridge() -> Bridge:
    global _bridge
    with _bridge_lock:
        if _bridge is None:
            _bridge = Bridge()
        return _bridge


def _executorch_copies() -> list[tuple[int, int]]:
    """Addresses of register_backend and get_pal_impl in every copy of ExecuTorch's core in this process.

    Several shared objects of the wheel carry a copy, and which of them the Python bindings use depends on the order of
    imports; registering with each makes the order irrelevant.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # "this API is experimental"
            portable = import_module("executorch.extension.pybindings._portable_lib")
            import_module("executorch.runtime")
            quantized = import_module("executorch.kernels.quantized")
    except ImportError as error:
        raise HostError(
            f"ExecuTorch's desk runtime cannot be imported ({error}): pip install 'executorch==1.4.*'."
        ) from None
    paths: list[str | None] = [None, portable.__file__]
    paths += [str(path) for path in Path(str(quantized.__file__)).parent.glob("*quantized_ops_aot_lib*")]
    names = (
        "_ZN10executorch7runtime16register_backendERKNS0_7BackendE",
        "_ZN10executorch7runtime12get_pal_implEv",
    )
    copies: dict[int, tuple[int, int]] = {}
    for path in paths:
        library = ctypes.CDLL(path)
        try:
            addresses = [ctypes.cast(getattr(library, name), ctypes.c_void_p).value or 0 for name in names]
        except AttributeError:
            continue
        copies[addresses[0]] = (addresses[0], addresses[1])
    if not copies:
        raise HostError("this ExecuTorch exports no register_backend; executorch 1.4 is the release known to work.")
    return list(copies.values())


# ---------------------------------------------------------------------------------------------------------------------
# Building


def build_library() -> Path:
    """The delegate library for the installed ExecuTorch; see ``native.build``."""
    sources = Path(__file__).parent / "runtime"
    include = _executorch_include()
    try:
        executorch_version = version("executorch")
    except PackageNotFoundError:
        executorch_version = "unknown"
    return native.build(
        "host",
        [sources / name for name in ("payload.cpp", "ethosu_backend.cpp", "driver_host.cpp")],
        [
            "-O2",
            "-DC10_USING_CUSTOM_GENERATED_MACROS",
            "-DET_LOG_ENABLED=0",
            f"-I{include}",
            f"-I{include}/executorch/runtime/core/portable_type/c10",
        ],
        headers=[sources / name for name in ("payload.h", "driver.h")],
        depends=executorch_version,
        purpose="ethorch.host",
    )


def load_library() -> ctypes.CDLL:
    library = native.load(build_library)
    library.ethorch_register.restype = ctypes.c_uint32
    library.ethorch_parse.restype = ctypes.c_char_p
    library.ethorch_parse.argtypes = (ctypes.c_char_p, ctypes.c_size_t)
    return library


def _executorch_include() -> Path:
    spec = find_spec("executorch")
    for folder in (spec.submodule_search_locations or []) if spec else []:
        if (include := Path(folder) / "include").is_dir():
            return include
    raise HostError("ExecuTorch's C++ headers were not found: pip install 'executorch==1.4.*'.")
