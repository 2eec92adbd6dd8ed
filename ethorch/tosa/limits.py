"""Limits of an NPU family for each TOSA operator, as ranges of features such as ``kernel_h``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ethorch.support.errors import Reason

Features = Mapping[str, int]


@dataclass(frozen=True)
class Range:
    """The closed interval low..high."""

    low: int
    high: int

    def __contains__(self, value: int) -> bool:
        return self.low <= value <= self.high

    def __str__(self) -> str:
        return f"{self.low}..{self.high}"


def upto(high: int) -> Range:
    return Range(1, high)


#: Feature -> name in messages.
_NAMES = {
    "ifm_c": "the number of input channels",
    "pictures": "the batch size times the volume depth",
    "stride": "the stride",
    "padding_of_wide_stride": "the padding of a window with a stride above 3",
    "dilation_of_wide_stride": "the dilation of a window with a stride above 3",
    "kernel_w": "the window width",
    "padded_kernel": "the size of a padded window",
    "extent_of_padded_stride": "the input size of a padded window with a stride",
    "longest_axis": "the longest dim of the two matrices",
    "extent": "the size of the dim",
    "outer": "the number of elements in the dims before the reduced dim",
    "inner": "the number of elements in the dims after the reduced dim",
    "others": "the number of elements in all other dims",
    "rounds": "the rounding (0 or 1)",
}
#: Feature -> remedy if it is out of range.
REMEDIES = {
    "ifm_c": "Split the channels in the model, and add the results of the parts.",
    "extent": "Reshape the dim into two dims, and reduce one after the other.",
    "longest_axis": "Split the tensor in the model, and join or add the results.",
    "outer": "Split the tensor in the model, and join the results with torch.cat.",
    "inner": "Split the tensor in the model, and join the results with torch.cat.",
    "others": "Split the tensor in the model, and join the results with torch.cat.",
    "stride": "Use a stride of at most 3.",
    "padding_of_wide_stride": "Use a stride of at most 3, or no padding (pad with F.pad first).",
    "dilation_of_wide_stride": "Use a stride of at most 3, or a dilation of 1.",
    "kernel_w": "Pool in two steps with smaller windows.",
    "padded_kernel": "Use a window of at most 8, or no padding (pad with F.pad first).",
    "extent_of_padded_stride": "Split the tensor in the model, or pad it with F.pad first.",
    "pictures": "Split the batch in the model, and join the results with torch.cat on the CPU.",
    "rounds": "Divide quantized values by a power of two instead.",
}


@dataclass(frozen=True)
class Limits:
    """The limits of one operator.

    Attributes:
        ranges: Allowed values, keyed by feature, e.g. ``kernel_h``.
        dtypes: Allowed dtypes of the first operand, or None for all TOSA dtypes.
        present: False if the NPU does not implement the operator.
        remedy: Remedy if the operator or the dtype is not supported.
        remedies: Remedies, keyed by feature, that override ``REMEDIES``.
    """

    ranges: Mapping[str, Range] = field(default_factory=dict)
    dtypes: frozenset[str] | None = None
    present: bool = True
    remedy: str = "Quantize the module to int8."
    remedies: Mapping[str, str] = field(default_factory=dict)

    def refuse(self, operator: str, dtype: str, features: Features, target: str) -> Reason | None:
        """Return the reason why the operands are not supported, or None.

        Args:
            dtype: Dtype of the first operand.
            features: Values of the operator's features, as defined in ``OPSET``.
            target: Name of the NPU, or "" for TOSA itself.
        """
        where = f" on {target}" if target else ""
        if not self.present:
            return Reason(f"{operator}.absent", f"{operator} is not supported{where}", self.remedy)
        if self.dtypes is not None and dtype not in self.dtypes:
            return Reason(
                f"{operator}.dtype",
                f"{operator} does not support {dtype}{where}; expected {', '.join(sorted(self.dtypes))}",
                self.remedy,
            )
        for feature, allowed in self.ranges.items():
            if features[feature] not in allowed:
                text = f"{operator}: {_NAMES.get(feature, feature)} is {features[feature]}; expected {allowed}{where}"
                return Reason(f"{operator}.{feature}", text, self.remedies.get(feature) or REMEDIES[feature])
        return None
