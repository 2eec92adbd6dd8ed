"""The plan of a program's memory: what is alive at once does not overlap, and no more is taken than one after the other takes."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ethorch.backend.emit.values import plan_memory
from ethorch.formats.pte_writer import TENSOR_ALIGNMENT

_TENSOR = st.tuples(st.integers(0, 5000), st.integers(0, 9), st.integers(0, 9)).map(lambda t: (t[0], min(t[1:]), max(t[1:])))


@given(st.dictionaries(st.integers(0, 40), _TENSOR, max_size=12))
def test_what_is_alive_at_once_does_not_overlap(tensors: dict[int, tuple[int, int, int]]) -> None:
    places, total = plan_memory(tensors)
    assert total <= sum(-(-size // TENSOR_ALIGNMENT) * TENSOR_ALIGNMENT for size, _, _ in tensors.values())
    for number, (size, first, last) in tensors.items():
        assert places[number] % TENSOR_ALIGNMENT == 0
        assert places[number] + size <= total
        for other, (length, start, end) in tensors.items():
            if other != number and size and length and first <= end and start <= last:
                assert places[number] + size <= places[other] or places[other] + length <= places[number]


def test_memory_is_used_again() -> None:
    places, total = plan_memory({0: (64, 0, 0), 1: (16, 0, 1), 2: (64, 2, 3)})
    assert (places[0], places[2], total) == (0, 0, 80)
