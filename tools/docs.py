"""Write the generated pages of docs/: ``python -m tools.docs [FOLDER]``."""

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
    """Return tables of operators (PyTorch names, support by NPU and dtype, description) and of refused calls."""
    rows = listings.operators()
    lines = [
        "# Operators",
        _WRITTEN,
        "",
        f"This page lists the {len(rows)} operators that ethorch supports. Several calls of each were lowered for an NPU of",
        "each family, in int8 and int16, and in float for TOSA's FP profile, with the dry run of the partitioner.",
        "",
        "- **all**: every call runs on the NPU; **no**: no call does.",
        "- **3 of 5**: three of five calls do; [refused calls](#refused-calls) lists the reasons for the others.",
        "- **a / b**: int8 and int16, if they differ.",
        "",
        "`ethorch ops NAME` shows one operator with limits, cost and an example.",
        "[Targets](targets.md) has the limits of each NPU.",
        "",
        "Other operators run on the CPU; `ethorch explain` shows a remedy.",
        "",
        "| operator | in PyTorch | U55 | U65 | U85 | float | description |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for row in rows:
        what = row["what"].replace("|", "\\|")
        names = ", ".join(f"`{name}`" for name in row["pytorch"])
        families = " | ".join(listings.verdicts(row, family) for family in FAMILIES)
        lines.append(f"| `{row['name']}` | {names} | {families} | {row['support']['TOSA FP']} | {what} |")
    lines += ["", "## Refused calls", "", "Calls that run on the CPU.", ""]
    for row in rows:
        for refusal in row["refused"]:
            calls = f"{refusal['refused']} of {row['calls']} calls, such as `{refusal['calls'][0]}`"
            lines.append(
                f"- `{row['name']}` on {', '.join(refusal['cases'])}, {calls}: {refusal['reason']} [{refusal['id']}] "
                f"{refusal['remedy']}".rstrip()
            )
    lines += [
        "",
        "## Other names",
        "",
        "Each entry lists an operator, then other names in exported graphs that are lowered the same way.",
        "",
    ]
    for row in rows:
        if row["also"]:
            lines.append(f"- `{row['name']}`: {', '.join(f'`{name}`' for name in row['also'])}")
    return "\n".join(lines) + "\n"


def targets_page() -> str:
    """Return the targets, the tuning of each family, and its limits."""
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
        "Choices among equivalent TOSA graphs: the fields of `Tuning` in `ethorch/targets/tuning.py`, which describes each.",
        "[measurements.md](measurements.md) has the cycles.",
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
    """Return a table of the messages that have an identifier."""
    rows = messages.messages()
    kinds = {
        "refusal": "Reasons for operators on the CPU, in `ethorch explain`, `Program.explain()` and `EthosUPartitioner.report`.",
        "writer": "Reasons that ExecuTorch lowered a program, in `ethorch explain` and the report. The payloads are the same.",
        "error": "Models that ethorch does not quantize.",
        "warning": "Messages on stderr that do not stop the compilation.",
    }
    intro = "Each message ends with an identifier in brackets. Identifiers are stable; words may change. `...` is a variable part."
    lines = ["# Messages", _WRITTEN, "", intro]
    for kind, description in kinds.items():
        head = _HEADS.get(kind, f"{kind.capitalize()}s")
        lines += ["", f"## {head}", "", description, "", "| id | message | remedy |", "| --- | --- | --- |"]
        for row in rows:
            if row.kind == kind:
                cells = (f"`{row.id}`", _cell(row.text), _cell(row.remedy))
                lines.append("| " + " | ".join(cells) + " |")
    lines += [
        "",
        "## On the virtual board",
        "",
        "Errors in firmware, their effect on silicon, and the NPU's STATUS on the virtual board.",
        "",
        "| id | on silicon | STATUS | remedy |",
        "| --- | --- | --- | --- |",
    ]
    for id, rule in RULES.items():
        status = {PARSE_ERROR: "parse error", BUS_ERROR: "bus error"}.get(rule.status, "")
        lines.append(f"| `{id}` | {_cell(rule.shows)} | {status} | {_cell(rule.remedy)} |")
    return "\n".join(lines) + "\n"


def boards_page() -> str:
    """Return the boards with their sources, and measured times beside estimates."""
    return board_page.page(_WRITTEN)


def _cell(text: str) -> str:
    """Escape text for a cell of a Markdown table."""
    plain = " ".join(text.split())
    for mark in "\\|<>*_`[]":
        plain = plain.replace(mark, f"\\{mark}")
    return plain


def write(folder: Path) -> None:
    """Write the operator facts that ``ethorch ops`` reads, and the pages."""
    operators.write()
    folder.mkdir(parents=True, exist_ok=True)
    write_whole(folder / "ops.md", operators_page().encode())
    write_whole(folder / "targets.md", targets_page().encode())
    write_whole(folder / "boards.md", boards_page().encode())
    write_whole(folder / "vela-bugs.md", vela_bugs_page().encode())
    (folder / "reference").mkdir(exist_ok=True)
    write_whole(folder / "reference" / "messages.md", messages_page().encode())


if __name__ == "__main__":
    parser = argparse.ArgumentParser("python -m tools.docs", description="Write the pages that are generated from the code.")
    parser.add_argument("folder", type=Path, nargs="?", default=Path("docs"), help="output folder (default: docs)")
    write(parser.parse_args().folder)
