"""Methods of a .pte that are loaded together in ExecuTorch's runtime, and their state."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ethorch.formats.payload import DelegatePayload
from ethorch.formats.pte_merge import SHARED_MEMORY
from ethorch.formats.pte_types import Method
from ethorch.runtime.checks import check_kernel_calls, payloads
from ethorch.runtime.delegate import MachineFactory, host_backend
from ethorch.runtime.executor import Executor
from ethorch.runtime.in_place import Buffers, MachineOver, find_persistent_inputs
from ethorch.runtime.traced import Traced
from ethorch.support.errors import HostError


def together(methods: Mapping[str, Method], name: str) -> dict[str, Method]:
    """Return the methods to load with ``name``: all methods that share buffers, if it does.

    Methods without shared buffers are loaded separately, because tensors of different methods overlap in a program's memories.
    """
    if not _shares(methods[name]):
        return {name: methods[name]}
    return {sharing_name: method for sharing_name, method in methods.items() if _shares(method)}


def _shares(method: Method) -> bool:
    return any(value.place is not None and value.place[0] >= SHARED_MEMORY for value in method.values)


class Session:
    """Methods of one .pte in the runtime.

    All are loaded at once, because loading writes initial values of buffers.

    Args:
        data: Contents of the file.
        descriptions: Methods by name.
        machine: Factory of the machine of each delegate.
        etdump: Whether to record events.
        over: Factory of machines that read buffers in place, or None to copy buffers.

    Attributes:
        backend: Backend of the delegates.
        program: ``executorch.runtime.Program`` with ``etdump``, else None.
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
        self._named = {
            key: value for description in descriptions.values() for d in description.delegates for key, value in d.named.items()
        }
        self._running: str | None = None
        for description in self.descriptions.values():
            payloads(description)
            self.backend.check_registered(description)
            check_kernel_calls(description)
        self._over = over
        self._persistent_inputs = {} if over is None else find_persistent_inputs(descriptions.values())
        self._load()

    def _buffers(self, payload: DelegatePayload) -> Buffers | None:
        inputs = self._persistent_inputs.get(payload)
        return None if inputs is None or self._over is None else Buffers(payload, inputs, self._over)

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
        """Reload everything, which restores the initial values of buffers.

        Raises:
            HostError: The call comes from inside a run.
        """
        if self._running is not None:
            raise HostError(f"the program cannot be reset from inside a run of method {self._running!r}.")
        self._load()

    def execute(self, method: str, inputs: list[Any]) -> list[Any]:
        """Run a method. See :meth:`Executor.execute`. Requires ``backend.calling``.

        Raises:
            HostError: The call comes from inside a run of the session, whose methods share memory.
        """
        if self._running is not None:
            raise HostError(
                f"method {method!r} was called from inside a run of {self._running!r}. Load the program again for nested calls."
            )
        self._running = method
        try:
            return self._executor.execute(method, inputs)
        finally:
            self._running = None
