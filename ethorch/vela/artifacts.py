"""What ``dump_intermediate_artifacts_to`` leaves in a folder, and the way back: which operator each NPU command works for.

A .pte has no place for that: firmware refuses payloads with blocks it does not know.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from ethorch.errors import EthorchError
from ethorch.npu import Sources
from ethorch.payload import DelegatePayload

if TYPE_CHECKING:
    from ethorch.backend import Lowered
    from ethorch.tosa.ir import Graph


def write(folder: Path, graph: Graph, tosa: bytes, lowered: Lowered | None = None) -> None:
    """Write one delegate's TOSA (flatbuffer and text), payload and sources under the first free number in ``folder``."""
    folder.mkdir(parents=True, exist_ok=True)
    number = 0
    while (folder / f"delegate_{number}.tosa").exists():
        number += 1
    (folder / f"delegate_{number}.tosa").write_bytes(tosa)
    (folder / f"delegate_{number}.txt").write_text(graph.to_text())
    if lowered is not None:
        (folder / f"delegate_{number}.payload").write_bytes(lowered.payload.pack())
        (folder / f"delegate_{number}.sources.json").write_text(lowered.sources.to_json())


def sources(folder: str | os.PathLike[str], payload: DelegatePayload, specs: Iterable[tuple[str, bytes]]) -> Sources:
    """The operators of a delegate whose artifacts are in ``folder``.

    ethorch's are found by the payload. The folder of another backend has TOSA files only (``executorch.backends.arm``
    leaves those): each is compiled again with the delegate's compile specs, until one gives this payload.

    Raises:
        EthorchError: nothing in the folder belongs to the payload.
    """
    for path in sorted(Path(folder).glob("*.payload")):
        if (table := path.with_suffix(".sources.json")).is_file() and DelegatePayload.unpack(path.read_bytes()) == payload:
            return Sources.from_json(table.read_text())
    found = _compiled_again(sorted(Path(folder).glob("*.tosa")), payload, specs)
    if found is None:
        raise EthorchError(
            f"{os.fspath(folder)} has no dump of this program: `ethorch compile ... --dump {os.fspath(folder)}`, or a compile "
            "spec's dump_intermediate_artifacts_to(), makes one."
        )
    return found


def _compiled_again(paths: list[Path], payload: DelegatePayload, specs: Iterable[tuple[str, bytes]]) -> Sources | None:
    if not paths:
        return None
    from executorch.exir.backend.compile_spec_schema import CompileSpec

    from ethorch import vela
    from ethorch.compile_spec import EthosUCompileSpec

    spec = EthosUCompileSpec.from_list([CompileSpec(key, value) for key, value in specs])
    for path in paths:
        compiled = vela.compile(path.read_bytes(), spec)
        if DelegatePayload.from_compiled(compiled) == payload:
            return Sources.from_schedule(compiled.rows())
    return None
