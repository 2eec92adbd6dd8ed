"""Read the console output of ``ethorch firmware --probe``, which tests stream passes on a board."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

from ethorch.npu.passes.names import PASSES, UNTESTED
from ethorch.support.errors import SpecError
from ethorch.support.wording import shorten
from ethorch.targets.compile_spec import OPTIMIZED, VELA

_MOST_BYTES = 1 << 24
_TARGET = re.compile(r"\bmodel \w+ for (ethos-u\d+-\d+)")
_PENDING = re.compile(r"\bstream ([\w-]+): pending")
_RESULT = re.compile(r"\bstream ([\w-]+): (\d{1,9}) runs, (\d{1,9}) different")


def read_probe_log(file: Path, target: str) -> str:
    """Return a value of the setting ``stream`` that omits the passes whose streams failed on the board.

    A stream failed if the log reports wrong outputs or no result. Passes in ``UNTESTED`` are omitted unless the log lists them.

    Raises:
        SpecError: The file cannot be read, it is not the log of a probe for ``target``, or Vela's stream failed.
    """
    try:
        with file.open("rb") as opened:
            data = opened.read(_MOST_BYTES)
    except (OSError, ValueError) as error:  # ValueError: NUL in the name
        raise SpecError(f"cannot read the probe's log {str(file)!r}: {getattr(error, 'strerror', error)}.") from None
    text = data.decode("utf-16" if data.startswith((b"\xff\xfe", b"\xfe\xff")) else "utf-8", "replace")
    tested, names = _TARGET.search(text), {name.replace("_", "-") for name in _PENDING.findall(text)}
    if tested is None or not names:
        raise SpecError(f"{file} is not the console output of a probe. Write the firmware with `ethorch firmware --probe`.")
    if tested[1] != target:
        raise SpecError(f"the probe's log {file} is for {tested[1]}, but the target is {target}. Use a probe for {target}.")
    runs, different = Counter[str](), Counter[str]()  # over all boots in the log
    for name, count, failures in _RESULT.findall(text):
        runs[name.replace("_", "-")] += int(count)
        different[name.replace("_", "-")] += int(failures)
    for name in (*names, *runs):
        if name not in (*PASSES, VELA, OPTIMIZED):
            raise SpecError(f"the probe's log {file} lists the unknown stream {shorten(name)}. Use the same version of ethorch.")
    failed = {name for name in (*names, *runs) if not runs[name] or different[name]}
    if VELA in failed:
        raise SpecError(
            f"according to the probe's log {file}, the board failed to run Vela's stream. Check the memory layout and clocks of "
            "the board's firmware first."
        )
    if failed == {OPTIMIZED}:  # only the combination of passes fails
        return VELA
    return ",".join(name for name in PASSES if name not in failed and (name in names or name not in UNTESTED)) or VELA
