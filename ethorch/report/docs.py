"""Pages of docs/ that are written from the code: ``python -m ethorch.report.docs [FOLDER]``."""

from __future__ import annotations

import argparse
from pathlib import Path

from ethorch.formats.files import write_whole
from ethorch.report import listings, messages
from ethorch.rewrite.vela_bugs import VELA_BUGS
from ethorch.target.npus import TARGETS, Target

_WRITTEN = "<!-- Written by `python -m ethorch.report.docs`; the tests compare it with the listings. -->"


def operators_page() -> str:
    """A row for each operator: names, formula, quantization, where it lives."""
    rows = listings.operators()
    lines = [
        "# Operators",
        _WRITTEN,
        "",
        f"{len(rows)} entries. `ethorch ops NAME` shows one with its samples. What a target cannot run is in",
        "[targets.md](targets.md).",
        "",
        "| kind | |",
        "| --- | --- |",
        "| operator | It is lowered as it is. |",
        "| table | It is a lookup: it, and any chain of such operators on one tensor, is one pass. "
        "Of int16 it is the sum of a few where the function is steep or jumps. |",
        "| composite | It is made of other operators before calibration, so that what is inside is calibrated too. |",
        "",
        "`FP`: the TOSA backend lowers it of floats too.",
        "",
        "| operator | also | what | kind | FP | source |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for row in rows:
        what = row["what"].replace("|", "\\|")
        also = ", ".join(f"`{name.removeprefix('aten.')}`" for name in row["also"])
        floats = "yes" if row["floats"] else "-"
        lines.append(f"| `{row['name']}` | {also} | {what} | {row['kind']} | {floats} | {row['source'].rpartition(':')[0]} |")
    return "\n".join(lines) + "\n"


def targets_page() -> str:
    """The targets, how lowering is tuned for each family, and the limits of each family."""
    rows = listings.targets()
    lines = ["# Targets", _WRITTEN, "", "| " + " | ".join(rows[0]) + " |", "| " + " | ".join("---" for _ in rows[0]) + " |"]
    lines += ["| " + " | ".join(str(value) for value in row.values()) + " |" for row in rows]
    families: dict[str, Target] = {}
    for target in TARGETS.values():
        families.setdefault(target.family, target)
    lines += [
        "",
        "## Tuning",
        "",
        "Which of several exact ways to say the same in TOSA each family gets: the fields of `Tuning` in",
        "`ethorch/target/tuning.py`, which says what each means. What was measured is in [measurements.md](measurements.md).",
        "",
        "| choice | " + " | ".join(family.upper() for family in families) + " |",
        "| --- |" + " --- |" * len(families),
    ]
    choices = [listings.tuning_rows(target.tuning) for target in families.values()]
    for name in listings.tuning_names(*choices):
        lines.append(f"| {name} | " + " | ".join(rows.get(name, "-") for rows in choices) + " |")
    for family, target in families.items():
        lines += ["", f"## Limits on {family.upper()}", "", "| TOSA operator | limit | allowed |", "| --- | --- | --- |"]
        for name, limits in sorted(target.limits.items()):
            lines += [f"| {name} | {feature} | {text} |" for feature, text in listings.limit_rows(limits)]
        if not target.limits:
            lines.append("| - | none that ethorch's lowering can reach | |")
    return "\n".join(lines) + "\n"


def vela_bugs_page() -> str:
    """A row for each of Vela's known bugs: what it does, where, and what ethorch does about it."""
    lines = [
        "# Vela's known bugs",
        _WRITTEN,
        "",
        "What Vela compiles to a stream that computes something else, or refuses, or does not survive; and what ethorch does",
        "about it. Found with the TOSA reference model and ethorch's simulator. `python -m tests.rewrite.vela_bug_graphs` compiles",
        "small graphs for each, as they stand and as ethorch gives them to Vela.",
        "",
        "| bug | what Vela does | NPUs | versions | what ethorch does |",
        "| --- | --- | --- | --- | --- |",
    ]
    for bug in VELA_BUGS:
        instead = bug.instead if isinstance(bug.instead, str) else (bug.instead.__doc__ or "").partition("\n")[0]
        cells = (f"`{bug.id}`", bug.wrong, ", ".join(bug.families).upper(), ", ".join(bug.versions), instead.replace("``", "`"))
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def messages_page() -> str:
    """A row for each message with an id."""
    rows = messages.messages()
    kinds = {
        "refusal": "Why an operator is on the CPU. It is in `ethorch explain`, `Program.explain()` and `EthosUPartitioner.report`.",
        "error": "What ethorch refuses to quantize, and why.",
        "warning": "What is said on stderr while the work goes on.",
    }
    intro = "Each message ends with an id in brackets. Ids stay; words may change. `...` differs from case to case."
    lines = ["# Messages", _WRITTEN, "", intro]
    for kind, what in kinds.items():
        lines += ["", f"## {kind.capitalize()}s", "", what, "", "| id | message | way out |", "| --- | --- | --- |"]
        for row in rows:
            if row.kind == kind:
                cells = (f"`{row.id}`", _cell(row.text), _cell(row.way_out))
                lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def _cell(text: str) -> str:
    """Text for a cell of a Markdown table: no character of it means anything there."""
    plain = " ".join(text.split())
    for mark in "\\|<>*_`[]":
        plain = plain.replace(mark, f"\\{mark}")
    return plain


def write(folder: Path) -> None:
    """Write the pages."""
    folder.mkdir(parents=True, exist_ok=True)
    write_whole(folder / "ops.md", operators_page().encode())
    write_whole(folder / "targets.md", targets_page().encode())
    write_whole(folder / "vela-bugs.md", vela_bugs_page().encode())
    (folder / "reference").mkdir(exist_ok=True)
    write_whole(folder / "reference" / "messages.md", messages_page().encode())


if __name__ == "__main__":
    parser = argparse.ArgumentParser("python -m ethorch.report.docs", description="Write the pages that are made of the code.")
    parser.add_argument("folder", type=Path, nargs="?", default=Path("docs"), help="where they go (default: docs)")
    write(parser.parse_args().folder)
