"""``python -m tools.kernel_schemas``: writes the argument types of all operators that ExecuTorch has kernels for.

The runtime checks the calls of a program by them, in a process without torch.
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
    """Operator -> the types of its arguments, with spaces between them, of those that torch knows.

    Without those of ``cortex_m``: their kernels are ethorch's, and check their arguments, which differ between releases.
    """
    import executorch.exir
    import executorch.extension.pybindings.portable_lib
    import executorch.kernels.quantized  # noqa: F401 - registers operators with torch

    host_backend()
    found = {}
    for operator in sorted(name for name in operator_names() if not name.startswith("cortex_m::")):
        name, _, overload = operator.partition(".")
        try:
            schema = torch._C._get_schema(name, overload)
        except RuntimeError:
            continue
        found[operator] = " ".join(str(argument.type) for argument in schema.arguments)
    return found


def main() -> None:
    """Write the file."""
    rows = [f"{json.dumps(name)}: {json.dumps(types)}" for name, types in schemas().items()]
    write_whole(PATH, ("{\n" + ",\n".join(rows) + "\n}\n").encode())


if __name__ == "__main__":
    main()
