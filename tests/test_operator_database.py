"""The samples of PyTorch's own databases of operators and modules, ``torch.testing._internal``.

Each operator and module compiles and computes what PyTorch computes, or an EthorchError refuses it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

import ethorch
from ethorch.support.errors import EthorchError
from tests.helpers.quantized import Function

TARGETS = ["ethos-u55-128", "ethos-u85-256"]
_SAMPLES = 3  # of each operator and dtype
_LEAST_DB = 15.0
#: Operators that the test omits, with the reason.
OMITTED = {
    "__rmod__": "it jumps",
    "fmod": "it jumps",
    "frac": "it jumps",
    "remainder": "it jumps",
    "nn.functional.rrelu": "its samples are of training mode, which is random",
    "polygamma": "its samples are next to a pole",
    "sinc": "its results for integers are almost 0",
    "tan": "its samples are next to a pole",
    "max_pool2d_with_indices_backward": "ExecuTorch's kernel adds to the previous contents of its output",
    "__rpow__": "ExecuTorch returns INT32_MIN for 0 to a negative power",
    "as_strided": "its samples depend on a storage that is not passed",
}
#: Operators and modules with indices of equal elements, whose order PyTorch does not define.
TIES = ("kthvalue", "median", "mode", "nanmedian", "nn.MaxPool2d")


class OneCall(nn.Module):
    """A call of an operator in which tensors are inputs and other arguments constants."""

    def __init__(self, operator: Callable[..., Any], leaves: list[Any], structure: pytree.TreeSpec):
        super().__init__()
        self.operator, self.structure = operator, structure
        self.places = [place for place, leaf in enumerate(leaves) if isinstance(leaf, Tensor)]
        self.leaves = [None if isinstance(leaf, Tensor) else leaf for leaf in leaves]

    def forward(self, *tensors: Tensor) -> Any:
        leaves = list(self.leaves)
        for place, tensor in zip(self.places, tensors, strict=True):
            leaves[place] = tensor
        arguments, keywords = pytree.tree_unflatten(leaves, self.structure)
        return self.operator(*arguments, **keywords)


def make_call(
    operator: Callable[..., Any], arguments: Sequence[Any], keywords: dict[str, Any]
) -> tuple[OneCall, tuple[Tensor, ...]]:
    leaves, structure = pytree.tree_flatten((arguments, keywords))
    return OneCall(operator, leaves, structure), tuple(leaf.detach().clone() for leaf in leaves if isinstance(leaf, Tensor))


def list_calls(info: Any, dtype: torch.dtype) -> Iterator[tuple[OneCall, tuple[Tensor, ...]]]:
    if not info.supports_dtype(dtype, "cpu"):
        return
    torch.manual_seed(0)
    samples = list(islice(info.sample_inputs("cpu", dtype, requires_grad=False), 60))
    for sample in samples[:: max(1, len(samples) // _SAMPLES)][:_SAMPLES]:
        call, tensors = make_call(info.op, (sample.input, *sample.args), sample.kwargs)
        if tensors and not any(x.numel() == 0 or x.dim() > 6 or x.is_complex() for x in tensors):
            yield call, tensors


def list_modules(info: Any) -> Iterator[tuple[OneCall, tuple[Tensor, ...]]]:
    torch.manual_seed(0)
    samples = [each for each in info.module_inputs_func(info, "cpu", torch.float32, False, False) if each.forward_input]
    for sample in samples[:: max(1, len(samples) // _SAMPLES)][:_SAMPLES]:
        module = info.module_cls(*sample.constructor_input.args, **sample.constructor_input.kwargs)
        yield make_call(module.eval(), sample.forward_input.args, sample.forward_input.kwargs)


def describe_difference(call: OneCall, tensors: tuple[Tensor, ...], target: str, scheme: str) -> str:
    """Return a description of the first result that differs, or an empty string."""
    wanted = [x for x in pytree.tree_leaves(call(*(x.clone() for x in tensors))) if isinstance(x, Tensor)]
    try:
        program = ethorch.compile(call, tensors, target, calibration=[tensors], scheme=scheme, progress=False)
        found = [torch.as_tensor(x) for x in pytree.tree_leaves(program(*tensors))]
    except EthorchError:
        return ""
    if [(x.shape, x.dtype) for x in wanted] != [(x.shape, x.dtype) for x in found]:
        return f"results {[(x.shape, x.dtype) for x in found]}"
    for number, (expected, actual) in enumerate(zip(wanted, found, strict=True)):
        if expected.is_floating_point():
            finite = torch.isfinite(expected)
            ratio = ethorch.sqnr_db(expected[finite], actual[finite].nan_to_num(0)) if finite.any() else _LEAST_DB
            if ratio < _LEAST_DB:
                return f"result {number} {ratio:.1f} dB"
        elif not expected.is_complex() and not torch.equal(expected, actual):
            return f"result {number} differs"
    return ""


@pytest.mark.long
@pytest.mark.parametrize(("target", "scheme"), [("ethos-u55-128", "int8"), ("ethos-u85-256", "a16w8")])
def test_operator_database(target: str, scheme: str) -> None:
    from torch.testing._internal.common_methods_invocations import op_db

    failures = []
    for info in op_db:
        for dtype in (torch.float32, torch.int32, torch.int64, torch.int8, torch.bool):
            if info.name in OMITTED:
                continue
            for number, (call, tensors) in enumerate(list_calls(info, dtype)):
                try:
                    difference = describe_difference(call, tensors, target, scheme)
                except Exception as error:
                    difference = f"{type(error).__name__}: {error}"[:300]
                if difference and not (info.name in TIES and "result 1 differs" in difference):
                    failures.append(f"{info.name} {info.variant_test_name} {dtype}, sample {number}: {difference}")
                    print(failures[-1])
    assert not failures, "\n".join(failures)


@pytest.mark.long
@pytest.mark.parametrize("target", TARGETS)
def test_module_database(target: str) -> None:
    from torch.testing._internal.common_modules import module_db

    failures = []
    for info in module_db:
        if "FractionalMaxPool" in info.name:  # PyTorch refuses its samples, because their dtypes differ
            continue
        for number, (call, tensors) in enumerate(list_modules(info)):
            try:
                difference = describe_difference(call.eval(), tensors, target, "int8")
            except Exception as error:
                difference = f"{type(error).__name__}: {error}"[:300]
            if difference and not (info.name in TIES and "result 1 differs" in difference):
                failures.append(f"{info.name}, sample {number}: {difference}")
                print(failures[-1], flush=True)
    assert not failures, "\n".join(failures)


def _norms(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    weight, bias = y[0] + 2, y[1]
    channels = x.mean((0, 2))
    return (
        nn.functional.layer_norm(x, [6], weight, bias),
        nn.functional.rms_norm(x, [6], weight),
        nn.functional.group_norm(x, 2, channels + 2, None),
        nn.functional.batch_norm(x, channels, channels.abs() + 1, None, channels),
        *torch.native_layer_norm(x, [6], None, bias, 1e-5),
        *torch.native_group_norm(x, None, None, 3, 4, 6, 2, 1e-5),
    )


#: What the database has found: functions of float32[3, 4, 6] and float32[2, 6].
FOUND: dict[str, Callable[..., Any]] = {
    "norms with parameters that the model computes": _norms,
    "extremes of truth values": lambda x, y: (*torch.max(x > 0.5, 1), *torch.min(x > -0.5, 2)),
    "dtypes of softmax": lambda x, y: torch.softmax((x > 0).int() + (x > 1).int(), -1, dtype=torch.float32),
    "statistics of the batch": lambda x, y: (
        nn.functional.batch_norm(x, None, None, y[0, :4], training=True),
        nn.functional.batch_norm(x, torch.zeros(4), torch.ones(4), training=True),
    ),
    "distances between integers": lambda x, y: nn.functional.pairwise_distance((x > 0).int(), (y[0] > 0).int()),
    "a scalar without dims": lambda x, y: x * y.sum().permute([]),
    "an index without dims": lambda x, y: torch.index_select(x, 1, torch.tensor(2)),
    "an empty part": lambda x, y: torch.slice_scatter(x, x[:0], 0, 2, 0) * y[0],
    "a scalar and a slope": lambda x, y: nn.functional.prelu(-x.amax(), torch.full((1,), 0.25)),
}


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", FOUND)
def test_found(name: str, target: str) -> None:
    torch.manual_seed(1)
    model, samples = Function(FOUND[name]), [(torch.randn(3, 4, 6), torch.randn(2, 6)) for _ in range(4)]
    program = ethorch.compile(model, samples[0], target, calibration=samples)
    wanted, found = pytree.tree_leaves(model(*samples[0])), pytree.tree_leaves(program(*samples[0]))
    for expected, actual in zip(wanted, map(torch.as_tensor, found), strict=True):
        assert (expected.shape, expected.dtype) == (actual.shape, actual.dtype)
        assert ethorch.sqnr_db(expected.float(), actual.float()) > 28
    assert len(program.delegates) == 1


def test_an_elementwise_operator_with_two_results_stays_on_the_cpu() -> None:
    """ExecuTorch has no kernel for it."""
    program = ethorch.compile(Function(lambda x: torch.frexp(x)[0] * 2), torch.randn(3, 4), "ethos-u55-128")
    assert "aten.frexp" in str(program.explain(cpu_only=True))


def test_factors_that_the_model_computes_stay_on_the_cpu() -> None:
    """torchao does not support them as keyword arguments."""
    x, factor = torch.randn(3, 4), torch.tensor(2.5)
    program = ethorch.compile(Function(lambda x, y: torch.add(x, x, alpha=y)), (x, factor), "ethos-u55-128")
    torch.testing.assert_close(program(x, factor), 3.5 * x)


def test_one_number_between_boundaries() -> None:
    x, number = torch.arange(8.0), torch.tensor(3.4)
    program = ethorch.compile(Function(torch.searchsorted), (x, number), "ethos-u55-128")
    assert torch.equal(program(x, number), torch.tensor(4))


def test_defaults_of_operators_in_place_are_kept() -> None:
    with pytest.raises(EthorchError, match=r"bernoulli\.p has no out variant"):
        ethorch.compile(Function(lambda x: torch.empty_like(x).bernoulli_() * x), torch.rand(4, 4), "ethos-u55-128")


JOINS: dict[str, Callable[..., Any]] = {
    "cat": lambda x, i: torch.cat([x, i, i > 0], 1),
    "stack": lambda x, i: torch.stack([i, x]),
    "integers": lambda x, i: torch.cat([i, i.long() * 3, (i > 0).to(torch.uint8)], 1),
}


@pytest.mark.parametrize("name", JOINS)
def test_joins_on_the_cpu_convert_their_operands(name: str) -> None:
    """ExecuTorch's kernel copies the bits of operands with other dtypes."""

    class Both(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.join, self.layer = Function(JOINS[name]), nn.Linear(4, 4)

        def forward(self, x: Tensor, i: Tensor) -> tuple[Tensor, Tensor]:
            return self.join(x, i), self.layer(x)

    x, i = torch.randn(3, 4), torch.arange(-6, 6, dtype=torch.int32).reshape(3, 4)
    program = ethorch.compile(Both(), (x, i), "ethos-u55-128", calibration=[(x, i)], modules={"join": "float"})
    assert torch.equal(program(x, i)[0], JOINS[name](x, i))
