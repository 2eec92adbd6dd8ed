"""Pages of docs/ that are written from the code: ``python -m tools.docs [FOLDER]``."""

from __future__ import annotations

import argparse
from pathlib import Path

from ethorch.deploy.virtual_board.faults import BUS_ERROR, PARSE_ERROR, RULES
from ethorch.formats.files import write_whole
from ethorch.lower.rewrite.vela_bugs import VELA_BUGS
from ethorch.report import listings
from ethorch.report.limit_words import feature_words
from ethorch.report.support import FAMILIES
from ethorch.targets.npus import TARGETS, TUNING, Target
from tools import board_page, messages, operators

_WRITTEN = "<!-- Written by `python -m tools.docs`; the tests compare it with the listings. -->"


def operators_page() -> str:
    """A row for each operator: PyTorch's names, which NPUs run it in which type, what it computes; and what is refused."""
    rows = listings.operators()
    lines = [
        "# Operators",
        _WRITTEN,
        "",
        f"{len(rows)} entries. Each was tried with a few calls on an NPU of each family, quantized to int8 and to int16, and of",
        "floats for TOSA's FP profile: by a dry run of the lowering, as the partitioner makes it.",
        "",
        "- **all**: every call runs on the NPU; **no**: none does.",
        "- **3 of 5**: so many do, the others stay on the CPU for the reasons [below](#what-stays-on-the-cpu).",
        "- **a / b**: int8 and int16, where they differ.",
        "",
        "`ethorch ops NAME` shows one operator with limits, cost and an example.",
        "[Targets](targets.md) has the limits of each NPU.",
        "",
        "An operator that is not here stays on the CPU; `ethorch explain` says what to use instead.",
        "",
        "| operator | in PyTorch | U55 | U65 | U85 | float | what |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for row in rows:
        what = row["what"].replace("|", "\\|")
        names = ", ".join(f"`{name}`" for name in row["pytorch"])
        families = " | ".join(listings.verdicts(row, family) for family in FAMILIES)
        lines.append(f"| `{row['name']}` | {names} | {families} | {row['support']['TOSA FP']} | {what} |")
    lines += ["", "## What stays on the CPU", "", "Of the calls that were tried.", ""]
    for row in rows:
        for refusal in row["refused"]:
            calls = f"{refusal['refused']} of {row['calls']} calls, such as `{refusal['calls'][0]}`"
            lines.append(
                f"- `{row['name']}` on {', '.join(refusal['cases'])}, {calls}: {refusal['reason']} [{refusal['id']}] "
                f"{refusal['way_out']}".rstrip()
            )
    lines += ["", "## Other spellings", "", "Names in exported graphs that are lowered as the operator before them.", ""]
    for row in rows:
        if row["also"]:
            lines.append(f"- `{row['name']}`: {', '.join(f'`{name}`' for name in row['also'])}")
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
        "`ethorch/targets/tuning.py`, which says what each means. What was measured is in [measurements.md](measurements.md).",
        "",
        "| choice | " + " | ".join(family.upper() for family in families) + " |",
        "| --- |" + " --- |" * len(families),
    ]
    choices = [listings.tuning_rows(TUNING[family]) for family in families]
    for name in listings.tuning_names(*choices):
        chosen = [rows.get(name, "-") for rows in choices]
        if set(chosen) != {"no"}:  # of single configurations only: ``ethorch targets --diff``
            lines.append(f"| {name} | " + " | ".join(chosen) + " |")
    same: dict[tuple[str, ...], list[str]] = {}
    for family, target in families.items():
        found = []
        for name, limits in sorted(target.limits.items()):
            for feature, text in listings.limit_rows(limits):
                allowed = limits.ranges.get(feature) if limits.present else None
                found.append(f"| {name} | {feature} | {text} | {'' if allowed is None else feature_words(feature, allowed)} |")
        same.setdefault(tuple(found), []).append(family.upper())
    for found_rows, names in same.items():
        lines += ["", f"## Limits on {' and '.join(names)}", "", "| TOSA operator | limit | allowed | a call may have |"]
        lines += ["| --- | --- | --- | --- |", *found_rows]
    return "\n".join(lines) + "\n"


