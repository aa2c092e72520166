"""Executes the notebooks of ``examples/notebook`` and writes them back with their outputs (``make notebooks``).

What differs from machine to machine is left out: metadata of the kernel and of times, ids, paths. Cells of text and
code are what a person wrote and stay as they are.
"""

from __future__ import annotations

import os
import re
import sys
import tempfile
from pathlib import Path

import nbformat
from nbclient import NotebookClient

ROOT = Path(__file__).parents[2]
NOTEBOOKS = sorted((ROOT / "examples" / "notebook").glob("*.ipynb"))
CELL_SECONDS = 900
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")


def executed(path: Path, folder: Path) -> nbformat.NotebookNode:
    """A notebook as a kernel of this Python leaves it, run in ``folder``.

    Raises:
        CellExecutionError: a cell raised.
    """
    notebook = nbformat.read(path, as_version=4)
    places = {"metadata": {"path": str(folder)}}
    client = NotebookClient(notebook, timeout=CELL_SECONDS, kernel_name="python3", resources=places)
    client.execute(env=os.environ | {"PREFECT_SERVER_ANALYTICS_ENABLED": "false"})
    return notebook


def cleaned(notebook: nbformat.NotebookNode, folder: Path) -> nbformat.NotebookNode:
    """Without what differs from machine to machine.

    Args:
        folder: in which it ran; its path is written as ``.``.
    """
    notebook.metadata = nbformat.from_dict(
        {
            "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
            "language_info": {"name": "python"},
        }
    )
    for place, cell in enumerate(notebook.cells):
        cell.id, cell.metadata = f"cell-{place}", nbformat.from_dict({})
        if "outputs" in cell:
            cell.outputs = [one for one in cell.outputs if not one.get("text", "").startswith("still starting")]
        for output in cell.get("outputs", ()):
            if "metadata" in output:
                output.metadata = nbformat.from_dict({})
            if output.output_type == "stream":
                output.text = _without_place(output.text, folder)
            for kind, shown in output.get("data", {}).items():
                if isinstance(shown, str):
                    output.data[kind] = _without_place(shown, folder)
    return notebook


def _without_place(text: str, folder: Path) -> str:
    for path in (folder, ROOT):
        text = text.replace(str(path), ".")
    return _ADDRESS.sub("", text)


def main(names: list[str]) -> None:
    """Execute all notebooks, or those that are named, and write them."""
    for path in NOTEBOOKS:
        if names and path.stem not in names:
            continue
        with tempfile.TemporaryDirectory() as folder:
            nbformat.write(cleaned(executed(path, Path(folder)), Path(folder)), path)
        print(f"{path.relative_to(ROOT)}: {path.stat().st_size:,} bytes")


if __name__ == "__main__":
    main(sys.argv[1:])
