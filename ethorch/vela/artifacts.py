"""What ``dump_intermediate_artifacts_to`` leaves in a folder, and the way back: which operator each NPU command works for.

A .pte has no place for that: firmware refuses payloads with blocks it does not know.
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
    """Write one delegate's artifacts under the first free number in ``folder``, each file whole or not at all.

    ``delegate_N.tosa`` comes last: a number that an interrupted call has left without it is free.

    Args:
        folder: made if need be.
        graph, tosa: the TOSA as text and as a flatbuffer.
        payload, sources: what firmware gets, and which operator each of its commands works for; None writes none.
        debug: ``TOSA`` gives the operators in ``delegate_N.tosa`` locations. ``JSON`` writes ``debug.json``, a list of the
            operators of all delegates in the folder.
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
    """Append the debug events of a delegate to a file of them; the first delegate of a folder starts the file anew."""
    known = json.loads(read_text(file)) if file.is_file() and delegate != "delegate_0" else []
    found = [event | {"delegate": delegate} for event in events(graph, len(known))]
    write_whole(file, json.dumps([*known, *found], indent=4).encode())


def contents(graph: Graph, tosa: bytes, payload: DelegatePayload | None, sources: Sources | None) -> dict[str, bytes]:
    """Return the artifacts of a delegate by the suffix of their file, ``.tosa`` last. See :func:`write`."""
    artifacts = {".txt": to_text(graph).encode()}
    if payload is not None:
        artifacts[".payload"] = payload.pack()
    if sources is not None:
        artifacts[".sources.json"] = sources.to_json().encode()
    return {**artifacts, ".tosa": tosa}


def next_delegate(folder: Path) -> Path:
    """``folder/delegate_0``, or the first number of which there is no .tosa yet."""
    number = 0
    while (folder / f"delegate_{number}.tosa").exists():
        number += 1
    return folder / f"delegate_{number}"


def sources(folder: str | os.PathLike[str], payload: DelegatePayload, specs: Iterable[tuple[str, bytes]]) -> Sources:
    """The operators of a delegate whose artifacts are in ``folder``.

    ethorch's are found by the payload. The folder of another backend has TOSA files only (``executorch.backends.arm``
    leaves those): each is compiled again with the delegate's compile specs, until one gives this payload.

    Raises:
        EthorchError: nothing in the folder belongs to the payload.
    """
    for path in sorted(Path(folder).rglob("*.payload")):  # a folder for each of several methods
        if (table := path.with_suffix(".sources.json")).is_file() and DelegatePayload.unpack(path.read_bytes()) == payload:
            return Sources.from_json(read_text(table), str(table))
    found = _compiled_again(sorted(Path(folder).glob("*.tosa")), payload, specs)
    if found is None:
        raise EthorchError(
            f"{os.fspath(folder)} has no graphs of this program: give the folder that Program.save wrote, or that of a compile "
            "spec's dump_intermediate_artifacts_to()."
        )
    return found


def reader(folder: str | os.PathLike[str]) -> Callable[[DelegatePayload, Iterable[tuple[str, bytes]]], Sources]:
    """Return ``sources`` of one folder, as ``ethorch.runtime.load`` takes it."""
    return functools.partial(sources, folder)


def _compiled_again(paths: list[Path], payload: DelegatePayload, specs: Iterable[tuple[str, bytes]]) -> Sources | None:
    if not paths:
        return None
    spec = EthosUCompileSpec.from_pairs(specs)
    for path in paths:
        compiled = compiler.compile(path.read_bytes(), spec)
        if compiled.payload == payload:
            return Sources.from_schedule(compiled.rows())
    return None
