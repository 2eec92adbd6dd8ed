"""``Draw``: a network under construction, with the choices that operators make of sizes, values and operands."""

from __future__ import annotations

import math
import random
import types
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from tests.helpers.random_networks.network import NAMESPACE, Line, Network, names_in

T = TypeVar("T")

#: Sizes of axes. Repeated sizes are drawn more often.
SIZES = (
    1, 1, 2, 2, 2, 2, 3, 3, 3, 4, 4, 4, 4, 5, 5, 6, 6, 6, 7, 8, 8, 8, 8, 9, 10, 12, 12, 13, 15, 16, 16, 16, 16, 17, 18, 20, 24, 24,
    30, 32, 32, 33, 48,
)  # fmt: skip
#: Sizes of the long axis of a large network, and of the height and width of a large image.
LONG_SIZES = (65_535, 65_536, 65_537, 66_000, 70_000, 131_073)
PICTURE_SIZES = (255, 256, 256, 257, 300, 512)
MOST_ELEMENTS, MOST_ELEMENTS_OF_LARGE = 1 << 14, 1 << 19
MOST_MACS = 1 << 24
#: Limit of one layer. A compilation needs about twenty times as many bytes.
MOST_PARAMETERS = 1 << 22


class Unfit(Exception):
    """The operator cannot be drawn: no value fits, or PyTorch refuses the call."""


@dataclass(frozen=True)
class Value:
    """A tensor of the network: name, shape on the meta device, and the values from which it is computed.

    Attributes:
        bound: For integers, the largest possible value plus one; None if they may be negative or are unknown.
    """

    name: str
    meta: Tensor
    reads: tuple[str, ...] = ()
    bound: int | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.meta.shape)

    @property
    def rank(self) -> int:
        return self.meta.dim()

    @property
    def kind(self) -> str:
        """``float``, ``int`` or ``bool``."""
        if self.meta.dtype == torch.bool:
            return "bool"
        return "float" if self.meta.dtype.is_floating_point else "int"

    def __str__(self) -> str:
        return self.name


