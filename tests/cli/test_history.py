"""``hpo history``: what it lists, what goes out and comes back, what is forgotten, what is refused."""

from __future__ import annotations

import json
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import Result
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from hpo_core.home import Home
from hpo_core.journal.measurements import read_file, written
from hpo_core.model.devices.measurement import Measurement
from hpo_core.model.errors import HpoError, SpecError
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


@pytest.mark.parametrize("name", ["out.json", "out.csv"])
def test_an_exported_file_is_imported_elsewhere_and_twice_changes_nothing(tmp_path: Path, name: str) -> None:
    there = kept(
        tmp_path / "a",
        needed(),
        needed(params={"text": 'a,"b"\n\u202e', "list": [1, 2.5, None, True]}, study=""),
        needed(device_memory=None, compute=None, startup_seconds=0.0, measured_at=NOW - 5),
    )
    file = tmp_path / name
    assert "3 measurements" in run(tmp_path / "a", "export", str(file)).output
    assert "3 of 3 measurements are new" in run(tmp_path / "b", "import", str(file)).output
    assert "0 of 3 measurements are new" in run(tmp_path / "b", "import", str(file)).output
    assert kept(tmp_path / "b") == there
    assert run(tmp_path / "b", "export", "--format", file.suffix[1:]).output == file.read_text().replace(
        "\u202e", "\\u202e"
    )


TEXTS = st.text(st.characters(exclude_categories=("Cs",)), max_size=20)
VALUES = st.one_of(st.integers(-(2**63), 2**63 - 1), st.floats(allow_nan=False), st.booleans(), st.none(), TEXTS)


@settings(max_examples=25, deadline=None)
@given(params=st.dictionaries(TEXTS, VALUES, max_size=4), cores=st.floats(0, 1e6), memory=st.integers(0, 2**62))
def test_any_measurement_comes_back_from_a_file(
    tmp_path_factory: pytest.TempPathFactory, params: dict[str, Any], cores: float, memory: int
) -> None:
    finite = {name: None if value in (float("inf"), float("-inf")) else value for name, value in params.items()}
    told = needed(params=finite, cores=cores, memory=memory)
    for form in ("json", "csv"):
        file = tmp_path_factory.mktemp("files") / f"out.{form}"
        file.write_text(written([told], form), newline="")  # type: ignore[arg-type]
        assert read_file(file, now=NOW) == [told]


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
    assert "1 forgotten" in run(tmp_path, "forget", "--older-than", "30", "--yes").output
    assert "Nothing to forget" in run(tmp_path, "forget", "--older-than", "30", "--yes").output
    assert "1 forgotten" in run(tmp_path, "forget", "--objective", "lab.train:fit", "--yes").output
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
        (["list", "out.json"], "takes no file"),
        (["import"], "name the file"),
        (["import", "missing.json"], "cannot be read"),
        (["export", "--yes"], "belong to forget"),
        (["list", "--format", "csv"], "belongs to export"),
        (["export", "out.txt"], "end with .json or .csv"),
        (["export", "out.csv", "--format", "json"], "agree with --format"),
        (["export", "no/such/folder.csv"], "cannot be written"),
    ],
)
def test_what_does_not_go_together_is_refused(
    tmp_path: Path, arguments: list[str], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    kept(tmp_path, needed())
    assert said in refused(tmp_path, *arguments)
    assert len(kept(tmp_path)) == 1
    assert not list(tmp_path.glob("out.*"))


GOOD = json.loads(written([needed()], "json"))[0]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("{", "is no JSON"),
        ("{}", "must hold a list"),
        ("[" * 100_000, "is no JSON"),
        ([GOOD | {"memory": -1}], "measurement 1: measurement: memory = -1"),
        ([GOOD | {"memory": "much"}], "measurement 1"),
        ([GOOD, GOOD | {"compute": 7}], "measurement 2: measurement: compute = 7"),
        ([GOOD | {"memroy": 1}], "unknown column 'memroy'"),
        ([GOOD | {"objective": "rm -rf"}], "objective = 'rm -rf' is nothing that an export writes"),
        ([GOOD | {"code": "c"}], "code = 'c'"),
        ([GOOD | {"architecture": "=cmd()"}], "architecture = '=cmd()'"),
        ([GOOD | {"study": "../x"}], "study = '../x'"),
        ([GOOD | {"measured_at": NOW + 1e6}], "lies in the future"),
        ([GOOD | {"params": {"x": "y" * 9000}}], "params has"),
        ([{"objective": "m:f"}], "missing required field"),
        (["text"], "measurement 1"),
    ],
)
def test_a_foreign_file_is_refused_as_a_whole(tmp_path: Path, content: Any, said: str) -> None:
    file = tmp_path / "in.json"
    file.write_text(content if isinstance(content, str) else json.dumps(content))
    assert said in refused(tmp_path / "home", "import", str(file))
    assert not (tmp_path / "home").exists()


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"\xff\xfe", "is no CSV"),
        (b"objective,zz\nm:f,1\n", "unknown column 'zz'"),
        (b"objective,params\nm:f,{\n", "params is no JSON"),
        (b'objective,params\nm:f,"{}"\n', "missing required field"),
        (b'objective,params\nm:f,"{}",1,2\n', "unknown column"),
    ],
)
def test_a_foreign_table_is_refused_as_a_whole(tmp_path: Path, content: bytes, said: str) -> None:
    file = tmp_path / "in.csv"
    file.write_bytes(content)
    with pytest.raises(SpecError, match=said):
        read_file(file, now=NOW)


def test_files_beyond_the_limits_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "in.json"
    file.write_text(json.dumps([GOOD] * 3))
    monkeypatch.setattr("hpo_core.journal.measurements.MOST_MEASUREMENTS", 2)
    assert "at most 2 are read at once" in refused(tmp_path, "import", str(file))
    monkeypatch.setattr("hpo_core.journal.measurements.MOST_BYTES", 100)
    assert "more than 100 bytes" in refused(tmp_path, "import", str(file))


def test_names_complete_in_the_shell(tmp_path: Path) -> None:
    kept(tmp_path, needed(), needed(objective="lab.other:fit", architecture="H100"))
    from hpo_core.cli.history import _architectures, _objectives

    context = SimpleNamespace(params={"home": str(tmp_path), "journal": None})
    assert _objectives(context, "lab.t") == ["lab.train:fit"]  # type: ignore[arg-type]
    assert _architectures(context, "") == ["A100", "H100"]  # type: ignore[arg-type]
