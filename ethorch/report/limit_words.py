"""Describe limits of TOSA operators in terms of PyTorch's arguments and shapes."""

from __future__ import annotations

from collections.abc import Iterable

from ethorch.targets.npus import FAMILIES
from ethorch.tosa.limits import Limits, Range

#: Phrase for each feature of a TOSA operator. ``{high}`` is the largest supported value.
_WORDS = {
    "ifm_c": "at most {high:,} input channels",
    "pictures": "batch size times volume depth at most {high:,}",
    "stride": "stride at most {high}",
    "padding_of_wide_stride": "no padding if a stride is greater than 3",
    "dilation_of_wide_stride": "no dilation if a stride is greater than 3",
    "kernel_w": "window width at most {high:,}",
    "padded_kernel": "window size at most {high} in each padded dim",
    "extent_of_padded_stride": "input size at most {high:,} in each dim if the window has padding and a stride",
    "longest_axis": "size at most {high:,} in each dim of both matrices",
    "extent": "at most {high:,} elements along the dim",
    "outer": "at most {high:,} elements (product) in the dims before the dim",
    "inner": "at most {high:,} elements (product) in the dims after the dim",
    "others": "at most {high:,} elements (product) in all other dims",
    "rounds": "only shifts that round",
}
_DTYPES = {"INT8": "int8", "INT16": "int16", "INT32": "int32", "BOOL": "bool"}


def feature_words(feature: str, allowed: Range) -> str:
    """Describe the supported values of an operator's feature, e.g. ``stride at most 3``."""
    return _WORDS[feature].format(high=allowed.high)


#: Features of sliding windows, which are omitted for operators without a window.
_OF_WINDOWS = frozenset(feature for feature in _WORDS if "stride" in feature or "kernel" in feature)


def words(limits: Limits, windows: bool = True) -> list[str]:
    """Return a phrase for each limit of a TOSA operator, or an empty list if the NPU does not support the operator.

    Args:
        windows: Whether the operator has a sliding window with stride and padding.
    """
    ranges = limits.ranges.items() if limits.present else ()
    phrases = [feature_words(feature, allowed) for feature, allowed in ranges if windows or feature not in _OF_WINDOWS]
    if limits.present and limits.dtypes is not None:
        phrases.append(f"{' or '.join(_DTYPES.get(dtype, dtype) for dtype in sorted(limits.dtypes))} only")
    return phrases


def limits_of(tosa: Iterable[str], windows: bool = True) -> list[tuple[str, list[str]]]:
    """Return one (NPU families, phrases) pair for each distinct set of limits of the given TOSA operators."""
    operators = list(dict.fromkeys(tosa))
    by_phrases: dict[tuple[str, ...], list[str]] = {}
    for name, family in FAMILIES.items():
        limits = [family.limits[operator] for operator in operators if operator in family.limits]
        phrases = [phrase for limit in limits for phrase in words(limit, windows)]
        by_phrases.setdefault(tuple(dict.fromkeys(phrases)), []).append(name.upper())
    return [(", ".join(families), list(phrases)) for phrases, families in by_phrases.items() if phrases]
