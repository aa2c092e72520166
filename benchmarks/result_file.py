"""What every benchmark writes beside its figures: when, on what, with which versions."""

from __future__ import annotations

import datetime
import importlib.metadata
import json
import os
import platform
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent
RESULTS = ROOT / "results"
DATA = Path("..") / "shared" / "data"
"""Where the curve tables are by default, relative to the repository."""
VERSIONS = ("hpo-core", "dask", "distributed", "prefect", "mlflow", "optuna", "numpy", "sqlalchemy", "torch")


def data_folder(given: str | None) -> Path:
    """The data folder of ``--data``, ``HPO_BENCH_DATA`` or the default; exits with 2 where it is absent."""
    folder = Path(given or os.environ.get("HPO_BENCH_DATA") or ROOT.parent / DATA)
    if not (folder / "curves").is_dir():
        print(
            f"No data: {folder} has no folder 'curves'. This benchmark plays back recorded learning curves; "
            "name the folder that holds them with --data or HPO_BENCH_DATA. Nothing was measured."
        )
        raise SystemExit(2)
    return folder


def machine() -> dict[str, Any]:
    """Facts a reader needs to judge a figure by; no names, no paths."""
    return {
        "cores": os.cpu_count(),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "load_at_start": round(os.getloadavg()[0], 2),
    }


def versions(names: Sequence[str] = VERSIONS) -> dict[str, str]:
    found = {}
    for name in names:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def write(name: str, facts: dict[str, Any], figures: dict[str, Any], out: str | None) -> Path:
    """Write ``results/NAME.json`` (or ``out``); ``facts`` is what :func:`machine` said at the start."""
    path = Path(out) if out else RESULTS / f"{name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    body = {
        "benchmark": name,
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "machine": facts,
        "versions": versions(),
        **figures,
    }
    path.write_text(json.dumps(body, indent=1, allow_nan=False) + "\n")
    print(f"\nwritten: {path.name}")
    return path


def table(head: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    """Print rows in aligned columns, the first to the left, the others to the right."""
    cells = [list(head), *[["-" if cell is None else str(cell) for cell in row] for row in rows]]
    widths = [max(len(row[k]) for row in cells) for k in range(len(head))]
    for i, row in enumerate(cells):
        text = "  ".join(
            cell.ljust(width) if k == 0 else cell.rjust(width)
            for k, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        print(text.rstrip())
        if not i:
            print("  ".join("-" * width for width in widths))


def markdown(head: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """The same as a Markdown table."""
    lines = [list(head), ["---"] * len(head), *[["-" if cell is None else str(cell) for cell in row] for row in rows]]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"
