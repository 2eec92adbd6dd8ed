from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from torch.fx import GraphModule

from ethorch.support import tables
from ethorch.support.text_files import finite
from ethorch.support.wording import count_noun
from ethorch.tuning.compress.recipe import AS_IS

if TYPE_CHECKING:
    from rich.console import RenderableType

_HEAD = ("weight", "shape", "recipe", "bytes before", "bytes after", "cycles before", "cycles after", "dB alone")


@dataclass(frozen=True)
class Tried:
    """A weight compressed by a recipe.

    Attributes:
        cycles, bytes: This weight's costs if all weights use the recipe. See :class:`Layer`.
        sqnr_db: Predicted SQNR of the program's outputs if only this weight is compressed.
    """

    recipe: str
    cycles: int
    bytes: int
    sqnr_db: float


@dataclass(frozen=True)
class Layer:
    """The plan for one weight.

    Attributes:
        weight: Path of the first module that reads the weight.
        recipe: Chosen recipe. ``as-is`` leaves the weight unchanged.
        cycles, cycles_before: Vela's cycles for the layers that read the weight, with and without the plan.
        bytes, bytes_before: Encoded bytes of the weight and its scales, with and without the plan.
        sqnr_db: See :class:`Tried`.
        tried: Results of all applicable recipes, including ``as-is``.
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
    """The result of ``ethorch.tuning.compress.plan``.

    Attributes:
        layers: Plans for the weights, in execution order.
        cycles, cycles_before: Vela's total NPU cycles, with and without the plan.
        flash_bytes, flash_bytes_before: Size of the .pte in bytes, with and without the plan.
        sqnr_db, sqnr_db_before: SQNR on the samples, relative to the model passed to ``plan``. Training, or bias correction in
            ``apply``, can improve it.
        reached: Whether the plan meets the budgets.
        vela_flags: Additional Vela flags. On the U85 with weights in SRAM, ``--disable-fwd`` may save more than recipes do.
        quantized: Quantized model without compression, for ``apply``.
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
        """The recipes of compressed weights, keyed by weight name, for ``apply`` and ``constrain``."""
        return {layer.weight: layer.recipe for layer in self.layers if layer.recipe != str(AS_IS)}

    def rows(self) -> list[tuple[str, ...]]:
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
        goal = f", Vela flags {' '.join(self.vela_flags)}" if self.vela_flags else ""
        goal += "" if self.reached else "; the budgets are NOT met"
        return (
            f"{len(self.recipes)} of {count_noun(len(self.layers), 'weight')} compressed for {self.target}: .pte "
            f"{self.flash_bytes_before:,} -> {self.flash_bytes:,} bytes, NPU {self.cycles_before:,} -> {self.cycles:,} cycles, "
            f"SQNR {self.sqnr_db_before:.1f} -> {self.sqnr_db:.1f} dB without training{goal}"
        )

    def table(self) -> str:
        lines = [_row(_HEAD), "|---|---|---|--:|--:|--:|--:|--:|", *map(_row, self.rows())]
        return "\n".join([*lines, "", self.summary()])

    __str__ = table

    def rich(self) -> RenderableType:
        from rich.console import Group

        table = tables.table()
        for number, name in enumerate(_HEAD):
            table.add_column(name, justify="left" if number < 3 else "right")  # names, then numbers
        for row in self.rows():
            table.add_row(*row)
        return Group(table, "", self.summary())

    def to_json(self) -> dict[str, Any]:
        totals = ("target", "cycles", "cycles_before", "flash_bytes", "flash_bytes_before", "reached")
        data = {
            **{name: getattr(self, name) for name in totals},
            "vela_flags": list(self.vela_flags),
            "sqnr_db": self.sqnr_db,
            "sqnr_db_before": self.sqnr_db_before,
            "layers": [
                {
                    **{
                        name: getattr(layer, name)
                        for name in ("weight", "recipe", "cycles", "cycles_before", "bytes", "bytes_before")
                    },
                    "shape": list(layer.shape),
                    "sqnr_db": layer.sqnr_db,
                    "tried": [
                        {"recipe": each.recipe, "cycles": each.cycles, "bytes": each.bytes, "sqnr_db": each.sqnr_db}
                        for each in layer.tried
                    ],
                }
                for layer in self.layers
            ],
        }
        rows: dict[str, Any] = finite(data)
        return rows


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