class Draw:
    """The network of a seed, under construction.

    Attributes:
        random: The source of all choices.
        large: True if the network has a long axis or a large image.
        values: All values in the order of their lines.
    """

    def __init__(self, seed: int, attempt: int = 0):
        self.seed = seed
        self.random = random.Random(f"network {seed} {attempt}")
        self.large = random.Random(f"large {seed}").random() < 0.04
        self.sizes = [self.one(SIZES) for _ in range(self.random.randint(2, 4))]
        self.most_elements = MOST_ELEMENTS
        if self.large:
            self.sizes = [self.one((1, 1, 2, 3, 4)) for _ in range(2)]
            self.most_elements = MOST_ELEMENTS_OF_LARGE
        self.values: list[Value] = []
        self.inputs: list[Line] = []
        self.layers: list[Line] = []
        self.lines: list[Line] = []
        self._layers = types.SimpleNamespace()
        self._count = 0

    # --- choices ------------------------------------------------------------------------------------------------------

    def chance(self, probability: float) -> bool:
        return self.random.random() < probability

    def one(self, among: Sequence[T]) -> T:
        if not among:
            raise Unfit("nothing to choose from")
        return among[self.random.randrange(len(among))]

    def between(self, low: int, high: int) -> int:
        return self.random.randint(low, max(low, high))

    def weighted(self, among: Sequence[tuple[float, T]]) -> T:
        """Return one of the second elements, weighted by the first."""
        place = self.random.random() * sum(weight for weight, _ in among)
        for weight, one in among:
            place -= weight
            if place < 0:
                return one
        return among[-1][1]

    def number(self) -> float:
        """Return a scalar constant."""
        return self.one((-1.5, -1.0, -0.5, -0.1, 0.0, 0.1, 0.3, 0.5, 0.7, 1.0, 1.0, 2.0, 3.0))

    def size(self) -> int:
        """Return the size of an axis, mostly one that the network already contains, so that sizes coincide."""
        chosen = self.random.random()
        if chosen < 0.72:
            return self.one(self.sizes)
        if self.large:
            return self.one((1, 2, 3, 4))
        if chosen < 0.84:
            return min(self.one(self.sizes) * self.one(self.sizes), 96)
        return self.one(SIZES)

    def several(self) -> int:
        """Return the number of parts of a split, above 1 and mostly a size of the network."""
        return self.one([size for size in self.sizes if 1 < size <= 8] * 2 + [2, 3])

    def shape(self, rank: int | None = None) -> tuple[int, ...]:
        """Return a shape of at most ``most_elements`` elements."""
        for _ in range(20):
            axes = self.weighted(((1, 1), (3, 2), (6, 3), (6, 4), (1, 5))) if rank is None else rank
            shape = [1 if self.chance(0.12) else self.size() for _ in range(axes)]
            if axes > 2 and self.chance(0.7):
                shape[0] = 1
            if self.large and not self.values:
                if axes >= 3 and self.chance(0.4):
                    shape[-2:] = [self.one(PICTURE_SIZES), self.one(PICTURE_SIZES)]
                else:
                    shape[self.between(0, axes - 1)] = self.one(LONG_SIZES)
            if math.prod(shape) <= self.most_elements:
                return tuple(shape)
        return tuple(1 if self.large else min(size, 8) for size in shape)

    # --- values -------------------------------------------------------------------------------------------------------

    def value(self, kind: str = "float", where: Callable[[Value], bool] = lambda value: True) -> Value:
        """Return a value of a kind for which ``where`` is True, preferring late values and those without readers.

        Raises:
            Unfit: No value fits.
        """
        read = {name for value in self.values for name in value.reads}
        fitting = [value for value in self.values if value.kind == kind and value.rank and where(value)]
        if not fitting:
            raise Unfit(f"no {kind} fits")
        return self.weighted([(1 + place + 3 * (value.name not in read), value) for place, value in enumerate(fitting)])

    def of_rank(self, *ranks: int) -> Value:
        """Return a value of one of these ranks: an existing one, a view of another, or an input."""
        fitting = [value for value in self.values if value.kind == "float" and value.rank in ranks]
        if fitting and self.chance(0.85):
            return self.value(where=lambda value: value.rank in ranks)
        if self.chance(0.3) and not self.large:
            return self.input(self.shape(self.one(ranks)))
        value, rank = self.value(), self.one(ranks)
        while value.rank < rank:
            value = self.emit(f"{value}.unsqueeze({self.between(0, value.rank)})")
        while value.rank > rank:
            axis = self.between(0, value.rank - 2)
            value = self.emit(f"{value}.flatten({axis}, {axis + 1})")
        return value

    def axis(self, value: Value, least: int = 1) -> int:
        """Return an axis of at least ``least`` elements."""
        return self.one([axis for axis, size in enumerate(value.shape) if size >= least])

    def axis_text(self, value: Value, axis: int) -> str:
        """Return the axis as an argument, sometimes counted from the end."""
        return str(axis - value.rank if self.chance(0.4) else axis)

    # --- lines --------------------------------------------------------------------------------------------------------

    def input(self, shape: Sequence[int], kind: str = "float", bound: int | None = None) -> Value:
        """Return a new input. Integers are at least 0 and below ``bound``."""
        sizes = ", ".join(map(str, shape))
        if kind == "float":
            text = self.weighted(
                (
                    (6, f"torch.randn({sizes})"),
                    (1, f"torch.rand({sizes})"),
                    (1, f"3 * torch.randn({sizes})"),
                    (1, f"torch.randn({sizes}) + 1"),
                )
            )
        elif kind == "bool":
            text = f"torch.randn({sizes}) > 0"
        else:
            dtype = "" if self.chance(0.6) else ", dtype=torch.int32"
            text = f"torch.randint(0, {bound or 20}, ({sizes},){dtype})"
            bound = bound or 20
        value = self._evaluated(text)
        assert isinstance(value, Tensor)
        name = f"x{len(self.inputs)}"
        self.inputs.append((name, text))
        self.values.append(Value(name, value, bound=bound))
        return self.values[-1]

    def layer(self, expression: str, prefix: str = "l") -> str:
        """Add an attribute of the module and return its name in ``forward``.

        Raises:
            Unfit: PyTorch refuses it, or it has too many parameters.
        """
        name, made = f"{prefix}{len(self.layers)}", self._evaluated(expression)
        tensors = (*made.parameters(), *made.buffers()) if isinstance(made, nn.Module) else (made,)
        if sum(tensor.numel() for tensor in tensors) > MOST_PARAMETERS:
            raise Unfit("too many parameters")
        setattr(self._layers, name, made)
        self.layers.append((name, expression))
        return f"self.{name}"

    def parameter(self, shape: Sequence[int]) -> str:
        return self.layer(f"nn.Parameter(torch.randn({', '.join(map(str, shape))}))", "p")

    def emit(self, expression: str, bound: int | None = None) -> Value:
        """Add a line with one result and return it.

        Raises:
            Unfit: PyTorch refuses the call, or the result is too large.
        """
        return self.emit_all(expression, bound)[0]

    def emit_all(self, expression: str, bound: int | None = None) -> list[Value]:
        """Add a line with a result or a tuple of results."""
        result = self._evaluated(expression)
        results = [result] if isinstance(result, Tensor) else list(result)
        if not results or not all(isinstance(one, Tensor) and 0 < one.numel() <= self.most_elements for one in results):
            raise Unfit("the result is no tensor, empty or too large")
        if any(one.dim() > 6 for one in results):
            raise Unfit("the result has too many axes")
        reads = tuple(value.name for value in self.values if value.name in names_in(expression))
        made = [Value(f"v{self._count + place}", one, reads, bound) for place, one in enumerate(results)]
        self._count += len(made)
        targets = ", ".join(value.name for value in made) + ("," if not isinstance(result, Tensor) and len(made) == 1 else "")
        self.lines.append((targets, expression))
        self.values += made
        return made

    def _evaluated(self, expression: str) -> Any:
        names = {**NAMESPACE, "self": self._layers, **{value.name: value.meta for value in self.values}}
        try:
            with torch.device("meta"), torch.no_grad(), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                return eval(expression, names)
        except (RuntimeError, ValueError, IndexError, TypeError, NotImplementedError, AssertionError) as error:
            raise Unfit(f"{expression}: {error}") from None

    # --- operands -----------------------------------------------------------------------------------------------------

    def spread(self, shape: Sequence[int]) -> tuple[int, ...]:
        """Return a shape that broadcasts to ``shape``."""
        result = [size if self.chance(0.5) else 1 for size in shape]
        return tuple(result[self.between(0, len(result) - 1) :]) if self.chance(0.3) else tuple(result)

    def operand(self, x: Value) -> str:
        """Return a value or number that broadcasts with ``x``, if possible a related value."""
        ways: list[tuple[float, Callable[[Value], str]]] = [
            (4, self._of_same_shape),
            (3, self._relative),
            (3, lambda x: str(self.piece(x.shape))),
            (2, self._broadcast_value),
            (2, self._viewed),
            (2, self._reduced),
            (1.5, lambda x: str(self.input(self.spread(x.shape)))),
            (1, lambda x: self.parameter(self.spread(x.shape))),
            (1.5, lambda x: str(self.number())),
            (1, lambda x: str(self.unary(x))),
            (1, lambda x: str(self.emit(f"torch.flip({x}, [{self.axis(x)}])"))),
        ]
        for _ in range(4):
            try:
                return self.weighted(ways)(x)
            except Unfit:
                continue
        return str(self.number())

    def tensor_operand(self, x: Value) -> Value:
        """Return a value with the shape of ``x``."""
        ways = [
            (3, self._of_same_shape),
            (2, self._relative),
            (2, lambda x: str(self.piece(x.shape, whole=True))),
            (1, lambda x: str(self.unary(x))),
        ]
        for _ in range(4):
            try:
                name = self.weighted(ways)(x)
            except Unfit:
                continue
            found = next((value for value in self.values if value.name == name), None)
            if found is not None and found.shape == x.shape:
                return found
        return self.input(x.shape)

    def _of_same_shape(self, x: Value) -> str:
        return str(self.value(where=lambda value: value.shape == x.shape and value.name != x.name))

    def _relative(self, x: Value) -> str:
        """Return an ancestor or descendant of ``x``, or ``x``."""
        near = [value for value in self.values if value.name in x.reads or x.name in value.reads or value.name == x.name]
        return str(self.one([value for value in near if value.kind == "float" and broadcasts(value.shape, x.shape)]))

    def _broadcast_value(self, x: Value) -> str:
        return str(self.value(where=lambda value: broadcasts(value.shape, x.shape)))

    def _viewed(self, x: Value) -> str:
        """Return a value with as many elements in the shape of ``x``, as a view or with exchanged axes."""
        other = self.value(where=lambda value: math.prod(value.shape) == math.prod(x.shape) and value.shape != x.shape)
        if sorted(other.shape) == sorted(x.shape) and self.chance(0.6):
            order = matching_order(other.shape, x.shape)
            return str(self.emit(f"{other}.permute({', '.join(map(str, order))})"))
        return str(self.emit(f"{other}.reshape({', '.join(map(str, x.shape))})"))

    def _reduced(self, x: Value) -> str:
        """Return one element of ``x`` along an axis."""
        axis = self.axis(x)
        where = self.axis_text(x, axis)
        start = self.between(0, x.shape[axis] - 1)
        return str(
            self.emit(
                self.one(
                    (
                        f"{x}.mean({where}, keepdim=True)",
                        f"{x}.amax({where}, keepdim=True)",
                        f"{x}.sum({where}, keepdim=True)",
                        f"{x}.narrow({where}, {start}, 1)",
                    )
                )
            )
        )

    def unary(self, x: Value) -> Value:
        """Return an elementwise function of ``x``."""
        return self.emit(self.one(UNARY).format(x=x))

    def piece(self, shape: Sequence[int], whole: bool = False) -> Value:
        """Return one of several equal pieces of a wide value, with ``shape`` or one that broadcasts to it.

        The wide value is an existing one, an input, or the result of a linear layer.

        Args:
            whole: Return a piece of ``shape`` itself.
        """
        axis = self.one([axis for axis, size in enumerate(shape)])
        count = self.several()
        wide = list(shape)
        if not whole and self.chance(0.5):
            wide = [size if place == axis or self.chance(0.3) else 1 for place, size in enumerate(shape)]
        size = wide[axis]
        wide[axis] = count * size
        units = [place for place, one in enumerate(wide) if one == 1 and place != axis]
        dropped = [place for place in units if self.chance(0.5)] if not whole or self.chance(0.3) else []
        stored = [one for place, one in enumerate(wide) if place not in dropped]
        if math.prod(stored) > self.most_elements:
            raise Unfit("the wide value is too large")
        axis -= sum(place < axis for place in dropped)
        source = self._wide(stored, axis)
        result = self.cut(source, axis, size, count)
        for place in dropped:
            result = self.emit(f"{result}.unsqueeze({place})")
        return result

    def _wide(self, shape: Sequence[int], axis: int) -> Value:
        fitting = [value for value in self.values if value.kind == "float" and value.shape == tuple(shape)]
        if fitting and self.chance(0.7):
            return self.one(fitting)
        if axis == len(shape) - 1 and self.chance(0.4):
            rows = [
                v for v in self.values if v.kind == "float" and v.rank and v.shape[:-1] == tuple(shape[:-1]) and v.shape[-1] <= 64
            ]
            if rows:
                before = self.one(rows)
                return self.emit(f"{self.layer(f'nn.Linear({before.shape[-1]}, {shape[-1]})')}({before})")
        return self.input(shape)

    def cut(self, x: Value, axis: int, size: int, count: int) -> Value:
        """Return one of ``count`` pieces of ``size`` elements along an axis."""
        place = self.between(0, count - 1)
        where = self.axis_text(x, axis)
        start = place * size if self.chance(0.7) else self.between(0, x.shape[axis] - size)
        colons = ":, " * axis
        return self.emit(
            self.weighted(
                (
                    (3, f"{x}[{colons}{start}:{start + size}]"),
                    (2, f"{x}.narrow({where}, {start}, {size})"),
                    (2, f"{x}.chunk({count}, {where})[{place}]"),
                    (1, f"torch.split({x}, {size}, {where})[{place}]"),
                    (1, f"{x}[{colons}{place}::{count}]"),
                    (1, f"{x}.unflatten({axis}, ({count}, {size})).select({axis}, {place})"),
                    (1, f"{x}.unflatten({axis}, ({size}, {count})).select({axis + 1}, {place})"),
                )
            )
        )

    # --- the end ------------------------------------------------------------------------------------------------------

    def network(self) -> Network:
        """Return the network. Values without readers are outputs, and sometimes a few others."""
        read = {name for value in self.values for name in value.reads}
        inputs = {name for name, _ in self.inputs}
        results = [value for value in self.values if value.name not in inputs]
        unread = [value.name for value in results if value.name not in read]
        others = [value.name for value in results if value.name in read]
        outputs = unread[-4:]
        if others and self.chance(0.35):
            outputs += dict.fromkeys(self.one(others) for _ in range(self.between(1, 2)))
        if self.chance(0.2):
            self.random.shuffle(outputs)
        network = Network(self.seed % (1 << 31), tuple(self.inputs), tuple(self.layers), tuple(self.lines), tuple(outputs))
        return network.pruned()


