"""``hpo history``: what it lists, what is forgotten, what is refused."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
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


def run(folder: Path, *arguments: str, typed: str = "", width: str = "80") -> Result:
    given = ["history", *arguments, "--home", str(folder)]
    return CliRunner().invoke(app, given, input=typed, env={"COLUMNS": width})


def refused(folder: Path, *arguments: str) -> str:
    found = run(folder, *arguments)
    assert isinstance(found.exception, HpoError), found.output
    return str(found.exception)


def test_list_merges_each_key_and_fits_a_terminal(tmp_path: Path) -> None:
    kept(
        tmp_path,
        needed(device_memory=12_300_000_000, compute=0.3),
        needed(device_memory=9 * 10**9, compute=0.5, measured_at=NOW - 3600, study="digits-20261122"),
        needed(architecture="CPU", device_memory=None, compute=None, memory=83_100_000, params={"width": 8}),
        needed(params={"width": 9}, out_of_memory=8 * 10**9, device_memory=7 * 10**9),
    )
    text = run(tmp_path).output
    assert max(map(len, text.splitlines())) <= 80
    heading, titles, *rows = text.splitlines()
    assert heading == "lab.train:fit (source abababab)"
    assert titles.split() == ["key", "device", "memory", "compute", "cores", "s/unit", "runs", "study", "age"]
    assert "batch_size=128 optimizer=adam width=1024" in rows
    assert any(row.split()[:5] == ["A100", "12.3", "GB", "40", "%"] for row in rows)
    assert any(row.split()[:4] == ["width=9", "A100", ">", "8"] for row in rows)
    assert any(row.split()[:4] == ["width=8", "CPU", "83.1", "MB"] for row in rows)
    found = json.loads(run(tmp_path, "--json").output)
    assert [(one["architecture"], one["memory"], one["measurements"]) for one in found] == [
        ("A100", 12_300_000_000, 2),
        ("A100", 7 * 10**9, 0),
        ("CPU", 83_100_000, 1),
    ]
    assert found[1]["out_of_memory"] == 8 * 10**9


def test_looking_makes_nothing(tmp_path: Path) -> None:
    assert "Nothing here" in run(tmp_path / "nowhere").output
    assert run(tmp_path / "nowhere", "--json").output.strip() == "[]"
    assert list(tmp_path.iterdir()) == []


def test_forget_takes_what_is_named_and_asks_first(tmp_path: Path) -> None:
    all_of_them = (
        needed(),
        needed(architecture="H100"),
        needed(objective="lab.other:fit"),
        needed(measured_at=NOW - 40 * 86_400),
    )
    kept(tmp_path, *all_of_them)
    asked = run(tmp_path, "forget", "--architecture", "H100", typed="n\n")
    assert "Forget 1 measurement?" in asked.output and "Nothing was forgotten" in asked.output
    assert len(kept(tmp_path)) == 4
    run(tmp_path, "forget", "--all", typed="")
    assert len(kept(tmp_path)) == 4, "nobody answers"
    assert "1 forgotten" in run(tmp_path, "forget", "--architecture", "H100", typed="y\n").output
    assert "2 forgotten" in run(tmp_path, "forget", "--objective", "lab.train:fit", "--yes").output
    assert [one.objective for one in kept(tmp_path)] == ["lab.other:fit"]
    assert "1 forgotten" in run(tmp_path, "forget", "--all", "--yes").output
    assert kept(tmp_path) == []


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["forget"], "say what, with --objective"),
        (["forget", "--all", "--objective", "lab.train:fit"], "not both"),
        (["list", "--objective", "lab.trian:fit"], "did you mean 'lab.train:fit'?"),
        (["forget", "--architecture", "CUDA"], "there are A100"),
        (["list", "--yes"], "belong to forget"),
    ],
)
def test_what_does_not_go_together_is_refused(tmp_path: Path, arguments: list[str], said: str) -> None:
    kept(tmp_path, needed())
    assert said in refused(tmp_path, *arguments)
    assert len(kept(tmp_path)) == 1
