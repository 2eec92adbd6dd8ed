"""The error tree, and the stable ids that name a refusal.

::

    EthorchError
    ├── SpecError            a target, system config, memory mode or flag nobody knows     (also a ValueError)
    ├── UserCodeError        the user's own code failed: a factory, a model's forward; its cause is the error
    ├── QuantizationError    the quantizer was asked for what it cannot do                 (also a ValueError)
    ├── Unsupported          a refusal: an operator a target cannot run; holds its Reason
    ├── VelaError            Vela declined a graph; holds Vela's own words
    ├── FormatError          a file or blob from outside is malformed                      (also a ValueError)
    │   ├── PayloadError     the delegate payload
    │   ├── ProgramError     the .pte
    │   ├── BoardError       a board's TOML file: line and key
    │   └── ElfError         firmware that is no ELF file for a Cortex-M, or does not fit the board
    ├── VerificationError    a compiled delegate computes something else than its TOSA graph; holds the operator
    ├── MachineFault         the NPU simulator stopped: command, offset, registers
    ├── HostError            the host runtime: no compiler, wrong inputs, ExecuTorch refused to load
    └── EmulatorError        a virtual board cannot run here: no emulator, no FVP

``Unsupported`` is an answer, collected and reported. Anything else raised by a lowering is a bug of ethorch and propagates.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from ethorch.support.wording import did_you_mean, shown


class EthorchError(Exception):
    """Base of everything ethorch raises on purpose."""


class SpecError(EthorchError, ValueError):
    """A compile specification names something unknown; the message lists what is known."""


class UserCodeError(EthorchError):
    """The user's own code failed, or cannot be exported; ``__cause__`` is what it raised, the message names its line."""


class QuantizationError(EthorchError, ValueError):
    """The quantizer was asked for something it cannot do.

    Attributes:
        id: stable dotted name of what went wrong, e.g. ``calibration.nan``; the message ends with it.
    """

    def __init__(self, id: str, text: str):
        super().__init__(f"{text} [{id}]")
        self.id = id

    def __reduce__(self) -> tuple[type, tuple[str, str]]:
        return type(self), (self.id, str(self).removesuffix(f" [{self.id}]"))


class VelaError(EthorchError):
    """Vela declined a graph.

    Attributes:
        declined: what it declined, as far as that is known: place in the user's code (an Origin) -> Vela's words.
        too_long: the place among those with which the command stream became too long, where everything before it is short enough.
        lost_output: it compiled the graph, and left an output out.
    """

    def __init__(self, text: str, declined: Mapping[Any, str] | None = None, too_long: Any = None, lost_output: bool = False):
        super().__init__(text)
        self.declined = dict(declined or {})
        self.too_long = too_long
        self.lost_output = lost_output


class FormatError(EthorchError, ValueError):
    """A file or blob from outside is malformed."""


class PayloadError(FormatError):
    """The delegate payload is malformed."""


class ProgramError(FormatError):
    """The .pte file is malformed."""


class BoardError(FormatError):
    """A board's TOML file is wrong; the message names line and key, what was found and what is allowed."""


class ElfError(FormatError):
    """The firmware is no ELF file for a Cortex-M, is damaged, or does not fit the board."""


class MachineFault(EthorchError):
    """The NPU simulator stopped: unknown command, access outside a region, malformed stream.

    Attributes:
        operation: the ``npu.stream.Operation`` that it stopped at, where that is known.
        source: the operator (``npu.Source``) that the operation works for, where that is known.
        image: which of many inputs it was, where there were many.
    """

    operation: Any = None
    source: Any = None
    image: int | None = None

    def of_image(self, image: int) -> MachineFault:
        """The same fault of the input of this number."""
        fault = MachineFault(f"input {image}: {self}")
        fault.operation, fault.source, fault.image, fault.__cause__ = self.operation, self.source, image, self
        return fault


class VerificationError(EthorchError):
    """A compiled delegate computes something else than its TOSA graph, or cannot run.

    Attributes:
        operator: The first operator that differs, with its place in the user's code; empty if it could not be found.
        value: Name of its result in the rewritten TOSA graph; empty if a rewrite changed it.
    """

    def __init__(self, text: str, operator: str = "", value: str = ""):
        super().__init__(text)
        self.operator, self.value = operator, value

    def __reduce__(self) -> tuple[type, tuple[str, str, str]]:
        return type(self), (str(self), self.operator, self.value)


class HostError(EthorchError):
    """The host runtime cannot be built, loaded or called that way."""


class EmulatorError(EthorchError):
    """A virtual board cannot run here: the emulator or FVP is not installed, or does not do what is asked of it."""


@dataclass(frozen=True)
class Reason:
    """Why an operator is not on the NPU.

    Attributes:
        id: stable dotted name, e.g. ``AVG_POOL2D.stride`` (a limits row) or ``convolution.transposed_dilation``.
        text: one sentence: what was found, what is allowed.
        way_out: what the user can do about it: an operator that could replace it, a setting that allows it, a target that has it.
    """

    id: str
    text: str
    way_out: str

    def __str__(self) -> str:
        return f"{self.text} [{self.id}] {self.way_out}"


class Unsupported(EthorchError):
    """A refusal. The walk turns it into a partition report entry; ``preprocess`` lets it propagate.

    Attributes:
        place: The operator's place in the user's code (an Origin), if a delegate's lowering refused it.
    """

    place: Any = None

    def __init__(self, reason: Reason):
        super().__init__(str(reason))
        self.reason = reason


def unknown_name(kind: str, name: str, known: Iterable[str]) -> SpecError:
    """SpecError for a name nobody knows: the name, near misses, and the whole list of known ones."""
    names = sorted(known)
    return SpecError(f"unknown {kind} {shown(name)}.{did_you_mean(name[:99], names)} Known: {', '.join(names)}.")
