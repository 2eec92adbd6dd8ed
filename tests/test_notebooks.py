"""The notebooks run from top to bottom, and hold what they print."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(__file__).resolve().parent.parent / "examples" / "notebooks"


@pytest.fixture(scope="module")
def kernel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """One for all notebooks, since it imports torch; each begins without names."""
    from jupyter_client.manager import start_new_kernel

    manager, client = start_new_kernel(kernel_name="python3", cwd=str(tmp_path_factory.mktemp("notebooks")))
    client.stop_channels()
    yield manager
    manager.shutdown_kernel(now=True)


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.ipynb")), ids=lambda path: path.stem)
def test_runs(path: Path, kernel: Any) -> None:
    import nbclient
    import nbformat

    book = nbformat.read(path, 4)
    assert all(cell.outputs or "print" not in cell.source for cell in book.cells if cell.cell_type == "code"), "kept with outputs"
    book.cells.insert(0, nbformat.v4.new_code_cell("%reset -f"))
    nbclient.NotebookClient(book, km=kernel, timeout=600).execute()  # CellExecutionError where one raises
    said = [output for cell in book.cells if cell.cell_type == "code" for output in cell.outputs]
    assert said and not [output for output in said if output.get("name") == "stderr"], "nothing is complained of"


def test_progress_appears_and_goes(kernel: Any) -> None:
    import nbclient
    import nbformat

    source = """
import time
from ethorch.support.progress import stage
from ethorch.support.progress_display import display_progress
with display_progress(), stage("calibrate <all>", 3) as step:
    for _ in range(3):
        time.sleep(0.3)
        step()
"""
    book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source)])
    shown: list[str] = []

    class Client(nbclient.NotebookClient):
        def process_message(self, message: Any, cell: Any, index: int) -> Any:
            if message["msg_type"] in ("display_data", "update_display_data"):
                shown.append(message["content"]["data"]["text/html"])
            return super().process_message(message, cell, index)

    Client(book, km=kernel, timeout=60).execute()
    assert "calibrate &lt;all&gt;" in shown[0] and any('value="2" max="3"' in page for page in shown)
    assert shown[-1] == ""
