"""Write the argument types of all operators that have a kernel in ExecuTorch: ``python -m tools.kernel_schemas``.

The runtime uses them to check the calls of a program in a process without torch.
"""

from __future__ import annotations

import json
from pathlib import Path

import torch

from ethorch.formats.files import write_whole
from ethorch.runtime.delegate import host_backend
from ethorch.runtime.executor import operator_names

PATH = Path(__file__).resolve().parent.parent / "ethorch" / "runtime" / "kernel_schemas.json"


def schemas() -> dict[str, str]:
    """Return the argument types, separated by spaces, of each operator that is registered with torch.

    Operators of ``cortex_m`` are omitted because their arguments differ between releases. ethorch's kernels check them.
    """
    import executorch.exir
    import executorch.extension.pybindings.portable_lib
    import executorch.kernels.quantized  # noqa: F401 - registers operators with torch

    host_backend()
    types_by_operator = {}
    for operator in sorted(name for name in operator_names() if not name.startswith("cortex_m::")):
        name, _, overload = operator.partition(".")
        try:
            schema = torch._C._get_schema(name, overload)
        except RuntimeError:
            continue
        types_by_operator[operator] = " ".join(str(argument.type) for argument in schema.arguments)
    return types_by_operator


def main() -> None:
    """Write ``kernel_schemas.json``."""
    rows = [f"{json.dumps(name)}: {json.dumps(types)}" for name, types in schemas().items()]
    write_whole(PATH, ("{\n" + ",\n".join(rows) + "\n}\n").encode())


if __name__ == "__main__":
    main()
