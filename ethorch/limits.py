"""Limits: what one NPU family can run of a TOSA operator, as ranges over the features its row in the opset names."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from ethorch.errors import Reason

Features = Mapping[str, int]


@dataclass(frozen=True)
class Range:
    """low..high, both allowed."""

    low: int
    high: int

    def __contains__(self, value: int) -> bool:
        return self.low <= value <= self.high

    def __str__(self) -> str:
        return f"{self.low}..{self.high}"


def upto(high: int) -> Range:
    return Range(1, high)


@dataclass(frozen=True)
class Limits:
    """One operator's limits.

    Attributes:
        ranges: feature -> allowed range.
        dtypes: allowed dtypes of the first operand; None for all that TOSA has.
        rule: for what no range says: features -> a sentence of refusal, or None.
        present: False where the NPU has no such operator.
        way_out: what a user can do about a refusal.
        source: where the numbers are from.
    """

    ranges: Mapping[str, Range] = field(default_factory=dict)
    dtypes: frozenset[str] | None = None
    rule: Callable[[Features], str | None] | None = None
    present: bool = True
    way_out: str = "It stays on the CPU."
    source: str = ""

    def refuse(self, operator: str, dtype: str, features: Features, target: str) -> Reason | None:
        """Why these operands cannot run, or None."""
        where = f" on {target}" if target else ""
        if not self.present:
            return Reason(f"{operator}.absent", f"there is no {operator}{where}", self.way_out)
        if self.dtypes is not None and dtype not in self.dtypes:
            return Reason(
                f"{operator}.dtype",
                f"{operator} of {dtype}, allowed are {', '.join(sorted(self.dtypes))}{where}",
                self.way_out,
            )
        for feature, allowed in self.ranges.items():
            if features[feature] not in allowed:
                text = f"{operator} has {feature} {features[feature]}, allowed is {allowed}{where}"
                return Reason(f"{operator}.{feature}", text, self.way_out)
        refusal = self.rule(features) if self.rule else None
        return Reason(f"{operator}.rule", refusal + where, self.way_out) if refusal else None


ABSENT = Limits(present=False)

_NONE, _ONE = Range(0, 0), Range(1, 1)
#: Vela splits kernels, maps, batches and strides, but never channels.
_CHANNELS = {"ifm_c": upto(65536)}
#: Vela splits a convolution with a stride above 3 on U55 only if nothing is padded or dilated (SUPPORTED_OPS says 1..3).
_PLAIN_STRIDES = {"padding_of_wide_stride": _NONE, "dilation_of_wide_stride": _ONE}
_POOL = {**_CHANNELS, "kernel_w": upto(65536)}
_STRIDES = "It stays on the CPU; a stride of at most 3, or no padding, runs on the NPU."

#: Vela 5.2 SUPPORTED_OPS, Ethos-U55 and Ethos-U65 TOSA Not Supported Operators.
_ABSENT_U55 = (
    "BITWISE_AND", "BITWISE_OR", "BITWISE_XOR", "BITWISE_NOT", "INTDIV", "LOGICAL_AND", "LOGICAL_RIGHT_SHIFT", "LOGICAL_OR",
    "LOGICAL_XOR", "LOGICAL_NOT", "SELECT", "EQUAL", "GREATER", "GREATER_EQUAL", "REDUCE_ALL", "REDUCE_ANY", "GATHER", "SCATTER",
)  # fmt: skip

_NO_COND = "The CPU runs it; an ethos-u85 target has it, and both branches with torch.where run on every NPU."
#: ExecuTorch 1.4.1, with and without delegates: to_executorch ends in "Unsupported control flow operator: while_loop".
NO_LOOP_ON_CPU = "to_executorch cannot write a while_loop for the CPU"
_NO_LOOP = f"{NO_LOOP_ON_CPU}: take an ethos-u85 target, or unroll it in Python where the rounds are known."

_U55 = {
    "CONV2D": Limits({**_CHANNELS, **_PLAIN_STRIDES}, way_out=_STRIDES),
    "DEPTHWISE_CONV2D": Limits({**_CHANNELS, "stride": upto(3)}, way_out=_STRIDES),
    "MAX_POOL2D": Limits({**_POOL, "padding_of_wide_stride": _NONE}, way_out=_STRIDES),
    "AVG_POOL2D": Limits({**_POOL, "padding_of_wide_stride": _NONE, "padded_kernel": upto(8)}, way_out=_STRIDES),
    "REDUCE_SUM": Limits({name: upto(65536) for name in ("extent", "outer", "inner")}),
    "MATMUL": Limits(dtypes=frozenset({"INT8"})),
    "ARGMAX": Limits({"extent": upto(127), "others": upto(65536)}, dtypes=frozenset({"INT8"})),
    "ARITHMETIC_RIGHT_SHIFT": Limits({"rounds": _ONE}, dtypes=frozenset({"INT32"})),
    "LOGICAL_LEFT_SHIFT": Limits(dtypes=frozenset({"INT32"})),
    **dict.fromkeys(_ABSENT_U55, ABSENT),
    "COND_IF": Limits(present=False, way_out=_NO_COND),
    "WHILE_LOOP": Limits(present=False, way_out=_NO_LOOP),
}

_U85 = {
    "CONV2D": Limits(_CHANNELS),
    "DEPTHWISE_CONV2D": Limits(_CHANNELS),
    "MAX_POOL2D": Limits({**_POOL, "padding_of_wide_stride": _NONE}, way_out=_STRIDES),  # Vela 5.2 compiles it, to other results
    "AVG_POOL2D": Limits(_POOL),
    "REDUCE_SUM": Limits({"extent": upto(65536)}),  # beyond, Vela 5.2 merges a RESCALE into each part
}

#: Family -> TOSA operator -> limits. Source: Vela 5.2; each edge and the step beyond is compiled by tests/test_limits.py.
LIMITS: Mapping[str, Mapping[str, Limits]] = {"u55": _U55, "u65": _U55, "u85": _U85}

#: Family -> what is said in TOSA -> the form with the fewest cycles (Vela's estimates). On U55 a transpose whose axes are
#: joined to as few as possible is half the price; U85 transposes maps of 16-channel bricks, and the NHWC of a [1, 3, 224,
#: 224] input as a transpose of [3, 50176] costs 570 M cycles there. On U85 a reduction over the map reads it through a
#: transpose that costs more than it: 7x7x1280 takes 504,639 cycles, AVG_POOL2D 21,061 (u85-256).
#: U55 and U65 have no BOOL: truth values are INT8 there.
#: On U85 a slice of a map that was just transposed reads it a few bytes at a time: squeezenet1_1 takes 7.60 M cycles with its
#: input cropped to 223x223, 4.57 M with the first kernel widened to 4x4 by zeros (u85-256).
#: ``rows`` of a linear layer: along the height U85 takes 13.02 M cycles for three layers of DeiT, along the width 9.31 M; on U55
#: Vela cascades along the height (BERT: 3.45 M, along the width 3.47 M). A batch norm's likewise: [197,192] on its own takes U85
#: 93,749 cycles along the height, 46,874 along the width.
#: ``broadcast``: a constant per channel, times [1,64,128], takes U55 16,384 cycles, copied to SRAM before 6,720 (u55-128); U85
#: 12,500 and 13,325 (u85-256).
_FORMS_U55 = {
    "truth": "INT8", "transpose_conv": "CONV2D", "resize": "few", "broadcast": "copied", "placing": "apart", "permute": "u55",
    "stride": "u55", "rescale": "u55", "max_pool": "u55", "channels": "u55", "tile": "npu",
}  # fmt: skip
#: ``permute``: see ``tosa.transposes``; ``stride``: see ``tosa.strides``; ``rescale``: see ``tosa.copies``; ``max_pool``:
#: see ``ops.pool``; ``tile``: see ``tosa.tiles``.
#: ``placing``: see ``tosa.detours.keep_apart``.
#: ``resize``: U55 and U65 have RESIZE for one picture, nearest, by 2, 4 or 8 in both directions only.
#: ``transpose_conv``: U55 runs the per-channel RESCALE behind a TRANSPOSE_CONV2D channel by channel: 24x24x32 -> 48x48x16 takes
#: 320,824 cycles, by phases (a CONV2D and a transpose) 112,688 (u55-128); on U85 153,954 and 253,567 (u85-256).
#: ``carried``: see ``tosa.detours.loops_on_copies``.
_FORMS_U85 = {
    "mean": "AVG_POOL2D", "transpose": "whole", "crop": "kernel", "rows": "width", "carried": "copied", "permute": "u85",
    "stride": "u85", "rescale": "u85", "max_pool": "u85", "channels": "u85", "tile": "npu",
}  # fmt: skip
FORMS: Mapping[str, Mapping[str, str]] = {"u55": _FORMS_U55, "u65": _FORMS_U55 | {"stride": "u65"}, "u85": _FORMS_U85}
