"""What ``ethorch.tuning.compress.plan`` chose, as data and as a table."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from torch.fx import GraphModule

from ethorch.support import tables
from ethorch.support.wording import count_noun
from ethorch.tuning.compress.recipe import AS_IS

if TYPE_CHECKING:
    from rich.console import RenderableType

_HEAD = ("weight", "shape", "recipe", "bytes before", "bytes now", "cycles before", "cycles now", "dB alone")


@dataclass(frozen=True)
class Tried:
    """One weight by one recipe.

    Attributes:
        recipe: of the weight.
        cycles, bytes: as of ``Layer``, with this recipe on all weights that it concerns.
        sqnr_db: of the program's outputs, if only this weight were compressed; predicted. inf where nothing changes.
    """

    recipe: str
    cycles: int
    bytes: int
    sqnr_db: float


@dataclass(frozen=True)
class Layer:
    """What the plan does to one weight.

    Attributes:
        weight: its name, the path of the module that reads it.
        shape: of the weight.
        recipe: chosen; ``as-is`` leaves it.
        cycles, cycles_before: of the layers that read it, by Vela, with and without the plan.
        bytes, bytes_before: of its weights and scales, encoded.
        sqnr_db: of the program's outputs, if only this weight were compressed; predicted.
        tried: all recipes, ``as-is`` first.
    """

    weight: str
    shape: tuple[int, ...]
    recipe: str
    cycles: int
    cycles_before: int
    bytes: int
    bytes_before: int
    sqnr_db: float
    tried: tuple[Tried, ...]


@dataclass(frozen=True)
class Plan:
    """What ``ethorch.tuning.compress.plan`` chose.

    Attributes:
        target: name of the NPU.
        layers: an entry for each weight, in the order in which they run.
        cycles, cycles_before: of the NPU in all, by Vela, with and without the plan.
        flash_bytes, flash_bytes_before: of the .pte.
        sqnr_db, sqnr_db_before: against the float model, or against the quantized model where that was given; measured on the
            samples. ``apply`` corrects biases besides, and training gains more.
        reached: True if the plan keeps the limits.
        vela_flags: to compile with besides: on U85, where weights lie in SRAM, ``--disable-fwd`` may be worth more than recipes.
        quantized: the model as it was quantized, nothing compressed: what ``apply`` takes.
    """

    target: str
    layers: tuple[Layer, ...]
    cycles: int
    cycles_before: int
    flash_bytes: int
    flash_bytes_before: int
    sqnr_db: float
    sqnr_db_before: float
    reached: bool
    vela_flags: tuple[str, ...]
    quantized: GraphModule = field(repr=False, compare=False)

    @property
    def recipes(self) -> dict[str, str]:
        """Name of a weight -> recipe, of those that are compressed: what ``apply`` and ``constrain`` take."""
        return {layer.weight: layer.recipe for layer in self.layers if layer.recipe != str(AS_IS)}

    def rows(self) -> list[tuple[str, ...]]:
        """The cells of the table, a row for each weight."""
        return [
            (
                layer.weight,
                "x".join(map(str, layer.shape)),
                layer.recipe,
                f"{layer.bytes_before:,}",
                f"{layer.bytes:,}",
                f"{layer.cycles_before:,}",
                f"{layer.cycles:,}",
                "" if layer.recipe == str(AS_IS) else f"{layer.sqnr_db:.1f}",
            )
            for layer in self.layers
        ]

    def summary(self) -> str:
        """The whole in a sentence or two."""
        goal = f" with {' '.join(self.vela_flags)}" if self.vela_flags else ""
        goal += "" if self.reached else "; the limits do NOT hold"
        return (
            f"{len(self.recipes)} of {count_noun(len(self.layers), 'weight')} compressed for {self.target}: .pte "
            f"{self.flash_bytes_before:,} -> {self.flash_bytes:,} bytes, NPU {self.cycles_before:,} -> {self.cycles:,} cycles, "
            f"SQNR {self.sqnr_db_before:.1f} -> {self.sqnr_db:.1f} dB before any training{goal}"
        )

    def table(self) -> str:
        """As Markdown."""
        lines = [_row(_HEAD), "|---|---|---|--:|--:|--:|--:|--:|", *map(_row, self.rows())]
        return "\n".join([*lines, "", self.summary()])

    __str__ = table

    def rich(self) -> RenderableType:
        """A table of Rich."""
        from rich.console import Group

        table = tables.table()
        for number, name in enumerate(_HEAD):
            table.add_column(name, justify="left" if number < 3 else "right")  # names, then numbers
        for row in self.rows():
            table.add_row(*row)
        return Group(table, "", self.summary())

    def to_json(self) -> dict[str, Any]:
        """As plain data; an SQNR without end is null."""
        totals = ("target", "cycles", "cycles_before", "flash_bytes", "flash_bytes_before", "reached")
        return {
            **{name: getattr(self, name) for name in totals},
            "vela_flags": list(self.vela_flags),
            "sqnr_db": _finite(self.sqnr_db),
            "sqnr_db_before": _finite(self.sqnr_db_before),
            "layers": [
                {
                    **{
                        name: getattr(layer, name)
                        for name in ("weight", "recipe", "cycles", "cycles_before", "bytes", "bytes_before")
                    },
                    "shape": list(layer.shape),
                    "sqnr_db": _finite(layer.sqnr_db),
                    "tried": [
                        {"recipe": each.recipe, "cycles": each.cycles, "bytes": each.bytes, "sqnr_db": _finite(each.sqnr_db)}
                        for each in layer.tried
                    ],
                }
                for layer in self.layers
            ],
        }


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
