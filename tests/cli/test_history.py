from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from hpo_core.home import Home
from hpo_core.model.devices.measurement import Measurement
from hpo_core.model.errors import HpoError
from hpo_flows.command import app
from tests.contracts.test_measurements import measurement

CODE = "ab" * 32
NOW = time.time()


def kept(folder: Path, *found: Measurement) -> list[Measurement]:
    journal = Home(folder).open_journal()
    history = journal.measurements
    history.add(found)
    there = history.all()
    journal.close()
    return there


def needed(**changes: Any) -> Measurement:
    params = {"width": 1024, "optimizer": "adam", "batch_size": 128}
    return measurement(NOW - 90, **{"objective": "lab.train:fit", "code": CODE, "params": params} | changes)


def run(folder: Path, *arguments: str) -> str:
    found = CliRunner().invoke(app, ["history", *arguments, "--home", str(folder)], env={"COLUMNS": "80"})
    if found.exception is not None:
        raise found.exception
    return found.output


def test_list_merges_each_key_and_fits_a_terminal(tmp_path: Path) -> None:
    kept(
        tmp_path,
        needed(device_memory=12_300_000_000, compute=0.3),
        needed(device_memory=9 * 10**9, compute=0.5, measured_at=NOW - 3600, study="digits-20261122"),
        needed(architecture="CPU", device_memory=None, compute=None, memory=83_100_000, params={"width": 8}),
        needed(params={"width": 9}, out_of_memory=8 * 10**9, device_memory=7 * 10**9),
    )
    text = run(tmp_path)
    assert max(map(len, text.splitlines())) <= 80
    heading, titles, *rows = text.splitlines()
    assert heading == "lab.train:fit (source abababab)"
    assert titles.split() == ["key", "device", "memory", "compute", "cores", "s/unit", "runs", "study", "age"]
    assert any(row.split()[:6] == ["batch_size=128", "A100", "12.3", "GB", "50", "%"] for row in rows)
    assert ["optimizer=adam"] in [row.split() for row in rows], "a long key is folded"
    assert any(row.split()[:4] == ["width=9", "A100", ">", "8"] for row in rows)
    assert any(row.split()[:4] == ["width=8", "CPU", "83.1", "MB"] for row in rows)
    found = json.loads(run(tmp_path, "--json"))
    assert [(one["architecture"], one["memory"], one["measurements"]) for one in found] == [
        ("A100", 12_300_000_000, 2),
        ("A100", 7 * 10**9, 0),
        ("CPU", 83_100_000, 1),
    ]
    assert found[1]["out_of_memory"] == 8 * 10**9


def test_forget_takes_what_is_named(tmp_path: Path) -> None:
    kept(tmp_path, needed(), needed(architecture="H100"), needed(objective="lab.other:fit"))
    with pytest.raises(HpoError, match="did you mean 'lab.train:fit'?"):
        run(tmp_path, "lab.trian:fit", "--forget")
    assert "2 forgotten" in run(tmp_path, "lab.train:fit", "--forget")
    assert [one.objective for one in kept(tmp_path)] == ["lab.other:fit"]
    with pytest.raises(HpoError, match="name the OBJECTIVE"):
        run(tmp_path, "--forget")
    assert len(kept(tmp_path)) == 1
