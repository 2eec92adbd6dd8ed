"""Files that map NPU commands to operators, written by ``dump_intermediate_artifacts_to``.

A .pte cannot contain this information, because firmware rejects payloads with unknown blocks.
"""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Callable, Iterable
from pathlib import Path

from ethorch.formats.files import write_whole
from ethorch.formats.payload import DelegatePayload
from ethorch.npu import Sources
from ethorch.support.errors import EthorchError
from ethorch.support.text_files import read_text
from ethorch.targets.compile_spec import ArmCompileSpec, EthosUCompileSpec
from ethorch.tosa.debug import events
from ethorch.tosa.ir import Graph
from ethorch.tosa.serialize import serialize
from ethorch.tosa.text import to_text
from ethorch.vela import compiler


def write(
    folder: Path,
    graph: Graph,
    tosa: bytes,
    payload: DelegatePayload | None = None,
    sources: Sources | None = None,
    debug: ArmCompileSpec.DebugMode | None = None,
) -> None:
    """Write a delegate's artifacts to ``folder``, under the first unused delegate number.

    Args:
        debug: ``TOSA`` adds source locations to ``delegate_N.tosa``. ``JSON`` writes ``debug.json``, a list of all operators.
    """
    folder.mkdir(parents=True, exist_ok=True)
    delegate = next_delegate(folder)
    if debug is ArmCompileSpec.DebugMode.TOSA:
        tosa = serialize(graph, locations=True)
    elif debug is ArmCompileSpec.DebugMode.JSON:
        _extend(folder / "debug.json", graph, delegate.name)
    for suffix, content in contents(graph, tosa, payload, sources).items():
        write_whole(delegate.with_suffix(suffix), content)


def _extend(file: Path, graph: Graph, delegate: str) -> None:
    old = json.loads(read_text(file)) if file.is_file() and delegate != "delegate_0" else []
    new = [event | {"delegate": delegate} for event in events(graph, len(old))]
    write_whole(file, json.dumps([*old, *new], indent=4).encode())


def contents(graph: Graph, tosa: bytes, payload: DelegatePayload | None, sources: Sources | None) -> dict[str, bytes]:
    artifacts = {".txt": to_text(graph).encode()}
    if payload is not None:
        artifacts[".payload"] = payload.pack()
    if sources is not None:
        artifacts[".sources.json"] = sources.to_json().encode()
    return {**artifacts, ".tosa": tosa}


def next_delegate(folder: Path) -> Path:
    """Return the first path ``folder/delegate_N`` for which no .tosa file exists."""
    number = 0
    while (folder / f"delegate_{number}.tosa").exists():
        number += 1
    return folder / f"delegate_{number}"


def sources(folder: str | os.PathLike[str], payload: DelegatePayload, specs: Iterable[tuple[str, bytes]]) -> Sources:
    """Return the operator of each command of a delegate, from the artifacts in ``folder`` whose payload equals ``payload``.

    Folders written by ``executorch.backends.arm`` contain only TOSA files, which are compiled until a payload matches.

    Raises:
        EthorchError: No artifact matches the payload.
    """
    for path in sorted(Path(folder).rglob("*.payload")):  # each method has its own folder
        if (table := path.with_suffix(".sources.json")).is_file() and DelegatePayload.unpack(path.read_bytes()) == payload:
            return Sources.from_json(read_text(table), str(table))
    recompiled = _recompile(sorted(Path(folder).glob("*.tosa")), payload, specs)
    if recompiled is None:
        raise EthorchError(
            f"{os.fspath(folder)} contains no graphs of this program. Use the folder written by Program.save or by a compile "
            "spec's dump_intermediate_artifacts_to()."
        )
    return recompiled


def reader(folder: str | os.PathLike[str]) -> Callable[[DelegatePayload, Iterable[tuple[str, bytes]]], Sources]:
    return functools.partial(sources, folder)


def _recompile(paths: list[Path], payload: DelegatePayload, specs: Iterable[tuple[str, bytes]]) -> Sources | None:
    if not paths:
        return None
    spec = EthosUCompileSpec.from_pairs(specs)
    for path in paths:
        compiled = compiler.compile(path.read_bytes(), spec)
        if compiled.payload == payload:
            return Sources.from_schedule(compiled.rows())
    return None
