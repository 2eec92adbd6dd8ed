"""The firmware's UART."""

from __future__ import annotations

from collections.abc import Callable

END = 0x04  # byte that ends a run, as on Arm's FVPs
MOST_BYTES = 1 << 24
# Offset of the register whose bit 0 enables the transmitter.
_ENABLE = {"cmsdk": 0x08, "pl011": 0x30}
# Offsets of the data and status registers, and the constant status: ready to send, nothing received.
_STATUS = {"cmsdk": (0x04, 0x0), "pl011": (0x18, 0x90), "none": (-1, 0)}


class Serial:
    """A UART that accepts every byte immediately. It also collects text printed by semihosting.

    Args:
        kind: ``cmsdk``, ``pl011`` or ``none``.
        on_text: Callback for printed text.
    """

    def __init__(self, kind: str, on_text: Callable[[str], None] | None = None):
        self.ended = False
        self.was_off = False  # whether the firmware printed with the transmitter disabled
        self._status, self._enable = _STATUS[kind], _ENABLE.get(kind)
        self._bytes = bytearray()
        self._on_text = on_text
        self._values: dict[int, int] = {}

    @property
    def text(self) -> str:
        return self._bytes.decode(errors="replace")

    def read(self, offset: int) -> int:
        at, value = self._status
        return value if offset == at else 0 if offset == 0 else self._values.get(offset, 0)

    def write(self, offset: int, value: int) -> None:
        """Write a register. Offset 0 is the data register for every kind of UART."""
        if offset == 0:
            self.was_off |= self._enable is not None and not self._values.get(self._enable, 0) & 1
            self.put(bytes([value & 0xFF]))
        else:
            self._values[offset] = value

    def put(self, content: bytes) -> None:
        """Print bytes up to 0x04, which ends the run. At most MOST_BYTES bytes are stored."""
        if self.ended:
            return
        content, end, _ = content.partition(bytes([END]))
        self.ended = bool(end)
        if len(self._bytes) < MOST_BYTES:
            self._bytes += content
        if self._on_text is not None and content:
            self._on_text(content.decode(errors="replace"))
