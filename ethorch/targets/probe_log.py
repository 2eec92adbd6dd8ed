"""Read the console output of ``ethorch firmware --probe``, which tests stream passes on a board."""

from __future__ import annotations

import re
from pathlib import Path

from ethorch.npu.passes.names import PASSES
from ethorch.support.errors import SpecError
from ethorch.support.wording import shorten
from ethorch.targets.compile_spec import OPTIMIZED, VELA

_MOST_BYTES = 1 << 24
_TARGET = re.compile(r"\bmodel \w+ for (ethos-u\d+-\d+)")
_STREAMS = re.compile(r"\bstreams: ([\w-]+(?:, [\w-]+)*)")
_RESULT = re.compile(r"\bstream ([\w-]+): (\d+) runs, (\d+) different")


def read_probe_log(file: Path, target: str) -> str:
    """Return the setting ``stream`` that selects the passes whose streams were correct on the board.

    Passes for which the log contains no result are omitted.

    Raises:
        SpecError: The file cannot be read or is not a probe log, the log is from another NPU, or Vela's stream failed.
    """
    try:
        with file.open("rb") as opened:
            text = opened.read(_MOST_BYTES).decode("utf-8", "replace")
    except OSError as error:
        raise SpecError(f"cannot read the probe's log {file}: {error.strerror}.") from None
    tested, streams = _TARGET.search(text), _STREAMS.search(text)
    if tested is None or streams is None:
        raise SpecError(f"{file} is not the console output of a probe. Write the firmware with `ethorch firmware --probe`.")
    if tested[1] != target:
        raise SpecError(f"the probe's log {file} is of {tested[1]}, but the target is {target}. Use a probe for {target}.")
    results = {name.replace("_", "-"): (int(runs), int(different)) for name, runs, different in _RESULT.findall(text)}
    names = streams[1].replace("_", "-").split(", ")
    failed = [name for name in names if results.get(name, (0, 0))[0] == 0 or results[name][1]]
    for name in names:
        if name not in (*PASSES, VELA, OPTIMIZED):
            raise SpecError(f"the probe's log {file} lists the unknown stream {shorten(name)}. Use the same version of ethorch.")
    if VELA in failed:
        raise SpecError(
            f"according to the probe's log {file}, the board failed to run Vela's stream. Check the memory layout and clocks of "
            "the board's firmware first."
        )
    if failed == [OPTIMIZED]:  # only the combination of passes fails
        return VELA
    return ",".join(name for name in PASSES if name not in failed) or VELA
