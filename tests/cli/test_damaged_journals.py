"""A journal that was damaged: every reader says which study and entry, and what helps; none falls over."""

from __future__ import annotations

import json
import random
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from hpo_core import Study
from hpo_core.journal.sql import SqlJournal, open_journal
from hpo_core.model.errors import HpoError, JournalError
from hpo_core.replay.audit import audit
from hpo_core.replay.past_results import with_past
from hpo_core.tracking.tracked_study import TrackedStudy
from hpo_flows.command import app
from tests.conftest import World, fresh, make_spec
from tests.methods import spec_of


def written(folder: Path, method: str = "asha-shared") -> Path:
    world = World(3, failures=0.05)
    journal = SqlJournal(f"sqlite:///{folder / 'journal.db'}")
    study = fresh(spec_of(method), journal, world)
    world.play(study)
    journal.close()
    return folder / "journal.db"


def rows(file: Path) -> list[str]:
    with sqlite3.connect(file) as connection:
        return [body for (body,) in connection.execute("SELECT body FROM hpo_entries ORDER BY seq")]


def put(file: Path, seq: int, body: Any) -> None:
    with sqlite3.connect(file) as connection:
        connection.execute("UPDATE hpo_entries SET body = ? WHERE seq = ?", (body, seq))


def changed(body: str, change: Callable[[Any], Any]) -> str:
    plain = json.loads(body)
    return json.dumps(change(plain) or plain)


