"""docs/ops.md and docs/targets.md, written from the tables: ``python -m ethorch.report.docs [FOLDER]``."""

from __future__ import annotations

import sys
from pathlib import Path

from ethorch.flow import write_whole
from ethorch.report import tables
from ethorch.target import TARGETS

_WRITTEN = "<!-- Written by `python -m ethorch.report.docs`; the tests compare it with the tables. -->"


def operators_page() -> str:
    """A row for each operator: names, formula, quantization, where it lives."""
    rows = tables.operators()
    lines = [
        "# Operators",
        _WRITTEN,
        "",
        f"{len(rows)} entries. `ethorch ops NAME` shows one with its samples; what a target cannot run of it is in",
        "[targets.md](targets.md). A `table` is a lookup: it, and any chain of such operators on one tensor, is one pass; of",
        "int16 it is the sum of a few where the function is steep or jumps.",
        "",
        "`FP`: the TOSA backend lowers it of floats too.",
        "",
        "| operator | also | what | form | FP | source |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for row in rows:
        what = row["doc"].partition("\n")[0].replace("|", "\\|")
        also = ", ".join(f"`{name.removeprefix('aten.')}`" for name in row["also"])
        floats = "yes" if row["floats"] else "-"
        lines.append(f"| `{row['name']}` | {also} | {what} | {row['form']} | {floats} | {row['source'].rpartition(':')[0]} |")
    return "\n".join(lines) + "\n"


def targets_page() -> str:
    """The targets, and the limits of each family."""
    rows = tables.targets()
    lines = ["# Targets", _WRITTEN, "", "| " + " | ".join(rows[0]) + " |", "| " + " | ".join("---" for _ in rows[0]) + " |"]
    lines += ["| " + " | ".join(str(value) for value in row.values()) + " |" for row in rows]
    for family in dict.fromkeys(target.family for target in TARGETS.values()):
        target = next(target for target in TARGETS.values() if target.family == family)
        lines += ["", f"## Limits on {family.upper()}", "", "| TOSA operator | limit | allowed |", "| --- | --- | --- |"]
        for name, limits in sorted(target.limits.items()):
            lines += [f"| {name} | {feature} | {text} |" for feature, text in tables.limit_rows(limits)]
        if not target.limits:
            lines.append("| - | none that ethorch's lowering can reach | |")
    return "\n".join(lines) + "\n"


def write(folder: Path) -> None:
    """Write both pages."""
    folder.mkdir(parents=True, exist_ok=True)
    write_whole(folder / "ops.md", operators_page().encode())
    write_whole(folder / "targets.md", targets_page().encode())


if __name__ == "__main__":
    write(Path(sys.argv[1] if len(sys.argv) > 1 else "docs"))
