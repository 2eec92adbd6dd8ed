"""OpSpec, the ``@op`` decorator, the table ``OPS``, and Sample: all there is to say of an operator, in one place."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ethorch.errors import Reason
from ethorch.ops.quant_rules import EACH_INPUT, NOT_QUANTIZED, QuantRule
from ethorch.qparams import QTensor

#: A rule, or a function from the FX node to its rule where the arguments decide.
Rule = QuantRule | Callable[[Any], QuantRule]
Adapter = Callable[..., tuple[tuple[Any, ...], dict[str, Any]]]


@dataclass(frozen=True)
class I8:
    """A sample's quantized activation (int8, or int16 where the test says so), uniform in ``low..high``."""

    shape: tuple[int, ...]
    low: float = -3.0
    high: float = 3.0

    def __init__(self, *shape: int, low: float = -3.0, high: float = 3.0):
        object.__setattr__(self, "shape", shape)
        object.__setattr__(self, "low", low)
        object.__setattr__(self, "high", high)


@dataclass(frozen=True)
class Ints:
    """A sample's plain integer tensor of that shape, uniform in ``low..high``: int32 unless ``dtype`` names another."""

    shape: tuple[int, ...]
    low: int
    high: int
    dtype: str

    def __init__(self, *shape: int, low: int = -1000, high: int = 1000, dtype: str = "int32"):
        for name, value in (("shape", shape), ("low", low), ("high", high), ("dtype", dtype)):
            object.__setattr__(self, name, value)


@dataclass(frozen=True)
class Truth:
    """A sample's bool tensor of that shape, True with the probability ``chance``."""

    shape: tuple[int, ...]
    chance: float

    def __init__(self, *shape: int, chance: float = 0.5):
        object.__setattr__(self, "shape", shape)
        object.__setattr__(self, "chance", chance)


@dataclass(frozen=True)
class W:
    """A sample's parameter (weight or bias) of that shape: a constant of the module, uniform in ``low..low + 1``."""

    shape: tuple[int, ...]
    low: float = -0.5

    def __init__(self, *shape: int, low: float = -0.5):
        object.__setattr__(self, "shape", shape)
        object.__setattr__(self, "low", low)

    def positive(self) -> W:
        """The same with values in 0.5..1.5, as a variance has."""
        return W(*self.shape, low=0.5)


@dataclass(frozen=True)
class Sample:
    """One call of an operator for tests and documentation: ATen arguments with I8, Ints, Truth and W in place of tensors."""

    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    overload: str = ""

    def __init__(self, *args: Any, **kwargs: Any):
        object.__setattr__(self, "args", args)
        object.__setattr__(self, "kwargs", kwargs)

    def of(self, overload: str) -> Sample:
        """The same call of another of the operator's names than its first."""
        sample = Sample(*self.args, **self.kwargs)
        object.__setattr__(sample, "overload", overload)
        return sample

    def __str__(self) -> str:
        def show(arg: Any) -> str:
            if isinstance(arg, (I8, Ints, Truth, W)):
                return f"{type(arg).__name__}({', '.join(map(str, arg.shape))})"
            return "[" + ", ".join(map(show, arg)) + "]" if isinstance(arg, (list, tuple)) else str(arg)

        return ", ".join([*map(show, self.args), *(f"{k}={show(v)}" for k, v in self.kwargs.items())])


