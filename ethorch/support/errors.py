"""Exceptions of ethorch, and reasons with stable ids.

::

    EthorchError
    ├── SpecError            (also a ValueError)
    ├── UserCodeError
    ├── QuantizationError    (also a ValueError)
    ├── Unsupported
    ├── VelaError
    ├── FormatError          (also a ValueError)
    |   ├── PayloadError
    |   ├── ProgramError
    |   ├── BoardError
    |   └── ElfError
    ├── VerificationError
    ├── MachineFault
    ├── HostError
    └── EmulatorError

``Unsupported`` is collected and reported. Other exceptions raised by a lowering are bugs in ethorch and propagate.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from ethorch.support.wording import did_you_mean, shorten


class EthorchError(Exception):
    """The base class of ethorch's exceptions."""


class SpecError(EthorchError, ValueError):
    """An invalid setting, or an unknown name, e.g. of a target or flag. For an unknown name, the message lists the known names."""


class UserCodeError(EthorchError):
    """An error in user code, or a failed export.

    ``__cause__`` is the original error. The message contains the source line if known.
    """


class QuantizationError(EthorchError, ValueError):
    """An operation that the quantizer does not support, or an invalid argument. ``id`` is stable, e.g. ``calibration.nan``."""

    def __init__(self, id: str, text: str):
        is_sentence = ". " in text and not text.endswith((".", "?", "!"))
        super().__init__(f"{text}{'.' if is_sentence else ''} [{id}]")
        self.id = id

    def __reduce__(self) -> tuple[type, tuple[str, str]]:
        return type(self), (self.id, str(self).removesuffix(f" [{self.id}]"))


class VelaError(EthorchError):
    """A graph that Vela failed to compile.

    Attributes:
        declined: Vela's message for each refused operator, keyed by source location (an Origin).
        too_long: Location of the operator at which the command stream becomes too long.
        lost_output: Whether Vela compiled the graph but omitted an output.
    """

    def __init__(self, text: str, declined: Mapping[Any, str] | None = None, too_long: Any = None, lost_output: bool = False):
        super().__init__(text)
        self.declined = dict(declined or {})
        self.too_long = too_long
        self.lost_output = lost_output


class FormatError(EthorchError, ValueError):
    """A malformed file or blob."""


class PayloadError(FormatError):
    """A malformed delegate payload."""


class ProgramError(FormatError):
    """A malformed .pte file."""


class BoardError(FormatError):
    """An invalid board or board file."""


class ElfError(FormatError):
    """A firmware file that is damaged, is not an ELF file for a Cortex-M, or does not fit the board."""


class MachineFault(EthorchError):
    """An error that stops the NPU simulator: an unknown command, an access outside a region, or a malformed stream.

    Attributes:
        operation: The failed ``npu.stream.Operation``, if known.
        source: The operator (``npu.Source``) that contains the operation, if known.
        image: Index of the sample if several are simulated together.
    """

    operation: Any = None
    source: Any = None
    image: int | None = None

    def of_image(self, image: int) -> MachineFault:
        """Return a copy of this fault that identifies a sample."""
        fault = MachineFault(f"input {image}: {self}")
        fault.operation, fault.source, fault.image, fault.__cause__ = self.operation, self.source, image, self
        return fault


class VerificationError(EthorchError):
    """A compiled delegate that cannot run, or whose outputs differ from those of its TOSA graph.

    Attributes:
        operator: First operator that fails or has a wrong result, with its source location, or "".
        value: Name of this operator's result in the rewritten TOSA graph, or "" if a rewrite changed the graph's outputs.
    """

    def __init__(self, text: str, operator: str = "", value: str = ""):
        super().__init__(text)
        self.operator, self.value = operator, value

    def __reduce__(self) -> tuple[type, tuple[str, str, str]]:
        return type(self), (str(self), self.operator, self.value)


class HostError(EthorchError):
    """An error of the host runtime: a missing compiler, wrong inputs, or an error in ExecuTorch."""


class EmulatorError(EthorchError):
    """A missing or failed emulator or FVP of a virtual board."""


@dataclass(frozen=True)
class Reason:
    """The reason why an operator runs on the CPU.

    Attributes:
        id: Stable dotted id, e.g. ``AVG_POOL2D.stride`` or ``convolution.transposed_dilation``.
        text: One sentence with the actual and the allowed values.
        remedy: Sentence that states how to avoid the refusal.
    """

    id: str
    text: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.text} [{self.id}] {self.remedy}"


class Unsupported(EthorchError):
    """The error for a refused operator. Partitioning reports it, and ``preprocess`` raises it.

    Attributes:
        place: Source location of the operator (an Origin), or None.
    """

    place: Any = None

    def __init__(self, reason: Reason):
        super().__init__(str(reason))
        self.reason = reason


def unknown_name(kind: str, name: str, names: Iterable[str]) -> SpecError:
    """Create a SpecError for an unknown name. The message suggests similar names and lists all known names."""
    options = sorted(names)
    return SpecError(f"unknown {kind} {shorten(name)}.{did_you_mean(name[:99], options)} Known: {', '.join(options)}.")
