"""The operator specification ``OpSpec``, the decorators that create it, and the table ``OPS``.

Contract of a lowering, ``lower(b, *aten_args, out, **aten_keywords) -> QTensor``:

- Arguments follow the canonical ATen schema. A tensor is a QTensor; an unquantized constant is a NumPy array.
- Inputs and outputs are quantized tensors, plain integers or truth values. The result has the shape ``out.shape`` and the
  quantization parameters ``out.q`` of the quantize node that reads it, directly or after operators marked ``absorbs``.
- If ``out.q`` is None, the result is plain integers or truth values of ``out.dtype``. ``Walk`` wraps INT32 results to
  ``out.dtype``. A lowering that requires quantization parameters reads ``out.qparams``, which raises Unsupported if they
  are missing.
- A lowering changes only ``b``. ``Walk`` records origins and checks shapes and quantization parameters.
- A lowering raises Unsupported if the target or TOSA cannot express the operator. Any other exception is a defect.

A lowering of floats (``OpSpec.floats``) reads floats, plain integers and constants. ``out.q`` is ``float_qparams(out.dtype)`` or
None. The result, a FloatTensor or QTensor of any float dtype, is then cast to ``out.dtype``. If ``floats`` is not set, ``lower``
also lowers floats.

``OpSpec.bound`` and ``bound16`` are error bounds, the largest differences from fake-quantized PyTorch over all samples.
``python -m tests.helpers.ladder NAME [--int16]`` prints these differences. A single rounding requires a bound of 1, because PyTorch
can round a half in the other direction. Several rounding steps, interpolation and discontinuities require larger bounds.
"""

from __future__ import annotations

import inspect
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

from ethorch.lower.builder.floats import FloatTensor
from ethorch.lower.builder.qparams import QTensor
from ethorch.lower.fx.node import op_name
from ethorch.lower.ops.quant_rules import EACH_INPUT, NOT_QUANTIZED, QuantRule
from ethorch.lower.ops.samples import I8, Sample
from ethorch.support.errors import Reason

#: A rule, or a function that returns the rule for an FX node.
Rule = QuantRule | Callable[[Any], QuantRule]
Adapter = Callable[..., tuple[tuple[Any, ...], dict[str, Any]]]
Kind = Literal["operator", "table", "composite"]


