"""Vela command-line flags that ``extra_flags`` supports."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ethorch.support.errors import SpecError, unknown_name
from ethorch.support.wording import shorten


@dataclass(frozen=True)
class Flag:
    """A Vela command-line option (Vela 5.1 and 5.2, vela.py, ``main``).

    Attributes:
        read: Function that parses the value, or raises ValueError with the expected values. None if the option has no value.
        effect: ``used``, or the reason why the option has no effect.
        refused: Reason why the option is not supported, or an empty string.
    """

    read: Callable[[str], Any] | None = None
    effect: str = "used"
    refused: str = ""


def _one_of(*allowed: str) -> Callable[[str], str]:
    def read(text: str) -> str:
        if text not in allowed:
            raise ValueError(f"one of {', '.join(allowed)}" if len(allowed) > 1 else allowed[0])
        return text

    return read


def _integer(low: int, high: int | None = None) -> Callable[[str], int]:
    def read(text: str) -> int:
        allowed = f"an integer of at least {low}" + (f" and at most {high}" if high is not None else "")
        try:
            value = int(text)
        except ValueError:
            raise ValueError(allowed) from None
        if value < low or (high is not None and value > high):
            raise ValueError(allowed)
        return value

    return read


def _alignment(text: str) -> int:
    value = _integer(16)(text)
    if value & (value - 1):
        raise ValueError("a power of two, at least 16")
    return value


def _softmax_range(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < 65535:
        raise ValueError("a number above 0 and below 65535")
    return value


_DRIVER = "it only changes what Vela's command line prints"
_LEGACY = "it applies to Vela's old Python core, which does not support TOSA"
_COMMAND = "it prints information instead of compiling; run vela directly"

FLAGS: Mapping[str, Flag] = {
    "--accelerator-config": Flag(str),
    "--arena-cache-size": Flag(_integer(0)),
    "--config": Flag(str),
    "--cop-format": Flag(_one_of("COP1", "COP2")),
    "--cpu-tensor-alignment": Flag(_alignment),
    "--disable-buffering": Flag(),
    "--disable-cascading": Flag(),
    "--disable-chaining": Flag(),
    "--disable-fwd": Flag(),
    "--disable-ifm-reuse": Flag(),
    "--experimental-softmax-int16-neg-exp-range": Flag(_softmax_range),
    "--memory-mode": Flag(str),
    "--optimise": Flag(_one_of("Performance", "Size")),
    "--output-format": Flag(_one_of("raw"), effect="delegate payloads require the raw format"),
    "--system-config": Flag(str),
    "--tensor-allocator": Flag(_one_of("LinearAlloc", "Greedy", "HillClimb")),
    "--verbose-all": Flag(),
    "--verbose-allocation": Flag(),
    "--verbose-graph": Flag(),
    "--verbose-high-level-command-stream": Flag(),
    "--verbose-quantization": Flag(),
    "--verbose-register-command-stream": Flag(),
    "--verbose-schedule": Flag(),
    # Accepted, but without effect.
    "--debug-force-regor": Flag(effect="TOSA is always compiled by regor"),
    "--enable-debug-db": Flag(effect="the database of operators and command offsets is always enabled"),
    "--force-symmetric-int-weights": Flag(effect=_LEGACY),
    "--hillclimb-max-iterations": Flag(_integer(0), effect=_LEGACY),
    "--ignore-ops": Flag(str, effect="it names TFLite operators; the partitioner selects the operators on the CPU"),
    "--max-block-dependency": Flag(_integer(0, 3), effect=_LEGACY),
    "--output-dir": Flag(str, effect="ethorch does not write Vela's files; see dump_intermediate_artifacts_to()"),
    "--recursion-limit": Flag(_integer(1), effect=_LEGACY),
    "--show-cpu-operations": Flag(effect=_DRIVER),
    "--show-subgraph-io-summary": Flag(effect=_DRIVER),
    "--timing": Flag(effect=_DRIVER),
    "--verbose-config": Flag(effect=_DRIVER),
    "--verbose-cycle-estimate": Flag(effect=_DRIVER),
    "--verbose-operators": Flag(effect=_LEGACY),
    "--verbose-packing": Flag(effect=_LEGACY),
    "--verbose-performance": Flag(effect=_DRIVER),
    "--verbose-progress": Flag(effect=_LEGACY),
    "--verbose-tensor-format": Flag(effect=_LEGACY),
    "--verbose-tensor-purpose": Flag(effect=_LEGACY),
    "--verbose-weights": Flag(effect=_DRIVER),
    # Not supported.
    "--api-version": Flag(refused=_COMMAND),
    "--debug-force-legacy-core": Flag(refused="Vela's old Python core cannot read TOSA; remove the flag"),
    "--help": Flag(refused=_COMMAND),
    "--list-config-files": Flag(refused=_COMMAND),
    "--list-configs": Flag(str, refused=_COMMAND),
    "--separate-io-regions": Flag(
        refused="readers of the delegate payload expect inputs and outputs in the scratch region; remove the flag"
    ),
    "--supported-ops-report": Flag(refused=_COMMAND),
    "--version": Flag(refused=_COMMAND),
}


def parse_flags(extra_flags: str | Sequence[str] | None) -> dict[str, Any]:
    """Parse Vela flags into a dict, e.g. ``{"--optimise": "Size", "--config": ["my.ini"], "--verbose-all": True}``.

    A string, or a list entry such as ``"--optimise Size"``, is split like a shell command. The last value of a repeated flag
    applies, but ``--config`` collects all values.

    Raises:
        SpecError: A flag or value is malformed or not supported.
    """
    words: list[str] = []
    for entry in [extra_flags] if isinstance(extra_flags, str) else list(extra_flags or []):
        if not isinstance(entry, str):
            raise SpecError(f"extra_flags contains {shorten(entry)} of type {type(entry).__name__}; expected strings.")
        try:
            value = not entry.startswith("-") or entry.startswith(("--config=", "--output-dir="))
            words += [entry] if value and not isinstance(extra_flags, str) else shlex.split(entry)
        except ValueError as error:
            raise SpecError(f"extra_flags {shorten(entry)} cannot be split into words: {error}.") from None
    values: dict[str, Any] = {}
    rest = iter(words)
    for word in rest:
        name, equals, text = word.partition("=")
        if not name.startswith("-"):
            raise SpecError(
                f"extra_flags: {shorten(word)} is neither a flag nor a flag's value. If it is the network's file name, remove it, "
                "because ethorch passes the graph to Vela."
            )
        flag = FLAGS.get(name)
        if flag is None:
            raise unknown_name("Vela flag", name, (flag_name for flag_name, row in FLAGS.items() if not row.refused))
        if flag.refused:
            raise SpecError(f"extra_flags: {name} is not supported, because {flag.refused}.")
        if flag.read is None:
            if equals:
                raise SpecError(f"extra_flags: {name} does not accept a value, got {shorten(text)}.")
            values[name] = True
            continue
        argument = text if equals else next(rest, "")
        if not argument or (not equals and argument.startswith("--")):
            raise SpecError(f"extra_flags: {name} requires a value, got {shorten(argument or 'none')}.")
        try:
            read = flag.read(argument)
        except ValueError as error:
            raise SpecError(f"extra_flags: {name} is {shorten(argument)}; expected {error}.") from None
        if name == "--config":
            values.setdefault(name, []).append(read)
        else:
            values[name] = read
    return values
