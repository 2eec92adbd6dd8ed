"""What the codes at a program's boundary mean, as constant methods of the .pte say it.

Their names are those of ExecuTorch's own passes: ``input0_scale``, ``input0_zp``, ``input0_quant_min``, ``input0_quant_max``,
``input0_dtype``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ethorch.formats.pte_types import DTYPES, Program

if TYPE_CHECKING:
    from torch import Tensor  # 2 seconds, for a type

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

    def quantize(self, values: Tensor) -> Tensor:
        """float32 -> codes: round(values / scale) half to even, plus zero_point, clamped to low..high."""
        import torch  # 2 seconds, which a file's figures need not

        codes = torch.round(values * (1.0 / self.scale)) + self.zero_point
        return codes.clamp(self.low, self.high).to(getattr(torch, self.dtype))

    def dequantize(self, codes: Tensor) -> Tensor:
        """codes -> float32."""
        import torch  # as in quantize

        return (codes.to(torch.float32) - self.zero_point) * self.scale


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
