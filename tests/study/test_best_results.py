"""The best result by both rules of ``best_of``: against a judge that reads the journal alone, and where it is seen."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from pathlib import Path

import pytest

from hpo_core import Job, Study
from hpo_core.checkpoints.retention import Hold
from hpo_core.home import Home
from hpo_core.model.events import Entry, JobCompleted, StudyHalted
from hpo_core.replay.audit import audit
from hpo_core.state import StudyState
from hpo_core.terminal.output import best_line, print_study
from hpo_core.views.summary import other_best_words, summarize
from tests.checkpoints.test_checkpoints import Disk
from tests.conftest import World, fresh, make_spec, played
from tests.methods import ALL, spec_of

LADDER = {"method": "asha", "configs": 30, "min_resource": 1, "max_resource": 27, "reduction_factor": 3}
RULES = ("all_rungs", "highest_rung")


class Rising(Disk):
    """Losses rise with training: the best of all rungs is at the lowest one."""

    def loss(self, job: Job, resource: int | None = None) -> float:
        return float(job.params["x"]) + job.target


def usable(events: Iterable[JobCompleted]) -> list[tuple[int, JobCompleted]]:
    """Finite, feasible and complete results with the rung that each counts at, in their order."""
    found = []
    for event in events:
        missing = any(math.isnan(loss) for loss in event.losses)
        if event.loss is not None and not event.violation and not missing:
            found.append((event.resource, event))
    return found


def judged(events: Iterable[JobCompleted], rule: str) -> tuple[int, int] | None:
    """(trial, resource) of the best by the words of the setting: smallest loss, the earliest among equals."""
    results = usable(events)
    if rule == "highest_rung":
        results = [one for one in results if one[0] == max(rung for rung, _ in results)]
    if not results:
        return None
    best = min((event.losses or (event.loss,) for _, event in results))
    first = next(event for _, event in results if (event.losses or (event.loss,)) == best)
    return first.trial, first.resource


def judged_looks(entries: Iterable[Entry]) -> int:
    """Hold each look at the best by both rules against the judge; returns how many there were."""
    state, events = StudyState(), []
    for entry in entries:
        for event in entry.events:
            state.apply(event)
            if type(event) is JobCompleted:
                events.append(event)
                for rule, best in zip(RULES, (state.best_of_all, state.best_of_highest_rung), strict=True):
                    found = best.incumbent and (best.incumbent.trial, best.incumbent.resource)
                    assert found == judged(events, rule), (rule, entry.seq)
    state.check()
    return len(events)


@pytest.mark.parametrize("name", ALL[::3])
def test_both_rules_agree_with_the_judge_at_every_result(name: str) -> None:
    rule = RULES[len(name) % 2]
    study = played(spec_of(name, best_of=rule), World(5, workers=4, failures=0.05, nans=0.1))
    assert judged_looks(study.journal.entries("world")) > 5
    assert study.best is (study.best_of_highest_rung if rule == "highest_rung" else study.best_of_all_rungs)
    assert audit(study.journal.entries("world")).clean


def test_the_setting_says_what_is_shown_and_both_can_be_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for rule, at, other in (("all_rungs", 1, "the highest rung"), ("highest_rung", 27, "all rungs")):
        home = Home(tmp_path / rule)
        world = Rising(2)
        study = fresh(make_spec(search=LADDER, best_of=rule), home.open_journal(), world)
        world.play(study)
        assert study.best is not None and study.best.resource == at
        assert study.best_of_all_rungs is not None and study.best_of_all_rungs.resource == 1
        assert study.best_of_highest_rung is not None and study.best_of_highest_rung.resource == 27
        assert other_best_words(study).startswith(f"best of {other}: loss = ")
        named = rule == "highest_rung"
        assert best_line(study).endswith(f"at {at}, best of {'the highest rung' if named else 'all rungs'})")
        print_study(home, "world", None, False)
        shown = capsys.readouterr().out
        assert best_line(study) in shown and other_best_words(study) in shown
        print_study(home, "world", None, True)
        facts = json.loads(capsys.readouterr().out)
        assert (facts["best_of"], facts["best"]["resource"]) == (rule, at)
        assert facts["best_of_highest_rung"]["resource"] == 27
        assert summarize(Study.open("world", home.open_journal())).best == summarize(study).best, "after a restart"


def test_checkpoints_of_the_shown_best_are_kept() -> None:
    for rule in RULES:
        study = played(make_spec(search=LADDER, best_of=rule), Rising(2))
        best = study.state.best_checkpoint()
        assert best is not None and best.resource == (1 if rule == "all_rungs" else 27)
        assert study.checkpoints.why(best.uri) is Hold.PINNED


@pytest.mark.parametrize("rule", RULES)
def test_a_target_is_reached_by_the_rule_that_is_shown(rule: str) -> None:
    study = played(make_spec(search=LADDER, best_of=rule, stop={"target": 0.25}), World(5, workers=4))
    events: list[JobCompleted] = []
    for entry in study.journal.entries("world"):
        events += [event for event in entry.events if type(event) is JobCompleted]
        at = judged(events, rule)
        loss = min((e.loss for e in events if (e.trial, e.resource) == at and e.loss is not None), default=math.inf)
        halts = any(type(event) is StudyHalted for event in entry.events)
        assert halts == (loss <= 0.25)
        if halts:
            break
    else:
        pytest.fail("the target was not reached")
