"""A population that trains for real, and the rerun of an ancestry."""

from __future__ import annotations

from typing import Any

import pytest

from hpo_core import Study
from hpo_core.home import Home
from hpo_core.replay.audit import audit
from tests.flows.conftest import Runner

POPULATION = {"method": "pbt", "population": 4, "generations": 3, "steps_per_generation": 2}


@pytest.fixture
def evolved(hpo: Runner) -> dict[str, Any]:
    """The summary of a finished population."""
    return hpo.json("tune", hpo.study(study="evolved", search=POPULATION))


@pytest.mark.slow
def test_a_population_evolves_and_an_ancestry_is_trained_again(hpo: Runner, evolved: dict[str, Any]) -> None:
    journal = Home(hpo.home).open_journal()
    entries = list(journal.entries("evolved"))
    study = Study.from_entries(entries)
    study.check()
    assert study.status == "finished" and len(study.state.trials) == 12
    assert audit(entries).clean
    assert evolved["trials"] == 12
    best = study.best
    assert best is not None

    hpo.json("rerun", "evolved", "--as", "again", "--trial", str(best.trial))
    again = Study.open("again", journal, reading=True)
    assert again.status == "finished"
    line = [best.trial]
    while (parent := study.state.trials[line[0]].parent) is not None:
        line.insert(0, parent)
    assert [trial.params for trial in again.state.trials] == [study.state.trials[n].params for n in line]
    # The same seeds, parameters and data order: the same numbers, in each generation.
    assert [trial.results[-1].metrics["loss"] for trial in again.state.trials] == [
        study.state.trials[n].results[-1].metrics["loss"] for n in line
    ]
