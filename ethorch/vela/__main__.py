"""Child process of ``compile_apart``: ``python -m ethorch.vela FOLDER PARENT_PID``."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from ethorch.support.errors import VelaError
from ethorch.support.orphans import end_child_with
from ethorch.targets.compile_spec import EthosUCompileSpec
from ethorch.vela.child import to_files
from ethorch.vela.compiler import compile


def main(folder: Path) -> None:
    """Compile the graph in a folder. Write the result, or Vela's error, to the same folder."""
    target, flags = json.loads((folder / "spec.json").read_text())
    *configs, ini = [flag.removeprefix("--config=") for flag in flags if flag.startswith("--config=")]
    others = [flag for flag in flags if not flag.startswith("--config=")] + [f"--config={name}" for name in configs]
    try:
        spec = EthosUCompileSpec(target, extra_flags=others, config_ini=ini)
        to_files(folder, compile((folder / "graph.tosa").read_bytes(), spec))
    except VelaError as error:
        (folder / "result.json").write_text(json.dumps({"error": str(error)}))


if __name__ == "__main__":
    end_child_with(int(sys.argv[2]))
    main(Path(sys.argv[1]))
