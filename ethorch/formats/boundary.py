"""What the codes at a program's boundary mean, as constant methods of the .pte say it.

Their names are those of ExecuTorch's own passes: ``input0_scale``, ``input0_zp``, ``input0_quant_min``, ``input0_quant_max``,
``input0_dtype``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ethorch.formats.pte_types import DTYPES, Program
from ethorch.support import trees

_METHOD = re.compile(r"(?:(?P<method>.+)_)?(?P<side>input|output)(?P<index>\d+)_(?P<key>scale|zp|quant_min|quant_max|dtype)")


@dataclass(frozen=True)
class Codes:
    """What the codes of one input or output mean: real value = (code - zero_point) * scale.

    Attributes:
        dtype: torch's name of their type.
        low, high: the least and the largest code.
    """

    scale: float
    zero_point: int
    low: int
    high: int
    dtype: str

    def quantize(self, values: Any) -> Any:
        """float32 -> codes: round(values / scale) half to even, plus zero_point, clamped to low..high.

        Args:
            values: A tensor, or an array.
        """
        if isinstance(values, np.ndarray):
            codes = np.rint(values * (1.0 / self.scale)) + self.zero_point
            return codes.clip(self.low, self.high).astype(self.dtype)
        import torch  # is there: the values are a tensor

        codes = torch.round(values * (1.0 / self.scale)) + self.zero_point
        return codes.clamp(self.low, self.high).to(getattr(torch, self.dtype))

    def dequantize(self, codes: Any) -> Any:
        """codes -> float32, of a tensor or an array."""
        values = codes.astype(np.float32) if isinstance(codes, np.ndarray) else codes.float()
        return (values - self.zero_point) * self.scale


def as_codes(inputs: tuple[Any, ...], codes: Mapping[str, Codes]) -> tuple[Any, ...]:
    """Inputs with the floats that ``codes`` has an entry for as codes."""
    leaves, nested = trees.flatten(inputs)
    for number, leaf in enumerate(leaves):
        if (one := codes.get(f"input{number}")) is not None and _is_float(leaf):
            leaves[number] = one.quantize(leaf)
    made: tuple[Any, ...] = nested(leaves)
    return made


def _is_float(value: Any) -> bool:
    if isinstance(value, np.ndarray):
        return np.issubdtype(value.dtype, np.floating)
    return trees.is_tensor(value) and value.dtype.is_floating_point


def boundary_of(program: Program, method: str = "forward") -> dict[str, Codes]:
    """What ``with_constants`` put into a program, or ExecuTorch's passes did: ``input0``, ... -> Codes.

    Where a program has several methods, their names stand in front: ``decode_input0_scale``.
    """
    found: dict[str, dict[str, Any]] = {}
    for name, figure in program.methods.items():
        if (match := _METHOD.fullmatch(name)) and match["method"] in (None, method) and len(figure.outputs) == 1:
            found.setdefault(match["side"] + match["index"], {})[match["key"]] = figure.values[figure.outputs[0]].number
    codes = {}
    for name, keys in found.items():
        if keys.keys() >= {"scale", "zp", "quant_min", "quant_max", "dtype"} and int(keys["dtype"]) in DTYPES:
            dtype = DTYPES[int(keys["dtype"])][0]
            codes[name] = Codes(keys["scale"], int(keys["zp"]), int(keys["quant_min"]), int(keys["quant_max"]), dtype)
    return codes
