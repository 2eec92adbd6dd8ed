"""Quantization parameters of a program's inputs and outputs, stored as constant methods of the .pte.

The methods have the same names as in ExecuTorch, e.g. ``input0_scale``, ``input0_zp`` and ``input0_quant_min``.
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
    """The quantization parameters of an input or output: real value = (code - zero_point) * scale.

    Attributes:
        low, high: Smallest and largest code.
        dtype: Torch name of the integer type.
    """

    scale: float
    zero_point: int
    low: int
    high: int
    dtype: str

    def quantize(self, values: Any) -> Any:
        """Quantize a float32 tensor or array: round half to even, add ``zero_point``, clamp to ``low..high``."""
        if isinstance(values, np.ndarray):
            codes = np.rint(values * (1.0 / self.scale)) + self.zero_point
            return codes.clip(self.low, self.high).astype(self.dtype)
        import torch  # already imported, because the values are a tensor

        codes = torch.round(values * (1.0 / self.scale)) + self.zero_point
        return codes.clamp(self.low, self.high).to(getattr(torch, self.dtype))

    def dequantize(self, codes: Any) -> Any:
        values = codes.astype(np.float32) if isinstance(codes, np.ndarray) else codes.float()
        return (values - self.zero_point) * self.scale


def as_codes(inputs: tuple[Any, ...], codes: Mapping[str, Codes]) -> tuple[Any, ...]:
    """Quantize the float inputs that have entries in ``codes``, whose keys are ``input0``, ``input1``, ... in flattened order."""
    leaves, nested = trees.flatten(inputs)
    for number, leaf in enumerate(leaves):
        if (parameters := codes.get(f"input{number}")) is not None and _is_float(leaf):
            leaves[number] = parameters.quantize(leaf)
    quantized: tuple[Any, ...] = nested(leaves)
    return quantized


def _is_float(value: Any) -> bool:
    if isinstance(value, np.ndarray):
        return np.issubdtype(value.dtype, np.floating)
    return trees.is_tensor(value) and value.dtype.is_floating_point


def boundary_of(program: Program, method: str = "forward") -> dict[str, Codes]:
    """Return the quantization parameters of a method's quantized inputs and outputs, keyed by name (``input0``, ``output0``, ...).

    If a program has several methods, the constant methods' names have a prefix, e.g. ``decode_input0_scale``.
    """
    parameters: dict[str, dict[str, Any]] = {}
    for name, figure in program.methods.items():
        if (match := _METHOD.fullmatch(name)) and match["method"] in (None, method) and len(figure.outputs) == 1:
            parameters.setdefault(match["side"] + match["index"], {})[match["key"]] = figure.values[figure.outputs[0]].number
    codes = {}
    for name, keys in parameters.items():
        if keys.keys() >= {"scale", "zp", "quant_min", "quant_max", "dtype"} and int(keys["dtype"]) in DTYPES:
            dtype = DTYPES[int(keys["dtype"])][0]
            codes[name] = Codes(keys["scale"], int(keys["zp"]), int(keys["quant_min"]), int(keys["quant_max"]), dtype)
    return codes