def vela_bugs_page() -> str:
    """Return a table of Vela's known bugs and their workarounds."""
    lines = [
        "# Vela's known bugs",
        _WRITTEN,
        "",
        "Graphs that Vela refuses or compiles incorrectly, and ethorch's workarounds. The bugs were found by comparing Vela's",
        "output in ethorch's simulator with the TOSA reference model. `python -m tests.lower.rewrite.vela_bug_findings`",
        "compiles small graphs for each bug, with and without the workaround.",
        "",
        "| Bug | Description | NPUs | Vela versions | Workaround |",
        "| --- | --- | --- | --- | --- |",
    ]
    for bug in VELA_BUGS:
        instead = bug.instead if isinstance(bug.instead, str) else (bug.instead.__doc__ or "").partition("\n")[0]
        npus = ", ".join(bug.families).upper() + (", 16 KB of SHRAM" if bug.small_shram else "")
        cells = (f"`{bug.id}`", bug.wrong, npus, ", ".join(bug.versions), instead.replace("``", "`"))
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


_HEADS = {"writer": "Programs written by ExecuTorch"}


def messages_page() -> str:
    """A row for each message with an id."""
    rows = messages.messages()
    kinds = {
        "refusal": "Why an operator is on the CPU. It is in `ethorch explain`, `Program.explain()` and `EthosUPartitioner.report`.",
        "writer": "Why ExecuTorch's lowering wrote a program. The payloads are the same. `ethorch explain` and the report show it.",
        "error": "What ethorch refuses to quantize, and why.",
        "warning": "What is said on stderr while the work goes on.",
    }
    intro = "Each message ends with an id in brackets. Ids stay; words may change. `...` differs from case to case."
    lines = ["# Messages", _WRITTEN, "", intro]
    for kind, what in kinds.items():
        head = _HEADS.get(kind, f"{kind.capitalize()}s")
        lines += ["", f"## {head}", "", what, "", "| id | message | way out |", "| --- | --- | --- |"]
        for row in rows:
            if row.kind == kind:
                cells = (f"`{row.id}`", _cell(row.text), _cell(row.way_out))
                lines.append("| " + " | ".join(cells) + " |")
    what = "What the virtual board finds wrong with firmware: what silicon would show, and what the NPU's STATUS says here."
    lines += [
        "",
        "## On the virtual board",
        "",
        what,
        "",
        "| id | on silicon | STATUS here | way out |",
        "| --- | --- | --- | --- |",
    ]
    for id, rule in RULES.items():
        status = {PARSE_ERROR: "parse error", BUS_ERROR: "bus error"}.get(rule.status, "")
        lines.append(f"| `{id}` | {_cell(rule.shows)} | {status} | {_cell(rule.way_out)} |")
    return "\n".join(lines) + "\n"


def boards_page() -> str:
    """The boards with their sources, and measured times beside estimates."""
    return board_page.page(_WRITTEN)


def _cell(text: str) -> str:
    """Text for a cell of a Markdown table: no character of it means anything there."""
    plain = " ".join(text.split())
    for mark in "\\|<>*_`[]":
        plain = plain.replace(mark, f"\\{mark}")
    return plain


def write(folder: Path) -> None:
    """Write the pages, and before them the facts about operators that ``ethorch ops`` reads."""
    operators.write()
    folder.mkdir(parents=True, exist_ok=True)
    write_whole(folder / "ops.md", operators_page().encode())
    write_whole(folder / "targets.md", targets_page().encode())
    write_whole(folder / "boards.md", boards_page().encode())
    write_whole(folder / "vela-bugs.md", vela_bugs_page().encode())
    (folder / "reference").mkdir(exist_ok=True)
    write_whole(folder / "reference" / "messages.md", messages_page().encode())


if __name__ == "__main__":
    parser = argparse.ArgumentParser("python -m tools.docs", description="Write the pages that are made of the code.")
    parser.add_argument("folder", type=Path, nargs="?", default=Path("docs"), help="where they go (default: docs)")
    write(parser.parse_args().folder)
