"""OpSpec, the ``@op`` decorator and the table ``OPS``: all there is to say of an operator, in one place.

The contract of a lowering, ``lower(b, *aten_args, out, **aten_keywords) -> QTensor``:

- ``b`` is the Builder it emits TOSA with. Arguments come in the order, under the names and with the defaults of the canonical
  ATen schema; keyword-only ones as keywords. A tensor is a QTensor, a constant that is not quantized a NumPy array.
- Integers in, integers out: codes of quantized tensors, plain integers, truth values. The result has the logical shape
  ``out.shape`` and the QParams ``out.q``: those of the node's quantize user, looked up through operators marked ``absorbs``
  (so relu behind a convolution costs nothing). Where ``out.q`` is None the result is plain integers or truth values of
  ``out.dtype``; INT32 in place of INT8 or INT16 is wrapped behind it. An operator that has to have QParams says
  ``out.qparams``, and is refused where there are none.
- It changes nothing but ``b``: all that it knows of the result is in ``out``.
- It raises Unsupported for what the target or TOSA cannot do. Any other exception is a defect and reaches the user.
- The walk, not the lowering, stamps origins and checks the result's shape and QParams.

The contract of a lowering of floats (``OpSpec.floats``) is the same with floats for codes: its tensors are floats, plain
integers and constants, ``out.q`` is ``float_qparams(out.dtype)`` or None, and it may return a FloatTensor, or any float dtype,
which is cast behind it. Of an operator without one, ``lower`` is called in this way: floats are codes that mean themselves.

Bounds. ``OpSpec.bound`` is by how many steps of its output an operator may differ from fake-quantized PyTorch, over all of its
samples in int8; ``OpSpec.bound16`` the same with int16 activations. ``python -m tests.helpers.ladder NAME``, and the same with
``--int16``, prints what the samples need, in seconds. How to choose:

- An operator that rounds once, at its end, needs 1: its one rounding and PyTorch's may fall on either side of a half.
- A composite: each operator inside may round to the other side than PyTorch. What stands behind it turns that step into steps of
  the output. In int8 that is rare, and 1 is mostly enough. The codes of int16 are so fine that it happens in some element of every
  sample: it needs about as many as it has operators in a row, more where a function inside is steep.
- A table of int16 is interpolated between 513 entries. It needs what its samples show: much where the function is steep.
- A function that jumps may need all of a jump, if what it is given was rounded.

A bound above 1 has its reason in the documentation. A step of int16 is 1/256 of a step of int8 over the same range: a ``bound16``
below 256 is finer than int8 is. Where the ladder shows more than these rules explain, the lowering is wrong, not the bound.
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

#: A rule, or a function from the FX node to its rule where the arguments decide.
Rule = QuantRule | Callable[[Any], QuantRule]
Adapter = Callable[..., tuple[tuple[Any, ...], dict[str, Any]]]
Kind = Literal["operator", "table", "composite"]


@dataclass(frozen=True, eq=False)
class OpSpec:
    """One operator of PyTorch on the NPU. It is frozen: all of it is said in one place, where the operator is defined.

    Attributes:
        names: ATen names it answers to, the canonical one first; in-place forms answer by the name without underscore.
        kind: ``operator``: it has a lowering. ``composite``: it is only ever decomposed. ``table``: a function of one tensor
            that is a lookup table, its entries computed by running the function.
        quant: which of its inputs and outputs are quantized, and how.
        doc: its documentation; the first paragraph says what it computes.
        source: file and line of its definition, below ``ethorch/``.
        lower: ``lower(b, *aten_args, out) -> QTensor``, to the contract above; None for a composite, and for a table that needs
            no other form.
        check: a function of the operator's arguments that returns the Reason why TOSA cannot express them, or None.
        floats: ``floats(b, *aten_args, out) -> FloatTensor | QTensor``, the lowering of float tensors where ``lower`` is none.
        decompose: ``decompose(s, *aten_args) -> Node | Sequence[Node | None] | None``: draws other operators on the AtenBuilder
            ``s`` that replace the node before annotation, so that what is inside is calibrated. It returns the node that stands
            for the result, or one for each result; None leaves the node as it is (see ethorch.quantization.passes.decompose).
        decomposes_integers: ``decompose`` is to be called for integer results too.
        adapters: spelling -> function from its arguments to those of the canonical one.
        absorbs: it costs nothing behind an operator that has its own output scale (clamps, no-ops).
        pointwise: each output element depends on one element of each input: a chain on one input is one TABLE.
        moves: the result is the elements of its input, each once, in another place or under another shape.
        homogeneous: f(s x) = s f(x) for any s > 0 that is one number along so many of the last axes: 0 for an operator of
            single elements, 2 for one that mixes a map's; None where this does not hold.
        steps: the function jumps. Interpolation between the entries of an int16 table would round off the jumps.
        truths: its operands are truth values: others are true if they are not 0.
        int32: its lowering takes and returns activations that are quantized to int32.
        needs: the TOSA operator that reads a computed index for it. A target without it is the reason to refuse such an index.
        samples: calls that tests and documentation try.
        bound: by how many steps of its output it may differ from fake-quantized PyTorch in int8 (see above).
        bound16: the same with int16 activations.
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
        """Positions of the arguments that the lowering declares to be tensors or sequences of them, and takes no constants for."""
        if self.lower is None:
            return frozenset()
        parameters = list(inspect.signature(self.lower).parameters.values())[1:]  # without the builder
        return frozenset(k for k, p in enumerate(parameters) if p.annotation in ("QTensor", "Sequence[QTensor]"))

    @property
    def takes_floats(self) -> bool:
        """Has it a lowering of float tensors? Integer operators have none to have."""
        return self.floats is not None or self.decompose is not None or (self.lower is not None and self.quant is not NOT_QUANTIZED)

    @property
    def composite(self) -> bool:
        """Is it only ever decomposed?"""
        return self.kind == "composite"

    @property
    def name(self) -> str:
        """The canonical ATen name."""
        return self.names[0]

    @property
    def table_dtypes(self) -> tuple[str, ...]:
        """TOSA dtypes of an input whose chain may be a TABLE. An int16 that jumps, or has a better lowering, is none."""
        if not self.pointwise:
            return ()
        return ("INT8",) if self.steps or (self.kind == "table" and self.lower is not None) else ("INT8", "INT16")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The decorated function: the lowering, or a composite's decomposition."""
        function = self.decompose if self.kind == "composite" else self.lower
        assert function is not None, f"{self.name} is only ever a table"
        return function(*args, **kwargs)

    def rule(self, node: Any) -> QuantRule:
        """The quantization rule of that FX node."""
        return self.quant if isinstance(self.quant, QuantRule) else self.quant(node)

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
    """Decorator: the function is the lowering of the ATen operators ``names`` (and of ``also``, through an adapter).

    ``doc`` stands in for the function's docstring; all other arguments are fields of OpSpec.
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
    """Decorator: the function decomposes the ATen operators ``names`` before annotation; they have no lowering of integers.

    The arguments are fields of OpSpec.
    """

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
    """``lower/ops/conv.py:60``: where a function is defined."""
    code = inspect.unwrap(function).__code__
    return f"{code.co_filename.rpartition('/ethorch/')[2]}:{code.co_firstlineno}"


#: Shapes of the samples of tables, of every rank; a table does not care, so each has one, chosen by its name.
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
    """An operator of one tensor that is a lookup table, its entries computed by running it.

    Args:
        floats: the TOSA operator that computes it of floats, or a formula of a FloatTensor and the further arguments.
        lower: a lowering for the inputs that no table is made for: int16, of a function that jumps or is a few exact operators.
        low, high: where the samples' inputs lie.
        calls: what follows the tensor in each sample: arguments, or keywords. Instead of samples.
        decompose: Decomposition of integers. It returns None for floats.
        homogeneous, steps, bound16: see OpSpec.
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
    """The lowering of floats that is one TOSA operator, in the dtype of its operand."""
    return lambda b, x, *_, **__: QTensor(b.emit(name, x.value), x.dims, x.q)


def _formula(function: Callable[..., Any]) -> Callable[..., Any]:
    """The lowering of floats that is a formula: its first argument is made a FloatTensor."""
    return lambda b, x, *args, out, **kwargs: function(FloatTensor.of(b, x), *args, **kwargs)


def find(target: Any) -> OpSpec | None:
    """The spec of an FX target, or None."""
    return OPS.get(op_name(target))
