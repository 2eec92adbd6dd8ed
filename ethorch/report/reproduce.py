"""The options of ``ethorch compile`` that say what the settings of a program say."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

_FLAGS = {
    "target": "--target", "scheme": "--scheme", "io": "--io", "system_config": "--system-config", "memory_mode": "--memory-mode",
    "config_ini": "--config-ini", "ram": "--ram", "flash": "--flash", "latency_ms": "--latency-ms", "min_sqnr_db": "--min-sqnr-db",
    "board": "--board", "arena": "--arena", "constants": "--constants", "partition": "--partition",
}  # fmt: skip
#: Stands for a model that has no name on a command line: one that Python code made.
MODEL = "MODEL"
_DEFAULTS = {"io": "float32", "config_ini": "Arm/vela.ini", "arena": "free", "constants": "flash", "partition": "npu"}


def options(settings: Mapping[str, Any]) -> list[str]:
    """Words of a command line; what has its default is left out, but for the target and the scheme.

    An ini file or board of the user's is named without its folder, which is of another computer.

    Args:
        settings: as ``Program.to_json`` has them.
    """
    words: list[str] = []
    for name, flag in _FLAGS.items():
        value = settings.get(name)
        if value is not None and value != _DEFAULTS.get(name):
            words += [flag, os.path.basename(value) if name in ("config_ini", "board") else str(value)]
    if settings.get("nhwc_io"):
        words.append("--nhwc-io")
    elif settings.get("io_layout") == "auto":
        words += ["--io-layout", "auto"]
    for module, scheme in settings.get("modules", {}).items():
        words += ["--module", f"{module}={scheme}"]
    for flag in settings.get("vela_flags", ()):
        words += ["--vela-flag", flag]
    return words


def command(settings: Mapping[str, Any], model: Sequence[str] = (MODEL,)) -> str:
    """A line for a shell: ``ethorch compile MODEL -o model.pte`` and the options.

    Args:
        settings: as ``Program.to_json`` has them.
        model: what names the model and its samples on a command line, where that is known.
    """
    words = [word if word == MODEL else shlex.quote(word) for word in model]
    return f"ethorch compile {' '.join(words)} -o model.pte {shlex.join(options(settings))}"
