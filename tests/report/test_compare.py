from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from hpo_core.cli.app import app
from hpo_core.home import Home
from hpo_core.journal.memory import MemoryJournal
from hpo_core.model.errors import SpecError
from hpo_core.model.events import Entry
from hpo_core.report.comparison import Comparison
from tests.conftest import World, fresh, make_spec


def entries(name: str, seed: int, journal: MemoryJournal | None = None, **changes: object) -> list[Entry]:
    journal = journal or MemoryJournal()
    world = World(seed)
    search = {"method": "asha", "configs": 12, "min_resource": 1, "max_resource": 9, "reduction_factor": 3}
    spec = make_spec(**{"study": name, "seed": seed, "search": search} | changes)
    world.play(fresh(spec, journal, world))
    return list(journal.entries(name))


def test_repeats_that_differ_by_seed_alone_are_one_group() -> None:
    full = {"method": "random", "configs": 4, "max_resource": 9}
    found = Comparison.of([
        entries("asha-seed1", 1), entries("full", 1, search=full), entries("asha-seed2", 2), entries("asha-3", 3),
        entries("asha-4", 4, search=full),
    ])  # fmt: skip
    names = [[member.study.name for member in group.members] for group in found.groups]
    assert names == [["asha-seed1", "asha-seed2", "asha-3"], ["full", "asha-4"]]


def groups(*studies: list[Entry]) -> list[list[str]]:
    return [[member.study.name for member in group.members] for group in Comparison.of(studies).groups]


@pytest.mark.parametrize(
    "changes",
    [{"warm_start": {"studies": ["earlier"], "past": []}}, {"training": {"timeout": 60.0}}],
    ids=lambda changes: next(iter(changes)),
)
def test_studies_that_began_or_trained_otherwise_are_no_repeats(changes: dict[str, object]) -> None:
    assert groups(entries("digits-1", 1), entries("digits-2", 2, **changes)) == [["digits-1"], ["digits-2"]]


def test_repeats_may_be_tracked_elsewhere_and_begin_from_one_past() -> None:
    """What a sampler is shown of earlier results is drawn from each study's own seed."""

    def warm(*numbers: int) -> dict[str, object]:
        past = [{"params": {"x": 0.5, "c": "b"}, "losses": {1: [float(number)]}} for number in numbers]
        return {"studies": ["earlier"], "past": past}

    first = entries("digits-1", 1, warm_start=warm(1), tracking={"mlflow": "off"})
    assert groups(first, entries("digits-2", 2, warm_start=warm(2, 3))) == [["digits-1", "digits-2"]]


def test_one_seed_twice_is_no_spread_over_seeds() -> None:
    found = Comparison.of([entries("a-1", 1), entries("a-2", 1), entries("a-3", 2)])
    assert [[member.study.name for member in group.members] for group in found.groups] == [["a-1", "a-3"], ["a-2"]]


@pytest.mark.parametrize("mode", ["min", "max"])
def test_the_better_group_is_first(mode: str) -> None:
    """The toy's loss falls with training: best for one mode, worst for the other."""
    metric = {"name": "loss", "mode": mode}
    short = entries("short", 1, search={"method": "random", "configs": 9, "max_resource": 1}, metric=metric)
    long = entries("long", 1, search={"method": "random", "configs": 9, "max_resource": 27}, metric=metric)
    ranked = Comparison.of([short, long]).ranked()
    assert [group.name for group in ranked] == (["long", "short"] if mode == "min" else ["short", "long"])


def test_different_metrics_do_not_compare() -> None:
    with pytest.raises(SpecError, match=r"'a' optimizes loss \(min\), study 'b' gain \(min\)"):
        Comparison.of([entries("a", 1), entries("b", 1, metric={"name": "gain"})])
    with pytest.raises(SpecError, match="'a' is named twice"):
        Comparison.of([entries("a", 1), entries("a", 1)])


def test_command_writes_a_page_with_every_study(tmp_path: Path) -> None:
    home = Home(tmp_path)
    journal = home.open_journal()
    names = ["a-1", "a-2", "b"]
    for seed, name in enumerate(names):
        entries(name, seed, journal)  # type: ignore[arg-type]
    journal.close()
    result = CliRunner().invoke(app, ["compare", *names, "--home", str(tmp_path), "--json"])
    assert result.exit_code == 0, result.output
    facts = json.loads(result.output)
    page = Path(facts["page"]).read_text()
    assert all(name in page for name in names) and "Best value over training used" in page
    assert [row["group"] for row in facts["groups"] if row["studies"] == 3] == ["a-1"]
