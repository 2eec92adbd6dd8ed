"""The limits of TOSA operators in PyTorch's words: what a shape or an argument of a model may be."""

from __future__ import annotations

from collections.abc import Iterable

from ethorch.targets.npus import FAMILIES
from ethorch.tosa.limits import Limits, Range

#: Feature of a TOSA operator -> what a model may have; ``{high}`` is the largest value allowed.
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
    "inner": "at most {high:,} elements in the dims behind it together",
    "others": "at most {high:,} elements in the other dims together",
    "rounds": "shifts that round",
}
_DTYPES = {"INT8": "int8", "INT16": "int16", "INT32": "int32", "BOOL": "bool"}


def feature_words(feature: str, allowed: Range) -> str:
    """``a stride of at most 3``."""
    return _WORDS[feature].format(high=allowed.high)


#: Features of a window that moves: nothing to say of a call that has none, whatever it is made of.
_OF_WINDOWS = frozenset(feature for feature in _WORDS if "stride" in feature or "kernel" in feature)


def words(limits: Limits, windows: bool = True) -> list[str]:
    """What a call may be, a phrase for each limit; empty where the NPU has no such operator.

    Args:
        windows: has the call a window, with a stride and padding?
    """
    ranges = limits.ranges.items() if limits.present else ()
    found = [feature_words(feature, allowed) for feature, allowed in ranges if windows or feature not in _OF_WINDOWS]
    if limits.present and limits.dtypes is not None:
        found.append(f"{' or '.join(_DTYPES.get(dtype, dtype) for dtype in sorted(limits.dtypes))} alone")
    return found


def limits_of(tosa: Iterable[str], windows: bool = True) -> list[tuple[str, list[str]]]:
    """(families, phrases) of calls that become these TOSA operators: families with the same limits together."""
    operators = list(dict.fromkeys(tosa))
    by_phrases: dict[tuple[str, ...], list[str]] = {}
    for name, family in FAMILIES.items():
        limits = [family.limits[operator] for operator in operators if operator in family.limits]
        phrases = [phrase for limit in limits for phrase in words(limit, windows)]
        by_phrases.setdefault(tuple(dict.fromkeys(phrases)), []).append(name.upper())
    return [(", ".join(families), list(phrases)) for phrases, families in by_phrases.items() if phrases]
