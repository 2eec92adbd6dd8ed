"""The UART that firmware prints on."""

from __future__ import annotations

from collections.abc import Callable

END = 0x04  # what ends a run on Arm's FVPs, and here
MOST_BYTES = 1 << 24
# Offset of the register whose bit 0 switches the transmitter on.
_ENABLE = {"cmsdk": 0x08, "pl011": 0x30}
# Offset of the data register and of the status register, and what the status reads: ready to send, nothing received.
_STATUS = {"cmsdk": (0x04, 0x0), "pl011": (0x18, 0x90), "none": (-1, 0)}


class Serial:
    """A UART that takes every byte at once, and what was printed by semihosting besides.

    Args:
        kind: ``cmsdk``, ``pl011`` or ``none``.
        on_text: called with what is printed, as it comes.
    """

    def __init__(self, kind: str, on_text: Callable[[str], None] | None = None):
        self.ended = False
        self.was_off = False  # did the firmware print without having switched the transmitter on?
        self._status, self._enable = _STATUS[kind], _ENABLE.get(kind)
        self._bytes = bytearray()
        self._on_text = on_text
        self._values: dict[int, int] = {}

    @property
    def text(self) -> str:
        """All that was printed."""
        return self._bytes.decode(errors="replace")

    def read(self, offset: int) -> int:
        """A register's value."""
        at, value = self._status
        return value if offset == at else 0 if offset == 0 else self._values.get(offset, 0)

    def write(self, offset: int, value: int) -> None:
        """Write a register: offset 0 is the data register of all kinds."""
        if offset == 0:
            self.was_off |= self._enable is not None and not self._values.get(self._enable, 0) & 1
            self.put(bytes([value & 0xFF]))
        else:
            self._values[offset] = value

    def put(self, content: bytes) -> None:
        """Print bytes. 0x04 ends the run and is not printed, nor is what follows; of endless prints the first part is kept."""
        if self.ended:
            return
        content, end, _ = content.partition(bytes([END]))
        self.ended = bool(end)
        if len(self._bytes) < MOST_BYTES:
            self._bytes += content
        if self._on_text is not None and content:
            self._on_text(content.decode(errors="replace"))
