"""Commands and named register values in the tests' streams, for docs/npu-coverage.md.

``python -m tests.helpers.npu_coverage`` writes the page. The streams are those of every TOSA case, of the branches and of every
TFLite model, which tests compare with the TOSA reference model or LiteRT.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from ethorch.npu import Program
from ethorch.npu.registers import ALL, OPERATIONS, REGISTERS, reset_state, table
from tests.helpers.npu_graphs import TARGETS, Graph, Refused, compile_graph
from tests.npu.cases import CASES

PAGE = Path(__file__).parent.parent.parent / "docs" / "npu-coverage.md"

Values = dict[tuple[str, str], set[int]]  # (family, key) -> values in an operation, of a register or of the operation itself


def programs(targets: Iterable[str] = TARGETS) -> Iterator[Program]:
    """Compile the programs that the tests run."""
    from tests.npu.test_files import MODELS
    from tests.npu.test_machine import cond_if, while_loop

    graphs = []
    for build in (*CASES.values(), cond_if, while_loop):
        graph = Graph(1)
        build(graph)
        graphs.append((graph.serialize(), "TOSA"))
    graphs += [(make(), "TFLITE") for make in MODELS.values()]
    for target in targets:
        for data, fmt in graphs:
            try:
                model = compile_graph(data, target, fmt=fmt)
            except Refused:
                continue
            if isinstance(getattr(model, "command_stream", None), bytes):
                yield Program(model.command_stream, model.read_only.data)


def gather(streams: Iterable[Program], into: Values | None = None) -> Values:
    """Collect the values of all commands. Registers that are never written contain zero."""
    found: Values = {} if into is None else into
    for program in streams:
        family = program.config.family
        for command in program.commands:
            if command.is_operation:
                found.setdefault((family, command.row.name), set()).add(0)
            for key, value in command.values.items():
                found.setdefault((family, key), set()).add(value)
    return found


def named(values: Values) -> set[tuple[str, str, str]]:
    """Return the named ``values`` as (family, key, name)."""
    result = set()
    for family in ALL:
        for row, is_operation in table(family).values():
            if is_operation and (family, row.name) in values:
                result.add((family, row.name, ""))
            for key, f in row.named_fields:
                for value in values.get((family, key), ()):
                    if f.values is not None:
                        result.add((family, key, f.values[value]))
                    else:
                        result.add((family, key, ""))
    return result


def on_page(text: str) -> set[tuple[str, str, str]]:
    """Read ``named`` back from the page."""
    result = set()
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        for family, cell in zip(ALL, cells[1:], strict=False):
            names = cell.partition("; never")[0]
            result |= {(family, cells[0], "" if name == "yes" else name) for name in names.split()}
    return result


def unexercised(streams: Iterable[Program]) -> list[tuple[str, str, str]]:
    """Return the named values in these streams that are not on the page and so are not compared with a reference."""
    return sorted(named(gather(streams)) - on_page(PAGE.read_text()))


def page(values: Values) -> str:
    """Return the report as Markdown."""
    seen = named(values)
    lines = [
        "# Commands and register values exercised",
        "<!-- Written by `python -m tests.helpers.npu_coverage`; a test compares it with the streams. -->",
        "",
        "Tests run streams with each value below and compare every bit: with the TOSA reference model, or with LiteRT for TFLite",
        'models. "never" lists values that the simulator supports and that no stream contains, because Vela does not emit them for',
        f"these graphs. Configurations: {', '.join(TARGETS)}.",
        "",
        "| command or register | " + " | ".join(ALL) + " |",
        "| --- | " + " | ".join("---" for _ in ALL) + " |",
    ]
    keys: dict[str, None] = {}
    for row in (*OPERATIONS, *REGISTERS):
        if row in OPERATIONS:
            keys[row.name] = None
        keys |= dict.fromkeys(key for key, _ in row.named_fields)
    lines += [f"| {key} | " + " | ".join(_cell(seen, family, key) for family in ALL) + " |" for key in keys]
    return "\n".join(lines) + "\n"


def _cell(seen: set[tuple[str, str, str]], family: str, key: str) -> str:
    known: dict[str, None] = {}
    exists = key in {row.name for row, is_operation in table(family).values() if is_operation} or key in reset_state(family)
    for row, is_operation in table(family).values():
        for name, f in row.named_fields:
            if name == key:
                exists = exists or is_operation
                known |= dict.fromkeys((f.values or {}).values())
    if not exists:
        return "–"
    if not known:
        return "yes" if (family, key, "") in seen else "never"
    used = [name for name in known if (family, key, name) in seen]
    never = [name for name in known if name not in used]
    return " ".join(used) + (f"; never {' '.join(never)}" if never else "")


if __name__ == "__main__":
    Path(sys.argv[1] if len(sys.argv) > 1 else PAGE).write_text(page(gather(programs())))
