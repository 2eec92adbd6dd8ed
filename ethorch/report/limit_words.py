"""Describe limits of TOSA operators in terms of PyTorch's arguments and shapes."""

from __future__ import annotations

from collections.abc import Iterable

from ethorch.targets.npus import FAMILIES
from ethorch.tosa.limits import Limits, Range

#: Phrase for each feature of a TOSA operator; ``{high}`` is the largest value allowed.
_WORDS = {
    "ifm_c": "at most {high:,} input channels",
    "pictures": "a batch, times the depth of a volume, of at most {high:,}",
    "stride": "a stride of at most {high}",
    "padding_of_wide_stride": "no padding where a stride is above 3",
    "dilation_of_wide_stride": "no dilation where a stride is above 3",
    "kernel_w": "a window at most {high:,} wide",
    "padded_kernel": "a window of at most {high} in each direction where it is padded",
    "extent_of_padded_stride": "axes of at most {high:,} where a padded window has a stride",
    "longest_axis": "axes of at most {high:,} in either matrix",
    "extent": "at most {high:,} elements along the dim",
    "outer": "at most {high:,} elements in the dims before it together",
    "inner": "at most {high:,} elements in the dims after it together",
    "others": "at most {high:,} elements in the other dims together",
    "rounds": "shifts that round",
}
_DTYPES = {"INT8": "int8", "INT16": "int16", "INT32": "int32", "BOOL": "bool"}


def feature_words(feature: str, allowed: Range) -> str:
    """Return e.g. ``a stride of at most 3``."""
    return _WORDS[feature].format(high=allowed.high)


#: Features of a moving window. They are omitted for calls without one.
_OF_WINDOWS = frozenset(feature for feature in _WORDS if "stride" in feature or "kernel" in feature)


def words(limits: Limits, windows: bool = True) -> list[str]:
    """Return a phrase for each limit; empty if the NPU does not have the operator.

    Args:
        windows: Whether the call has a window with stride and padding.
    """
    ranges = limits.ranges.items() if limits.present else ()
    phrases = [feature_words(feature, allowed) for feature, allowed in ranges if windows or feature not in _OF_WINDOWS]
    if limits.present and limits.dtypes is not None:
        phrases.append(f"{' or '.join(_DTYPES.get(dtype, dtype) for dtype in sorted(limits.dtypes))} alone")
    return phrases


def limits_of(tosa: Iterable[str], windows: bool = True) -> list[tuple[str, list[str]]]:
    """Return (families, phrases) for calls that lower to these TOSA operators. Families with equal limits are combined."""
    operators = list(dict.fromkeys(tosa))
    by_phrases: dict[tuple[str, ...], list[str]] = {}
    for name, family in FAMILIES.items():
        limits = [family.limits[operator] for operator in operators if operator in family.limits]
        phrases = [phrase for limit in limits for phrase in words(limit, windows)]
        by_phrases.setdefault(tuple(dict.fromkeys(phrases)), []).append(name.upper())
    return [(", ".join(families), list(phrases)) for phrases, families in by_phrases.items() if phrases]