#: Functions of one tensor.
UNARY = (
    "torch.relu({x})", "torch.relu({x})", "torch.sigmoid({x})", "torch.sigmoid({x})", "torch.tanh({x})", "F.silu({x})",
    "F.gelu({x})", "F.hardswish({x})", "F.hardsigmoid({x})", "F.hardtanh({x})", "F.relu6({x})", "{x}.abs()", "{x}.abs()", "-{x}",
    "{x}.clamp(-1, 1)", "{x}.clamp(min=0.1)", "F.leaky_relu({x}, 0.1)", "F.elu({x})", "F.softplus({x})", "F.mish({x})",
    "{x} * {x}", "torch.sqrt({x}.abs())", "torch.rsqrt({x}.abs() + 0.1)", "1 / ({x}.abs() + 1)", "torch.exp(-{x}.abs())",
    "torch.log({x}.abs() + 1)", "torch.sin({x})", "torch.floor({x})", "torch.round({x})", "torch.sign({x})", "{x} ** 2",
    "{x} * 0.5", "{x} + 1", "1 - {x}", "{x} / 3", "{x}.contiguous()", "torch.erf({x})", "{x}.clone()",
)  # fmt: skip


def broadcasts(shape: Sequence[int], to: Sequence[int]) -> bool:
    """Return True if ``shape`` broadcasts to ``to`` itself."""
    return len(shape) <= len(to) and all(a in (1, b) for a, b in zip(reversed(shape), reversed(to), strict=False))


def matching_order(shape: Sequence[int], wanted: Sequence[int]) -> list[int]:
    """Return the permutation from ``shape`` to ``wanted``."""
    left = list(range(len(shape)))
    order = []
    for size in wanted:
        axis = next(axis for axis in left if shape[axis] == size)
        left.remove(axis)
        order.append(axis)
    return order
