"""A .pte inside ExecuTorch's runtime: the methods that are loaded together, and what they keep from call to call."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ethorch.formats.payload import DelegatePayload
from ethorch.formats.pte_merge import SHARED_MEMORY
from ethorch.formats.pte_types import Method
from ethorch.runtime.checks import check_kernel_calls, payloads
from ethorch.runtime.delegate import MachineFactory, host_backend
from ethorch.runtime.executor import Executor
from ethorch.runtime.in_place import Buffers, MachineOver, kept_inputs
from ethorch.runtime.traced import Traced
from ethorch.support.errors import HostError


def together(methods: Mapping[str, Method], name: str) -> dict[str, Method]:
    """Those methods that have to be loaded with ``name``, itself among them: all that share buffers, if it does.

    The runtime gives the methods of a program one set of memories, as large as the largest asks for. Their own tensors overwrite
    each other there, so methods that share nothing are loaded apart: each keeps its state to itself.
    """
    if not _shares(methods[name]):
        return {name: methods[name]}
    return {other: method for other, method in methods.items() if _shares(method)}


def _shares(method: Method) -> bool:
    return any(value.place is not None and value.place[0] >= SHARED_MEMORY for value in method.values)


class Session:
    """Methods of one .pte in the runtime.

    All are loaded at once: loading writes the initial contents of buffers, and must not do so between two calls.

    Args:
        data: the file.
        descriptions: the methods.
        machine: makes what each delegate runs on.
        etdump: record profiling events.
        over: makes what a delegate runs on that reads buffers where the runtime has them; None: each gets copies.

    Attributes:
        descriptions: the methods, by name.
        backend: the delegates' side of the runtime.
        program: ``executorch.runtime.Program``, with ``etdump``; None without.
    """

    def __init__(
        self,
        data: bytes,
        descriptions: Mapping[str, Method],
        machine: MachineFactory,
        etdump: bool = False,
        over: MachineOver | None = None,
    ):
        self.descriptions = dict(descriptions)
        self.backend = host_backend()
        self._data, self._machine, self._etdump = data, machine, etdump
        self._named = {key: value for one in descriptions.values() for d in one.delegates for key, value in d.named.items()}
        self._running: str | None = None
        for description in self.descriptions.values():
            payloads(description)
            self.backend.check_registered(description)
            check_kernel_calls(description)
        self._over = over
        self._kept = {} if over is None else kept_inputs(descriptions.values())
        self._load()

    def _buffers(self, payload: DelegatePayload) -> Buffers | None:
        kept = self._kept.get(payload)
        return None if kept is None or self._over is None else Buffers(payload, kept, self._over)

    def _load(self) -> None:
        names = ", ".join(map(repr, self.descriptions))
        with self.backend.calling(
            f"load method{'s' * (len(self.descriptions) > 1)} {names}", self._machine, self._named, self._buffers
        ):
            self.program: Any = None
            if self._etdump:
                self._executor: Executor | Traced = Traced(self._data, self.descriptions)
                self.program = self._executor.program
            else:
                self._executor = Executor(self._data, self.descriptions)

    def reset(self) -> None:
        """Load everything anew: buffers get their initial contents.

        Raises:
            HostError: from inside a run.
        """
        if self._running is not None:
            raise HostError(f"the program cannot be reset from inside a run of method {self._running!r}.")
        self._load()

    def execute(self, method: str, inputs: list[Any]) -> list[Any]:
        """Run a method; inputs and outputs are as ``Executor.execute`` has them. Call it within ``backend.calling``.

        Raises:
            HostError: from inside a run of the same session: methods share memory.
        """
        if self._running is not None:
            raise HostError(f"method {method!r} was called from inside a run of {self._running!r}; load it once more for that.")
        self._running = method
        try:
            return self._executor.execute(method, inputs)
        finally:
            self._running = None
