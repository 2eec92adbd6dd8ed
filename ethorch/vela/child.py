"""Run Vela in a child process, to survive crashes and enforce a time limit."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from ethorch.formats.payload import IoTensor
from ethorch.support.errors import VelaError
from ethorch.targets.compile_spec import EthosUCompileSpec
from ethorch.vela.compiled_model import CompiledModel, Performance, Tables


def compile_apart(tosa: bytes, spec: EthosUCompileSpec, timeout_seconds: float) -> CompiledModel:
    """Compile a TOSA flatbuffer in a child process. See ``vela.compiler.compile``."""
    with tempfile.TemporaryDirectory(prefix="ethorch-vela-") as name:
        folder = Path(name)
        (folder / "graph.tosa").write_bytes(tosa)
        (folder / "spec.json").write_text(json.dumps([spec.target.name, spec.compiler_flags]))
        try:
            child = subprocess.run(
                [sys.executable, "-m", "ethorch.vela", name, str(os.getpid())],
                capture_output=True,
                timeout=timeout_seconds,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise VelaError(
                f"Vela did not finish within {timeout_seconds:g} seconds. The graph may be damaged. If it is not, increase "
                "timeout_seconds."
            ) from None
        if child.returncode < 0:
            raise VelaError(
                f"Vela was terminated by signal {-child.returncode}. The graph may be damaged, memory may be insufficient, or Vela "
                "may have a bug."
            )
        try:
            result = json.loads((folder / "result.json").read_text())
        except (OSError, ValueError):
            raise VelaError(f"Vela's process failed: {child.stderr.decode(errors='replace')[-500:]}") from None
        if "error" in result:
            raise VelaError(result["error"])
        return from_files(folder, result)


def to_files(folder: Path, model: CompiledModel) -> None:
    (folder / "commands").write_bytes(model.command_stream)
    (folder / "constants").write_bytes(model.constants)
    fields = asdict(replace(model, command_stream=b"", constants=b"", load_tables=dict))
    for name in ("command_stream", "constants", "load_tables"):
        del fields[name]
    (folder / "result.json").write_text(json.dumps({**fields, "tables": dict(model.tables)}))


def from_files(folder: Path, result: dict[str, Any]) -> CompiledModel:
    tables: Tables = {name: (header, rows) for name, (header, rows) in result["tables"].items()}

    def io(tensors: list[dict[str, Any]]) -> tuple[IoTensor, ...]:
        return tuple(IoTensor(tuple(t["shape"]), t["element_size"], t["offset"], t["region"]) for t in tensors)

    return CompiledModel(
        command_stream=(folder / "commands").read_bytes(),
        constants=(folder / "constants").read_bytes(),
        scratch_bytes=result["scratch_bytes"],
        scratch_fast_bytes=result["scratch_fast_bytes"],
        inputs=io(result["inputs"]),
        outputs=io(result["outputs"]),
        performance=Performance(**result["performance"]),
        load_tables=lambda: tables,
    )
