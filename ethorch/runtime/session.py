"""Load methods of a .pte together in ExecuTorch's runtime, with shared mutable buffers."""

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
    """Return the methods to load together with ``name``, including ``name``.

    Methods with shared buffers are loaded together. Other methods are loaded individually, because their tensors overlap in planned
    memory.
    """
    if not _shares(methods[name]):
        return {name: methods[name]}
    return {sharing_name: method for sharing_name, method in methods.items() if _shares(method)}


def _shares(method: Method) -> bool:
    return any(value.place is not None and value.place[0] >= SHARED_MEMORY for value in method.values)


class Session:
    """The methods of one .pte loaded in the runtime.

    Methods are loaded together, because loading a method resets the shared buffers.

    Args:
        machine: Function that creates the machine for each delegate.
        over: Function that creates machines that read buffers in place. Default: buffers are copied.

    Attributes:
        backend: Backend that runs the delegates.
        program: ``executorch.runtime.Program`` if events are recorded, or None.
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
        """Restore the initial values of buffers by loading all methods again.

        Raises:
            HostError: A method is running.
        """
        if self._running is not None:
            raise HostError(f"cannot reset the program while method {self._running!r} is running. Call reset() after the run.")
        self._load()

    def execute(self, method: str, inputs: list[Any]) -> list[Any]:
        """Run a method inside ``backend.calling``. See :meth:`Executor.execute`.

        Raises:
            HostError: A method of the session is already running. Methods share memory, so calls cannot be nested.
        """
        if self._running is not None:
            raise HostError(
                f"cannot call method {method!r} while method {self._running!r} is running. Load the program twice for nested calls."
            )
        self._running = method
        try:
            return self._executor.execute(method, inputs)
        finally:
            self._running = None
