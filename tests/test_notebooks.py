"""The notebooks run from top to bottom, and hold what they print."""

from __future__ import annotations

from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parent.parent / "examples" / "notebooks"


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.ipynb")), ids=lambda path: path.stem)
def test_runs(path: Path, tmp_path: Path) -> None:
    import nbclient
    import nbformat

    book = nbformat.read(path, 4)
    assert all(cell.outputs or "print" not in cell.source for cell in book.cells if cell.cell_type == "code"), "kept with outputs"
    client = nbclient.NotebookClient(book, timeout=600, kernel_name="python3", resources={"metadata": {"path": str(tmp_path)}})
    client.execute()  # CellExecutionError where one raises
    said = [output for cell in book.cells if cell.cell_type == "code" for output in cell.outputs]
    assert said and not [output for output in said if output.get("name") == "stderr"], "nothing is complained of"
