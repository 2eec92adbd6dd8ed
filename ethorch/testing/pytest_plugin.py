"""A pytest plugin with fixtures for NPUs and a summary of compiled programs.

- ``ethosu_target``: Fixture with the name of an NPU. Tests run once for each NPU in ``--ethorch-targets``.
- ``ethosu_compile``: Fixture that calls ``ethorch.compile`` for that NPU and records the program.
- ``--ethorch-report DIR``: Option to write each recorded program's figures as JSON, for ``ethorch report --baseline``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Generator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from ethorch.support import tables
from ethorch.support.errors import EthorchError
from ethorch.testing.recording import record, recording

if TYPE_CHECKING:
    from ethorch.program.program import Program  # imports PyTorch, 2 s

DEFAULT_TARGETS = "ethos-u55-128"
_PROPERTY = "ethorch"


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("ethorch", "Arm Ethos-U NPUs")
    group.addoption("--ethorch-targets", metavar="NAMES", help="Comma-separated NPUs for the fixture ethosu_target.")
    group.addoption("--ethorch-report", metavar="DIR", help="Folder for JSON files with the figures of recorded programs.")
    parser.addini("ethorch_targets", "NPUs for the fixture ethosu_target.", type="args", default=[DEFAULT_TARGETS])


def targets(config: pytest.Config) -> list[str]:
    """Return the NPUs in ``--ethorch-targets``, or else in the configuration file.

    Raises:
        pytest.UsageError: An NPU is unknown.
    """
    from ethorch.targets.npus import lookup  # 5 ms, imported only if needed

    option = config.getoption("--ethorch-targets")
    names = option.split(",") if option else list(config.getini("ethorch_targets"))
    try:
        return [lookup(name.strip()).name for name in names if name.strip()]
    except EthorchError as error:
        raise pytest.UsageError(f"{'--ethorch-targets' if option else 'ethorch_targets'}: {error}") from None


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "ethosu_target" in metafunc.fixturenames:
        metafunc.parametrize("ethosu_target", targets(metafunc.config), indirect=True, scope="session")


@pytest.fixture(scope="session")
def ethosu_target(request: pytest.FixtureRequest) -> str:
    """Return the name of an NPU in ``--ethorch-targets``."""
    return str(request.param)


@pytest.fixture
def ethosu_compile(ethosu_target: str) -> Callable[..., Program]:
    """Return a function that calls ``ethorch.compile`` for ``ethosu_target`` with keyword settings, and records the program."""

    def compile_for_target(model: Any, example_inputs: Any = None, **settings: Any) -> Program:
        import ethorch  # imports PyTorch, 2 s

        return record(ethorch.compile(model, example_inputs, ethosu_target, **settings))

    return compile_for_target


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, Any, None]:
    with recording() as programs:
        yield
        for number, program in enumerate(programs):
            _save_figures(item, program, number)


def _save_figures(item: pytest.Item, program: Program, number: int) -> None:
    figures = program.to_json()
    accuracy = figures["accuracy"]
    item.user_properties.append(
        (
            _PROPERTY,
            {
                "target": figures["target"],
                "npu_operators": figures["operators"]["npu"],
                "cpu_operators": figures["operators"]["cpu"],
                "total_cycles": figures["total_cycles"],
                "milliseconds": figures["milliseconds"],
                "ram_bytes": figures["ram_bytes"],
                "flash_bytes": figures["flash_bytes"],
                "sqnr_db": None if accuracy is None else accuracy["sqnr_db"],
            },
        )
    )
    folder = item.config.getoption("--ethorch-report")
    if folder:
        from ethorch.formats.files import write_whole  # 1 ms, imported only if needed

        name = re.sub(r"[^\w.\-]+", "_", item.nodeid).strip("_") + (f".{number}" if number else "")
        place = Path(item.config.invocation_params.dir) / folder
        place.mkdir(parents=True, exist_ok=True)
        write_whole(place / f"{name}.json", json.dumps(figures, indent=2).encode())


@pytest.hookimpl(trylast=True)
def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    reports = [
        report for category in terminalreporter.stats.values() for report in category if getattr(report, "when", "") == "call"
    ]
    rows = [(report.nodeid, figures) for report in reports for name, figures in report.user_properties if name == _PROPERTY]
    if not rows:
        return
    from ethorch.support.rendering import as_text  # imports Rich, 20 ms

    table = tables.table()
    table.add_column("test")
    table.add_column("target")
    for name in ("on the NPU", "on the CPU", "cycles", "ms", "RAM", "flash", "SQNR"):
        table.add_column(name, justify="right")
    for nodeid, row in rows:
        table.add_row(nodeid, row["target"], *_cells(row))
    terminalreporter.section("programs for Ethos-U")
    terminalreporter.write_line(as_text(table))
    if folder := config.getoption("--ethorch-report"):
        terminalreporter.write_line(f"The figures of these programs were written to {folder}.")


def _cells(row: dict[str, Any]) -> list[str]:
    formats: tuple[tuple[str, Callable[[Any], str]], ...] = (
        ("npu_operators", str),
        ("cpu_operators", str),
        ("total_cycles", lambda n: f"{n:,}"),
        ("milliseconds", lambda ms: f"{ms:.3f}"),
        ("ram_bytes", lambda n: f"{n / 1024:,.1f} KiB"),
        ("flash_bytes", lambda n: f"{n / 1024:,.1f} KiB"),
        ("sqnr_db", lambda db: f"{db:.1f} dB"),
    )
    return ["-" if row[key] is None else text(row[key]) for key, text in formats]
