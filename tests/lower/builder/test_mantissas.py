"""Functions of mantissas, from 0 to the largest INT32, in the reference model and the simulator."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from ethorch import EthosUCompileSpec
from ethorch.lower.builder.builder import Builder
from ethorch.lower.builder.mantissas import Mantissas, exponent_of
from ethorch.lower.rewrite.pipeline import rewrite
from ethorch.targets import TARGETS
from ethorch.tosa.ir import Value
from ethorch.tosa.serialize import serialize
from ethorch.tosa.verify import verify
from tests.helpers.ladder import machine, reference

VALUES = np.unique(
    np.concatenate([np.arange(70), 2 ** np.arange(31), 2 ** np.arange(1, 32) - 1, np.geomspace(1, 2**31 - 1, 500).astype(np.int64)])
)


def root(b: Builder, v: Value) -> Value:
    mantissas = Mantissas.of(b, v, 4)
    return mantissas.divide(b, b.rescale(mantissas.look_up(b, np.sqrt), 2.0**14, dtype="INT32"))


def precise_root(b: Builder, v: Value) -> Value:
    mantissas = Mantissas.of(b, v, 4)
    return mantissas.divide(b, mantissas.look_up_precisely(b, np.sqrt, 30))


def reciprocal(b: Builder, v: Value) -> Value:
    mantissas = Mantissas.of(b, v, 2)
    return mantissas.multiply(b, mantissas.look_up_precisely(b, lambda m: 0.5 / m, 30), 30)


def reciprocal_root(b: Builder, v: Value) -> Value:
    """The product of the power and the looked-up root, as norms use them."""
    mantissas = Mantissas.of(b, v, 4)
    factors = [mantissas.power(b), mantissas.look_up(b, lambda m: 0.5 / np.sqrt(m))]
    return b.emit("MUL", *(b.rescale(factor, 1.0, dtype="INT32") for factor in factors), shift=0)


#: Function, exact values in units of the result, relative error.
CASES: dict[str, tuple[Callable[[Builder, Value], Value], Callable[[np.ndarray], np.ndarray], float]] = {
    "root": (root, lambda v: np.sqrt(v / 2.0**31) * 32767 * 2.0**14, 5e-5),
    "precise root": (precise_root, lambda v: np.sqrt(v / 2.0**31) * 2.0**30, 2.5e-5),
    "reciprocal": (reciprocal, lambda v: 2.0**30 / v, 2e-5),
    "reciprocal root": (reciprocal_root, lambda v: 2.0**14.5 / np.sqrt(v) * 32767, 7e-5),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("target", ["ethos-u55-128", "ethos-u85-256"])
def test_functions_of_all_magnitudes(name: str, target: str) -> None:
    emit, exact, error = CASES[name]
    values = VALUES[2:].astype(np.int32).reshape(1, -1, 1)
    b = Builder(tuning=TARGETS[target].tuning)
    b.graph.outputs.append(emit(b, b.input("v", values.shape, "INT32")))
    verify(b.graph)
    (expected,) = reference(serialize(b.graph), [values])
    real = exact(values.astype(np.float64))
    assert (np.abs(expected - real) <= error * real + 1).all()
    (actual,) = machine(serialize(rewrite(b.graph, tuning=b.tuning)), [values], EthosUCompileSpec(target))
    np.testing.assert_array_equal(actual.ravel(), expected.ravel())


def test_the_root_of_0_is_0() -> None:
    b, values = Builder(), np.zeros((1, 4, 1), np.int32)
    b.graph.outputs.append(root(b, b.input("v", values.shape, "INT32")))
    assert not reference(serialize(b.graph), [values])[0].any()


@pytest.mark.parametrize(
    ("v", "base", "exponent"), [(1, 2, 30), (1, 4, 15), (2**29 - 1, 4, 1), (2**29, 4, 0), (2**30, 2, 0), (3, 2, 29)]
)
def test_exponents(v: int, base: int, exponent: int) -> None:
    assert exponent_of(v, base) == exponent
    assert 2**31 / base <= v * base**exponent < 2**31
