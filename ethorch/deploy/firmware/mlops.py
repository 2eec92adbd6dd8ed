"""Read a ``*.cbuild-mlops.yml`` written by ``cbuild setup``, and write the AI layer of a CMSIS solution.

The CMSIS-Toolbox 2.14 manual, section "MLOps Management", defines the format. Paths are relative to the file's folder.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from ethorch.deploy.firmware.firmware import Project
from ethorch.deploy.firmware.project_program import open_program
from ethorch.deploy.firmware.source import prefix
from ethorch.formats.files import write_folder
from ethorch.support.errors import EthorchError, SpecError
from ethorch.targets.npus import lookup

_ROOT = "cbuild-mlops"
_VALUED = {"--accelerator-config": "target", "--system-config": "system_config", "--memory-mode": "memory_mode"}
MOST_FILE_BYTES = 1 << 20


@dataclass(frozen=True)
class Mlops:
    """The contents of a ``*.cbuild-mlops.yml``.

    Attributes:
        name: C prefix of the model. Default: ``model``.
        system_config, memory_mode: Section names in ``config_ini``.
        config_ini: Path of the Vela configuration file, or None for the default file.
        vela_flags: Additional Vela options.
        clayer: Expected path of the AI layer.
        processor: CPU core, e.g. ``Cortex-M55``.
    """

    name: str
    target: str
    system_config: str | None
    memory_mode: str | None
    config_ini: Path | None
    vela_flags: tuple[str, ...]
    clayer: Path | None
    processor: str


def read_mlops(path: str | os.PathLike[str]) -> Mlops:
    """Read a ``*.cbuild-mlops.yml``.

    Raises:
        EthorchError: The file cannot be read or is invalid.
        SpecError: The NPU is missing or unknown.
    """
    place = Path(path)
    try:
        with open(place, "rb") as file:
            content = file.read(MOST_FILE_BYTES + 1)
        if len(content) > MOST_FILE_BYTES:
            raise EthorchError(f"{place} has more than {MOST_FILE_BYTES:,} bytes. Pass the file written by `cbuild setup`.")
        parsed = yaml.safe_load(content)
    except OSError as error:
        raise EthorchError(f"cannot read {place}: {error.strerror}.") from None
    except (yaml.YAMLError, RecursionError) as error:
        raise EthorchError(f"{place} is not valid YAML: {' '.join(str(error).split())[:200]}.") from None
    root = parsed.get(_ROOT) if isinstance(parsed, dict) else None
    if not isinstance(root, dict):
        raise EthorchError(f"{place} has no key {_ROOT!r}. Pass the NAME.cbuild-mlops.yml written by `cbuild setup`.")
    npu, vela, model, processor = (_node(root, key, place) for key in ("npu", "vela", "model", "processor"))
    options, flags = _options(str(vela.get("options") or ""), place)
    flags = (*flags, *_split(str(vela.get("misc") or ""), "misc", place))
    target = _target(npu, options.get("target"), place)
    ini, clayer = vela.get("ini"), model.get("clayer")
    name = re.sub(r"[^a-z0-9]+", "_", str(model.get("name") or "model").lower()).strip("_")
    return Mlops(
        prefix(name if name[:1].isalpha() else f"model_{name}"),
        target,
        options.get("system_config"),
        options.get("memory_mode"),
        None if ini is None else place.parent / str(ini),
        flags,
        None if clayer is None else place.parent / str(clayer).lstrip("/"),
        str(processor.get("type") or ""),
    )


def make_default(target: str) -> Mlops:
    """Return a target's default ``Mlops``, for use without a ``*.cbuild-mlops.yml``."""
    return Mlops("model", target, None, None, None, (), None, "")


def _node(root: dict[str, Any], key: str, place: Path) -> dict[str, Any]:
    node = root.get(key) or {}
    if not isinstance(node, dict):
        raise EthorchError(f"{place}: expected {key} to be a mapping, got {node!r}.")
    return node


def _split(text: str, key: str, place: Path) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError as error:
        raise EthorchError(f"{place}: cannot parse vela.{key} {text!r} ({error}).") from None


def _options(text: str, place: Path) -> tuple[dict[str, str], tuple[str, ...]]:
    options: dict[str, str] = {}
    others: list[str] = []
    words = iter(_split(text, "options", place))
    for word in words:
        flag, equals, value = word.partition("=")
        if flag not in _VALUED:
            others.append(word)
            continue
        value = value if equals else next(words, "")
        if not value:
            raise EthorchError(f"{place}: expected a value for {flag} in vela.options, got none.")
        options[_VALUED[flag]] = value
    return options, tuple(others)


def _target(npu: dict[str, Any], accelerator: str | None, place: Path) -> str:
    kind, macs = npu.get("type"), npu.get("macs")
    if kind is not None and macs is not None:
        return lookup(f"{kind}-{macs}".lower()).name
    if accelerator is not None:
        return lookup(accelerator.lower()).name
    raise SpecError(
        f"{place} does not identify the NPU: expected npu.type and npu.macs, got {kind!r} and {macs!r}. Add `macs:` under `npu:` "
        "in the csolution's mlops node, and run `cbuild setup` again."
    )


def write_ai_layer(program: Any, folder: str | os.PathLike[str], mlops: Mlops) -> tuple[str, ...]:
    """Write an AI layer and return the paths of its files, relative to the folder.

    The layer contains ``ai_layer.clayer.yml``, the model's sources, ``model_params.h`` and ``REPORT.md``.

    Args:
        program: An ``ethorch.Program``.

    Raises:
        EthorchError: See :func:`ethorch.firmware`.
    """
    record = getattr(program, "_record", None)
    project = Project(open_program(program, "forward" if record is None else record.method, None), mlops.name, "incbin", None)
    files = project.layer(mlops.processor)
    target = Path(folder)
    try:
        write_folder(target, files)
    except OSError as error:
        raise EthorchError(f"cannot write the AI layer to {target}: {error.strerror}.") from None
    return tuple(files)


def convert_to_settings(mlops: Mlops, overridden: Sequence[str] = ()) -> dict[str, Any]:
    """Return keyword arguments for ``Settings.with_``, without the names in ``overridden``."""
    keywords = {
        "target": mlops.target,
        "system_config": mlops.system_config,
        "memory_mode": mlops.memory_mode,
        "config_ini": None if mlops.config_ini is None else str(mlops.config_ini),
        "vela_flags": list(mlops.vela_flags) or None,
    }
    return {key: value for key, value in keywords.items() if value is not None and key not in overridden}