@dataclass(frozen=True, eq=False)
class OpSpec:
    """A PyTorch operator on the NPU.

    Attributes:
        names: ATen names, the canonical name first. In-place operators are found by the name without the trailing underscore.
        kind: ``operator`` has a lowering, ``composite`` is decomposed, and ``table`` becomes a lookup table.
        quant: Quantization rule.
        doc: Documentation. The first paragraph describes the result.
        source: File and line of the definition, relative to ``ethorch/``.
        lower: Lowering (see this module), or None for composites and most tables.
        check: Function that returns the reason why the arguments are not supported, or None.
        floats: ``floats(b, *aten_args, out) -> FloatTensor | QTensor``, the lowering of floats if ``lower`` does not accept floats.
        decompose: ``decompose(s, *aten_args) -> Node | Sequence[Node | None] | None``, which inserts other operators with the
            AtenBuilder ``s`` before annotation, to calibrate intermediate results. Returning None leaves the operator unchanged.
        decomposes_integers: Whether ``decompose`` is also called for integer results.
        adapters: For each non-canonical ATen name, a function that converts the arguments to canonical arguments.
        absorbs: Whether the preceding operator can absorb this operator, e.g. a clamp, at no cost. See ``QuantRule.fusable``.
        pointwise: Whether each output element depends on one element of each input. A chain of such operators on one quantized
            tensor becomes one TABLE.
        moves: Whether the result contains each input element exactly once.
        homogeneous: Number of trailing axes along which a factor s > 0 must be constant so that f(s x) = s f(x), or None if
            this never holds.
        steps: Whether the function has discontinuities, across which an int16 table must not interpolate.
        truths: Whether operands are interpreted as truth values.
        int32: Whether the lowering supports int32 activations.
        needs: TOSA operator required if an index is computed, or an empty string.
        samples: Example calls for tests and documentation.
        bound, bound16: Error bounds in int8 and int16 (see this module), in steps of the output.
    """

    names: tuple[str, ...]
    kind: Kind
    quant: Rule
    doc: str
    source: str
    lower: Callable[..., Any] | None = None
    check: Callable[..., Reason | None] | None = None
    floats: Callable[..., Any] | None = None
    decompose: Callable[..., Any] | None = None
    decomposes_integers: bool = False
    adapters: Mapping[str, Adapter] = field(default_factory=dict)
    absorbs: bool = False
    pointwise: bool = False
    moves: bool = False
    homogeneous: int | None = None
    steps: bool = False
    truths: bool = False
    int32: bool = False
    needs: str = ""
    samples: Sequence[Sample] = ()
    bound: int = 1
    bound16: int = 1

    @cached_property
    def tensors(self) -> frozenset[int]:
        """The positions of arguments that must be tensors or sequences of tensors."""
        if self.lower is None:
            return frozenset()
        parameters = list(inspect.signature(self.lower).parameters.values())[1:]  # without the builder
        return frozenset(k for k, p in enumerate(parameters) if p.annotation in ("QTensor", "Sequence[QTensor]"))

    @property
    def has_float_form(self) -> bool:
        return self.floats is not None or self.decompose is not None or (self.lower is not None and self.quant is not NOT_QUANTIZED)

    @property
    def composite(self) -> bool:
        return self.kind == "composite"

    @property
    def name(self) -> str:
        return self.names[0]

    @property
    def table_dtypes(self) -> tuple[str, ...]:
        """The TOSA input dtypes for which a chain that contains this operator can become a TABLE."""
        if not self.pointwise:
            return ()
        return ("INT8",) if self.steps or (self.kind == "table" and self.lower is not None) else ("INT8", "INT16")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        function = self.decompose if self.kind == "composite" else self.lower
        assert function is not None, f"{self.name} is lowered only to a table"
        return function(*args, **kwargs)

    def rule(self, node: Any) -> QuantRule:
        return self.quant if isinstance(self.quant, QuantRule) else self.quant(node)

    def canonical(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Convert the arguments of the ATen operator ``name`` to canonical arguments."""
        adapter = self.adapters.get(name)
        return adapter(*args, **kwargs) if adapter else (args, kwargs)


#: All operators by ATen name, such as ``aten.conv2d.default``.
OPS: dict[str, OpSpec] = {}


def register(spec: OpSpec) -> OpSpec:
    for name in (*spec.names, *spec.adapters):
        assert name not in OPS, f"{name} is registered twice"
        OPS[name] = spec
    return spec


def op(
    *names: str,
    quant: Rule,
    doc: str = "",
    check: Callable[..., Reason | None] | None = None,
    floats: Callable[..., Any] | None = None,
    decompose: Callable[..., Any] | None = None,
    decomposes_integers: bool = False,
    also: Mapping[str, Adapter] | None = None,
    absorbs: bool = False,
    pointwise: bool = False,
    moves: bool = False,
    homogeneous: int | None = None,
    steps: bool = False,
    truths: bool = False,
    int32: bool = False,
    needs: str = "",
    samples: Sequence[Sample] = (),
    bound: int = 1,
    bound16: int = 1,
) -> Callable[[Callable[..., Any]], OpSpec]:
    """Register a function as the lowering of ``names``.

    ``doc`` replaces the function's docstring, and ``also`` sets ``OpSpec.adapters``. Other arguments are fields of OpSpec.
    """

    def decorate(lower: Callable[..., Any]) -> OpSpec:
        spec = OpSpec(
            names,
            "operator",
            quant,
            doc or inspect.getdoc(lower) or "",
            _source(lower),
            lower,
            check,
            floats,
            decompose,
            decomposes_integers,
            also or {},
            absorbs,
            pointwise,
            moves,
            homogeneous,
            steps,
            truths,
            int32,
            needs,
            samples,
            bound,
            bound16,
        )
        return register(spec)

    return decorate


def composite(
    *names: str,
    floats: Callable[..., Any] | None = None,
    decomposes_integers: bool = False,
    also: Mapping[str, Adapter] | None = None,
    samples: Sequence[Sample] = (),
    bound: int = 1,
    bound16: int = 1,
) -> Callable[[Callable[..., Any]], OpSpec]:
    """Register a function as the decomposition of ``names``. See ``op`` for the arguments."""

    def decorate(function: Callable[..., Any]) -> OpSpec:
        spec = OpSpec(
            names,
            "composite",
            NOT_QUANTIZED,
            inspect.getdoc(function) or "",
            _source(function),
            floats=floats,
            decompose=function,
            decomposes_integers=decomposes_integers,
            adapters=also or {},
            samples=samples,
            bound=bound,
            bound16=bound16,
        )
        return register(spec)

    return decorate


def _source(function: Callable[..., Any]) -> str:
    code = inspect.unwrap(function).__code__
    return f"{code.co_filename.rpartition('/ethorch/')[2]}:{code.co_firstlineno}"


#: Sample shapes for table operators, selected by the operator's name.
_TABLE_SHAPES = ((211,), (3, 71), (2, 5, 21), (1, 8, 5, 5), (2, 3, 1, 5, 7), (1, 2, 3, 2, 3, 6))


def table_op(
    *names: str,
    doc: str,
    quant: QuantRule = EACH_INPUT,
    low: float = -3.0,
    high: float = 3.0,
    calls: Sequence[Sequence[Any] | Mapping[str, Any]] = ((),),
    samples: Sequence[Sample] = (),
    homogeneous: int | None = None,
    steps: bool = False,
    bound16: int = 1,
    floats: str | Callable[..., Any] | None = None,
    lower: Callable[..., Any] | None = None,
    decompose: Callable[..., Any] | None = None,
) -> OpSpec:
    """Register an operator on one tensor as a lookup table, which is computed by running the operator.

    See OpSpec for further arguments.

    Args:
        floats: TOSA operator for floats, or a function of a FloatTensor and the remaining arguments.
        lower: Lowering of int16 inputs, if the function has discontinuities or a few operators compute it exactly.
        low, high: Range of the sample inputs.
        calls: Positional or keyword arguments after the tensor, one entry per sample.
        decompose: Decomposition for integers. It must return None for floats.
    """
    caller = inspect.currentframe()
    assert caller is not None and caller.f_back is not None
    place = f"{caller.f_back.f_code.co_filename.rpartition('/ethorch/')[2]}:{caller.f_back.f_lineno}"
    if not samples:
        x = I8(*_TABLE_SHAPES[zlib.crc32(names[0].encode()) % len(_TABLE_SHAPES)], low=low, high=high)
        samples = [Sample(x, **call) if isinstance(call, Mapping) else Sample(x, *call) for call in calls]
    spec = OpSpec(
        names,
        "table",
        quant,
        doc,
        place,
        lower,
        decompose=decompose,
        decomposes_integers=decompose is not None,
        floats=_operator(floats) if isinstance(floats, str) else None if floats is None else _formula(floats),
        pointwise=True,
        homogeneous=homogeneous,
        steps=steps,
        samples=samples,
        bound16=bound16,
    )
    return register(spec)


def _operator(name: str) -> Callable[..., QTensor]:
    return lambda b, x, *_, **__: QTensor(b.emit(name, x.value), x.dims, x.q)


def _formula(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda b, x, *args, out, **kwargs: function(FloatTensor.of(b, x), *args, **kwargs)


def find(target: Any) -> OpSpec | None:
    return OPS.get(op_name(target))
