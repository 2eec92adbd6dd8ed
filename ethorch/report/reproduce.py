"""The ``ethorch compile`` options that reproduce a program's settings."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from ethorch.targets.settings import Settings

_FLAGS = {
    "target": "--target", "scheme": "--scheme", "io": "--io", "ram": "--ram", "flash": "--flash", "latency_ms": "--latency",
    "min_sqnr_db": "--min-sqnr-db", "board": "--board",
}  # fmt: skip
#: Placeholder for a model that a command line cannot name, e.g. a module created in Python.
MODEL = "MODEL"
_DEFAULTS = Settings().to_json()
_NOT_SET = ("shapes", "modules", "samples")


def options(settings: Mapping[str, Any]) -> list[str]:
    """Return the command-line arguments for the settings in the result of ``Program.to_json``.

    Omit ``shapes``, ``samples``, and default values, except those of ``target`` and ``scheme``. Include only the file name of a
    custom Vela ini file or board.
    """
    words: list[str] = []
    for name, flag in _FLAGS.items():
        value = settings.get(name)
        if value is not None and (value != _DEFAULTS[name] or name in ("target", "scheme")):
            words += [flag, os.path.basename(value) if name == "board" else str(value)]
    for name, default in _DEFAULTS.items():
        value = settings.get(name)
        if name in _FLAGS or name in _NOT_SET or value in (None, default):
            continue
        text = os.path.basename(value) if name == "config_ini" else value if isinstance(value, str) else json.dumps(value)
        words += ["--set", f"{name}={text}"]
    for module, scheme in settings.get("modules", {}).items():
        words += ["--module", f"{module}={scheme}"]
    return words


def command(settings: Mapping[str, Any], model: Sequence[str] = (MODEL,)) -> str:
    """Return the shell command ``ethorch compile MODEL -o model.pte`` with the options.

    Args:
        settings: See :func:`options`.
        model: Arguments that name the model and the calibration samples.
    """
    words = [word if word == MODEL else shlex.quote(word) for word in model]
    return f"ethorch compile {' '.join(words)} -o model.pte {shlex.join(options(settings))}"