DAMAGE: dict[str, Callable[[str], Any]] = {
    "cut off": lambda body: body[: len(body) // 2],
    "no text": lambda body: b"\xff\xfe\x00",
    "a number": lambda body: 7,
    "deeply nested": lambda body: "[" * 100_000,
    "an unknown event": lambda body: changed(body, lambda e: e["events"].append({"is": "TrialTeleported"})),
    "no stimulus": lambda body: changed(body, lambda e: e.pop("stimulus") and None),
    "a text for a time": lambda body: changed(body, lambda e: e.update(time="yesterday")),
    "another number": lambda body: changed(body, lambda e: e.update(seq=e["seq"] + 3)),
    "a newer format": lambda body: changed(body, lambda e: e.update(format=99)),
    "no such trial": lambda body: body.replace('"trial":', '"trial":4711, "was":'),
    "a long number": lambda body: body.replace('"trial":', '"trial":' + "9" * 5000 + ', "was":'),
}


@pytest.mark.parametrize("how", DAMAGE)
def test_what_was_damaged_is_said_with_study_entry_and_cure(tmp_path: Path, how: str) -> None:
    file = written(tmp_path)
    put(file, 9, DAMAGE[how](rows(file)[9]))
    journal = SqlJournal(f"sqlite:///{file}")
    with pytest.raises(JournalError) as caught:
        Study.open("world", journal, reading=True)
    said = str(caught.value)
    assert "'world'" in said and "entry 9" in said, said
    assert "estore the journal from a backup" in said or "Upgrade" in said, said
    assert "server runs" not in said
    assert Study.open("world", journal, at=8).seq == 9  # what comes before is readable still
    result = CliRunner().invoke(app, ["status", "world", "--home", str(tmp_path)])
    assert isinstance(result.exception, JournalError)


def test_a_file_that_is_no_database_is_to_be_restored(tmp_path: Path) -> None:
    (tmp_path / "journal.db").write_bytes(b"no database" * 500)
    with pytest.raises(JournalError, match="could not be opened: .* damaged: restore it from a backup"):
        open_journal(tmp_path / "journal.db")


def test_missing_entries_are_said(tmp_path: Path) -> None:
    file = written(tmp_path)
    with sqlite3.connect(file) as connection:
        connection.execute("DELETE FROM hpo_entries WHERE seq IN (5, 6)")
    with pytest.raises(JournalError, match="'world' .*entry 5 is missing. Restore the journal from a backup"):
        Study.open("world", SqlJournal(f"sqlite:///{file}"), reading=True)
    with sqlite3.connect(file) as connection:
        connection.execute("DELETE FROM hpo_entries WHERE seq = 0")
    with pytest.raises(JournalError, match="entry 0 is missing"):
        Study.open("world", SqlJournal(f"sqlite:///{file}"), reading=True)


def test_one_damaged_study_hides_no_other_one(tmp_path: Path) -> None:
    file = written(tmp_path)
    journal = SqlJournal(f"sqlite:///{file}")
    fresh(make_spec(study="whole"), journal)
    put(file, 3, "{}")
    result = CliRunner().invoke(app, ["list", "--json", "--home", str(tmp_path)])
    rows = json.loads(result.stdout[result.stdout.index("[\n") :])  # click 8.1 shows both streams in one
    found = {row["study"]: row["status"] for row in rows}
    assert found["world"] == "damaged" and found["whole"] != "damaged"


def readers(folder: Path) -> list[Callable[[], Any]]:
    journal = SqlJournal(f"sqlite:///{folder / 'journal.db'}")

    def project() -> None:
        fold = TrackedStudy()
        for entry in journal.entries("world"):
            fold.add(entry)

    commands = [
        ["list"], ["status", "world"], ["show", "world", "--trial", "1"], ["audit", "world"], ["export", "world"],
        ["report", "world", "--out", str(folder / "r.html")], ["schedule", "world"],
        ["compare", "whole", "world", "--out", str(folder / "c.html")],
    ]  # fmt: skip

    def run(command: list[str]) -> Callable[[], None]:
        def call() -> None:
            result = CliRunner().invoke(app, [*command, "--home", str(folder)])
            if result.exception is not None and not isinstance(result.exception, SystemExit):
                raise result.exception

        return call

    warm = make_spec(study="new", warm_start={"studies": ["world"]})
    return [
        lambda: Study.open("world", journal),
        lambda: audit(journal.entries("world")),
        lambda: with_past(warm, journal),
        project,
        *map(run, commands),
    ]


ODD: list[Any] = [None, -1, 7, 2**63, 1e308, "NaN", "", "x", [], {}, [None], {"x": 1}, True, "a\x1bb"]


def mutated(body: str, rng: random.Random) -> str:
    """A row with one value changed, moved or gone; or with some of its letters."""
    if rng.random() < 0.2:
        at = rng.randrange(len(body))
        return body[:at] + rng.choice(["", "0", "\x00", '"', "}", "é", "-"]) + body[at + rng.randrange(3) :]
    plain = json.loads(body)
    places: list[tuple[Any, Any]] = []

    def walk(node: Any) -> None:
        for key, value in node.items() if isinstance(node, dict) else enumerate(node):
            places.append((node, key))
            if isinstance(value, dict | list):
                walk(value)

    walk(plain)
    node, key = rng.choice(places)
    fate = rng.randrange(4)
    if fate == 0:
        del node[key]
    elif fate == 1:
        other, place = rng.choice(places)
        node[key] = other[place] if place in other or (isinstance(other, list) and place < len(other)) else None
        return body if _loops(plain) else json.dumps(plain)
    else:
        node[key] = rng.choice(ODD)
    return json.dumps(plain)


def _loops(plain: Any) -> bool:
    try:
        json.dumps(plain)
    except ValueError:
        return True
    return False


@pytest.mark.parametrize(
    ("method", "changes"),
    [
        ("asha-shared", 5),
        *(pytest.param(name, 60, marks=pytest.mark.slow) for name in ("hyperband", "pbt", "pareto-asha-brackets")),
    ],
)
def test_no_change_of_a_row_makes_a_reader_fall_over(tmp_path: Path, method: str, changes: int) -> None:
    file = written(tmp_path, method)
    kept = rows(file)
    rng = random.Random(method)
    refused = 0
    for _ in range(changes):
        seq = rng.choice([0, rng.randrange(min(6, len(kept))), rng.randrange(len(kept))])
        damaged = mutated(kept[seq], rng)
        put(file, seq, damaged)
        for reader in readers(tmp_path):
            try:
                reader()
            except HpoError as error:
                refused += 1
                assert "server runs" not in str(error), error
            except Exception as error:
                raise AssertionError(f"entry {seq} as {damaged[:3000]}: {error!r}") from error
        put(file, seq, kept[seq])
    assert refused > changes