@dataclass
class OpSpec:
    """One operator of PyTorch on the NPU.

    Attributes:
        names: ATen names it answers to, the canonical one first; in-place forms answer by the name without underscore.
        quant: which of its inputs and outputs are quantized, and how.
        lower: ``lower(b, *aten_args, out) -> QTensor``, or None for an operator that is only ever a table.
        adapters: spelling -> function from its arguments to those of the canonical one.
        absorbs: it costs nothing behind an operator that has its own output scale (clamps, no-ops).
        pointwise: each output element depends on one element of each input: a chain on one input is one TABLE.
        steps: the function jumps: interpolation between an int16 table's entries would round off the jumps.
        samples: calls that tests and documentation try.
        bound: how many output steps the NPU may be from fake-quantized PyTorch: 1, or more with the reason in the doc.
        bound16: the same with int16 activations; of a table its samples' interpolation error.
        real: ``real(b, *aten_args) -> Real | QTensor``, the lowering of float tensors where ``lower`` is none;
            keywords as ``lower``'s, without ``out``.
        decompose: ``decompose(sketch, *aten_args) -> Node | tuple | None``, a replacement by other operators before
            annotation, so that what is inside is calibrated; None leaves the node as it is (see ethorch.decompose).
        decomposes_integers: it is to be called for integer results too.
        needs: the TOSA operator that reads a computed index for it, so that a target without it is the reason to refuse one.
    """

    names: tuple[str, ...]
    quant: Rule
    lower: Callable[..., Any] | None
    adapters: Mapping[str, Adapter] = field(default_factory=dict)
    absorbs: bool = False
    pointwise: bool = False
    samples: Sequence[Sample] = ()
    steps: bool = False
    checks: list[Callable[..., Reason | None]] = field(default_factory=list)
    doc: str = ""
    source: str = ""
    bound: int = 1
    bound16: int = 1
    decompose: Callable[..., Any] | None = None
    decomposes_integers: bool = False
    needs: str = ""
    real: Callable[..., Any] | None = None

    @property
    def composite(self) -> bool:
        """Is it only ever decomposed?"""
        return self.lower is None and self.decompose is not None

    @property
    def takes_floats(self) -> bool:
        """Has it a lowering of float tensors? Integer operators have none to have."""
        return self.real is not None or self.decompose is not None or (self.lower is not None and self.quant is not NOT_QUANTIZED)

    @property
    def name(self) -> str:
        return self.names[0]

    @property
    def table_dtypes(self) -> tuple[str, ...]:
        """TOSA dtypes of an input whose chain may be a TABLE."""
        return () if not self.pointwise else ("INT8",) if self.steps else ("INT8", "INT16")

    def rule(self, node: Any) -> QuantRule:
        """The quantization rule of that FX node."""
        return self.quant if isinstance(self.quant, QuantRule) else self.quant(node)

    def check(self, function: Callable[..., Reason | None]) -> Callable[..., Reason | None]:
        """Decorator: a function of the operator's arguments that returns the Reason why TOSA cannot express them."""
        self.checks.append(function)
        return function

    def floats(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Decorator: ``function`` lowers float tensors."""
        self.real = function
        return function

    def decomposition(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Decorator: ``function`` replaces nodes of this operator before annotation."""
        self.decompose = function
        return function

    def integer_decomposition(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Decorator: the same, of nodes with an integer result too."""
        self.decomposes_integers = True
        return self.decomposition(function)

    def canonical(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Arguments of spelling ``name`` as arguments of the canonical spelling."""
        adapter = self.adapters.get(name)
        return adapter(*args, **kwargs) if adapter else (args, kwargs)


#: Every operator ethorch knows, by ATen name such as ``aten.conv2d.default``.
OPS: dict[str, OpSpec] = {}


def register(spec: OpSpec) -> OpSpec:
    """Add ``spec`` to ``OPS`` under each of its names."""
    for name in (*spec.names, *spec.adapters):
        assert name not in OPS, f"{name} is registered twice"
        OPS[name] = spec
    return spec


def op(
    *names: str,
    quant: Rule,
    also: Mapping[str, Adapter] | None = None,
    absorbs: bool = False,
    pointwise: bool = False,
    steps: bool = False,
    samples: Sequence[Sample] = (),
    bound: int = 1,
    bound16: int = 1,
    needs: str = "",
) -> Callable[[Callable[..., Any]], OpSpec]:
    """Decorator: the function is the lowering of the ATen operators ``names`` (and of ``also``, through an adapter)."""

    def decorate(lower: Callable[..., Any]) -> OpSpec:
        spec = OpSpec(
            names, quant, lower, also or {}, absorbs, pointwise, samples,
            doc=inspect.getdoc(lower) or "", source=_source(lower), bound=bound, bound16=bound16, steps=steps, needs=needs,
        )  # fmt: skip
        return register(spec)

    return decorate


def composite(
    *names: str, also: Mapping[str, Adapter] | None = None, samples: Sequence[Sample] = (), bound: int = 1, bound16: int = 1
) -> Callable[[Callable[..., Any]], OpSpec]:
    """Decorator: the function decomposes the ATen operators ``names`` before annotation; they have no lowering."""

    def decorate(function: Callable[..., Any]) -> OpSpec:
        spec = OpSpec(
            names, NOT_QUANTIZED, None, also or {}, samples=samples, doc=inspect.getdoc(function) or "",
            source=_source(function), bound=bound, bound16=bound16, decompose=function,
        )  # fmt: skip
        return register(spec)

    return decorate


def _source(function: Callable[..., Any]) -> str:
    code = inspect.unwrap(function).__code__
    return f"{code.co_filename.rpartition('/ethorch/')[2]}:{code.co_firstlineno}"


#: Shapes of the samples of tables, of every rank in turn; a table does not care.
_TABLE_SHAPES = ((211,), (3, 71), (2, 5, 21), (1, 8, 5, 5), (2, 3, 1, 5, 7), (1, 2, 3, 2, 3, 6))


def table_op(
    *names: str,
    doc: str,
    quant: QuantRule = EACH_INPUT,
    low: float = -3.0,
    high: float = 3.0,
    calls: Sequence[Sequence[Any] | Mapping[str, Any]] = ((),),
    samples: Sequence[Sample] = (),
    steps: bool = False,
    bound16: int = 1,
    real: str | Callable[..., Any] | None = None,
) -> OpSpec:
    """An operator of one tensor that is only ever a lookup table, its entries computed by running it.

    Args:
        real: the TOSA operator that computes it of floats, or a formula of a Real and the further arguments.
        low, high: where the samples' inputs lie.
        calls: what follows the tensor in each sample: arguments, or keywords. Instead of samples.
        steps: the function jumps.
        bound16: see OpSpec.
    """
    caller = inspect.currentframe()
    assert caller is not None and caller.f_back is not None
    place = f"{caller.f_back.f_code.co_filename.rpartition('/ethorch/')[2]}:{caller.f_back.f_lineno}"
    if not samples:
        x = I8(*_TABLE_SHAPES[len(OPS) % len(_TABLE_SHAPES)], low=low, high=high)
        samples = [Sample(x, **call) if isinstance(call, Mapping) else Sample(x, *call) for call in calls]
    spec = OpSpec(names, quant, None, pointwise=True, samples=samples, doc=doc, source=place, steps=steps, bound16=bound16)
    spec.real = _operator(real) if isinstance(real, str) else None if real is None else _formula(real)
    return register(spec)


def _operator(name: str) -> Callable[..., QTensor]:
    """One TOSA operator, in the dtype of its operand."""
    return lambda b, x, *_, **__: QTensor(b.emit(name, x.value), x.dims, x.q)


def _formula(function: Callable[..., Any]) -> Callable[..., Any]:
    """A formula, its first argument made a Real."""
    from ethorch.real import Real

    return lambda b, x, *args, **kwargs: function(Real.of(b, x), *args, **kwargs)


def overload_of(target: Any) -> Any:
    """The OpOverload behind an operator of the edge dialect; anything else as it is."""
    return target._op if type(target).__name__ == "EdgeOpOverload" else target


def op_name(target: Any) -> str:
    """``aten.conv2d.default`` for an OpOverload, its edge dialect form or its in-place form."""
    return _functional(str(overload_of(target)))


@functools.cache
def _functional(name: str) -> str:
    """``aten.relu_.default`` -> ``aten.relu.default``."""
    parts = name.split(".")
    if len(parts) == 3 and parts[1].endswith("_") and not parts[1].endswith("__"):
        parts[1] = parts[1][:-1]
    return ".".join(parts)


def find(target: Any) -> OpSpec | None:
    """The spec of an FX target, or None."""
    import ethorch.ops  # noqa: F401  registers every family

    return OPS.get(op_name(target))
