"""Where each operator of a program runs, what it costs, why it is there, and what would change that."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from ethorch.figures import Layer
from ethorch.lower.partition_report import PartitionReport, Refusal
from ethorch.report.rendered import as_html, as_text

if TYPE_CHECKING:
    from rich.console import RenderableType


@dataclass(frozen=True)
class Operator:
    """One row.

    Attributes:
        operator: PyTorch's operators; of a file, the NPU's operation or ExecuTorch's kernel.
        where: ``NPU`` or ``CPU``.
        delegate: number of the delegate, None on the CPU.
        module, source: path of the module, ``file.py:line``; empty where unknown.
        cycles: estimated; None where only the file is known, or of an operator that has no layer of its own.
        share: of the program's cycles, 0 to 1.
        bound: what its cycles are spent on.
        id, reason, way_out: of an operator that the NPU does not run: a stable name, a sentence, what to do.
    """

    operator: str
    where: str
    delegate: int | None
    module: str
    source: str
    cycles: int | None = None
    share: float | None = None
    bound: str = ""
    id: str = ""
    reason: str = ""
    way_out: str = ""


@dataclass(frozen=True)
class Explanation:
    """All operators of a program; ``print`` it, or take ``operators``.

    Attributes:
        target: name of the NPU.
        operators: in the order of execution; what the NPU refused comes last, with its reasons.
    """

    target: str
    operators: tuple[Operator, ...]

    def to_json(self) -> dict[str, Any]:
        """As plain data; keys are the attributes' names."""
        return {"target": self.target, "operators": [asdict(operator) for operator in self.operators]}

    def rich(self) -> RenderableType:
        """A table of Rich, and a paragraph for each reason."""
        from rich.console import Group
        from rich.table import Table

        table = Table(box=None, header_style="bold", pad_edge=False)
        for name, justify in (("where", "left"), ("operator", "left"), ("module", "left"), ("source", "left")):
            table.add_column(name, justify=justify)  # type: ignore[arg-type]
        for name in ("cycles", "share"):
            table.add_column(name, justify="right")
        table.add_column("bound by")
        for row in self.operators:
            where = row.where if row.delegate is None else f"{row.where} {row.delegate}"
            share = "" if row.share is None else f"{row.share:.1%}"
            cycles = "" if row.cycles is None else f"{row.cycles:,}"
            table.add_row(where, row.operator, row.module, row.source, cycles, share, row.bound)
        refused = [row for row in self.operators if row.reason]
        lines = []
        for row in refused:
            module, source = f"at {row.module}" if row.module else "", f"({row.source})" if row.source else ""
            place = " ".join(filter(None, (row.operator, module, source)))
            lines.append(f"{place}: {row.reason} [{row.id}] {row.way_out}".rstrip())
        count = sum(row.where == "NPU" for row in self.operators)
        last = f"{count} of {len(self.operators)} on {self.target or 'the NPU'}."
        return Group(table, *(["", "On the CPU:"] if lines else []), *lines, "", last)

    def __str__(self) -> str:
        return as_text(self.rich())

    def _repr_html_(self) -> str:
        return as_html(self.rich())


def explanation(
    target: str, layers: Sequence[Layer], partition: PartitionReport | None, operator: str | None = None, cpu_only: bool = False
) -> Explanation:
    """The rows, from the layers and from what the partitioner said.

    Args:
        target: name of the NPU.
        layers: of the program.
        partition: None of a file: it does not say why an operator is on the CPU.
        operator: only rows with this in the operator's name.
        cpu_only: only what is not on the NPU.
    """
    rows = [
        Operator(
            ", ".join(layer.operators) or layer.operator,
            layer.where,
            layer.delegate,
            layer.module,
            layer.source,
            layer.cycles,
            layer.share,
            layer.bound,
        )
        for layer in layers
    ]
    for refusal in [] if partition is None else [*partition.refusals, *partition.without_kernel]:
        _add(rows, refusal)
    wanted = [row for row in rows if (operator is None or operator in row.operator) and (row.where == "CPU" or not cpu_only)]
    return Explanation(target, tuple(wanted))


def _add(rows: list[Operator], refusal: Refusal) -> None:
    """Give the row that is meant its reason; a new row where the operator has none of its own, or has another reason."""
    origin, reason = refusal.origin, refusal.reason
    new = Operator(
        origin.target, "CPU", None, origin.module, origin.source, id=reason.id, reason=reason.text, way_out=reason.way_out
    )
    for number, row in enumerate(rows):
        same = (row.where, row.operator, row.module, row.source) == (new.where, new.operator, new.module, new.source)
        if same and row.id in ("", new.id):
            rows[number] = replace(new, cycles=row.cycles, share=row.share, bound=row.bound)
            return
    rows.append(new)
