"""The parts of a run that all engines share, by an engine that only writes down."""

from __future__ import annotations

from pathlib import Path

import pytest

from ethorch.deploy.virtual_board.elf import Firmware
from ethorch.deploy.virtual_board.engine import MOST_FAULTS, MOST_NOTES, Engine
from ethorch.deploy.virtual_board.outcome import End
from ethorch.deploy.virtual_board.runner import BACKENDS, ENGINES, choose_npus
from ethorch.deploy.virtual_board.settings import Settings
from ethorch.support.errors import EthorchError
from ethorch.targets import boards


class Scripted(Engine):
    """Prints, reports and notes, and ends with code 3."""

    name = "scripted"

    def execute(self) -> End:
        self.serial.put(b"printed")
        for pc in (*range(2 * MOST_FAULTS), 0):
            self.report("cpu.memory", f"at {pc}", pc)
        for number in (*range(2 * MOST_NOTES), 0):
            self.note(f"note {number}")
        return End("exit", 3)


class OwnPlaces(Firmware):
    """A firmware whose functions are one byte long."""

    def place(self, address: int) -> str:
        return f"place {address}"


def engine(probe: Path, timeout: float = 60.0) -> Scripted:
    board = boards.load("corstone-300")
    settings = Settings(npus=choose_npus(board, "ethos-u55-64"), timeout=timeout)
    return Scripted(board, OwnPlaces(probe), settings)


def test_an_engine_has_the_name_that_selects_it() -> None:
    assert BACKENDS == ("unicorn", "qemu", "fvp")
    assert all(which.name == name for name, which in ENGINES.items())


@pytest.mark.parametrize("which", ENGINES.values(), ids=ENGINES)
def test_no_engine_has_its_own_form_of_what_is_shared(which: type[Engine]) -> None:
    shared = ("run", "report", "note", "seconds_left", "connect_npus")
    assert [name for name in shared if name in vars(which)] == []


def test_each_fault_is_reported_once_for_a_place_up_to_a_limit(probe: Path) -> None:
    run = engine(probe).run()
    assert [fault.place for fault in run.faults] == [f"place {pc}" for pc in range(MOST_FAULTS)]
    assert run.notes == tuple(f"note {number}" for number in range(MOST_NOTES))


def test_a_run_has_the_facts_of_its_board_and_of_its_end(probe: Path) -> None:
    run = engine(probe).run()
    assert (run.backend, run.board, run.npu, run.text) == ("scripted", "corstone-300", "ethos-u55-64", "printed")
    assert (run.ended, run.exit_code, run.ok, run.instructions, run.inferences) == ("exit", 3, False, None, ())
    with pytest.raises(EthorchError, match="scripted does not support reading the memory after a run"):
        run.read(0, 4)


def test_the_context_releases_what_the_run_took(probe: Path) -> None:
    released: list[str] = []
    with pytest.raises(KeyboardInterrupt), engine(probe) as scripted:
        scripted.resources.callback(released.append, "process")
        raise KeyboardInterrupt
    assert released == ["process"]
