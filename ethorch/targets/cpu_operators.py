"""CPU operators: rates for estimates, replacements in a .pte, and kernels for complex tensors.

``cpu_operators.csv`` has a row for each operator.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

_TABLE = Path(__file__).with_name("cpu_operators.csv")


class CpuOperator(NamedTuple):
    """An operator that CPUs can run.

    Attributes:
        rate: Key of ``ethorch.figures.RATES``.
        has_complex_kernel: Whether ExecuTorch 1.5 has a kernel for complex tensors. If the kernel reads two tensors, their shapes
            must be equal.
    """

    rate: str
    has_complex_kernel: bool


def _read() -> tuple[dict[str, CpuOperator], dict[str, str]]:
    operators: dict[str, CpuOperator] = {}
    forms: dict[str, str] = {}
    with _TABLE.open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            operators[row["operator"]] = CpuOperator(row["rate"], row["complex"] == "yes")
            forms |= dict.fromkeys(map(_full_name, row["overloads"].split()), row["form"])
    return operators, forms


def _full_name(name: str) -> str:
    if name.count(".") == 2:
        return name
    return f"aten.{name}" if "." in name else f"aten.{name}.default"


def base_name(operator: str) -> str:
    """Return the name without its namespace, overload, outer underscores or ``_copy``.

    For example, ``aten::view_copy.out`` and ``aten.view.default`` become ``view``.
    """
    name = operator.rpartition("::")[2]
    if name == operator and operator.count(".") > 1:  # aten.view.default
        name = operator.split(".")[1]
    return name.partition(".")[0].strip("_").removesuffix("_copy").removesuffix("_").strip("_")


_operators, _forms = _read()
#: Base name -> operator.
CPU_OPERATORS: Mapping[str, CpuOperator] = MappingProxyType(_operators)
#: Full name -> form in which the .pte contains the operator: ``unchanged``; ``promoted`` or ``promoted_to_float``, unchanged
#: after casts of both operands to one dtype; ``view``, ``cast`` or ``clone``; or a function of ``backend/emit/cpu_operators.py``.
FORMS: Mapping[str, str] = MappingProxyType(_forms)
