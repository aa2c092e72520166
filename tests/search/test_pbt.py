"""Population based training: the specification case by case (Li et al. 2019, section 3; ASHA A.3)."""

from __future__ import annotations

import heapq
import math
import random
from collections import Counter
from typing import Any

import pytest

from hpo_core import MemoryJournal, Outcome, Study
from hpo_core.model.events import JobGranted, Reproduced, TrialStopped
from hpo_core.model.trial import Checkpoint, Job, Report
from hpo_core.replay.audit import audit
from hpo_core.replay.rerun import rerun_spec
from hpo_core.search.evolution import by_priority, ranked
from hpo_core.search.pbt import Pbt
from tests.conftest import World, completed, failed, fresh, make_spec
from tests.methods import facts, judge


def pbt(population: int = 4, generations: int = 3, **changes: Any) -> Study:
    search = {"method": "pbt", "population": population, "generations": generations, **changes}
    return fresh(make_spec(search=search, training={"fail_fast": None}), MemoryJournal())


def good(job: Job, loss: float) -> Report:
    return completed(job, loss, checkpoint=Checkpoint(f"t{job.trial}", "", job.target, 1))


def births(study: Study) -> list[Reproduced]:
    return facts(study.journal.entries("world"), Reproduced)


def test_the_child_takes_the_initiators_place_and_goes_on_from_the_fitter_one() -> None:
    study = pbt(population=2, generations=3, steps_per_generation=5)
    first, second = study.set_capacity(2)
    assert study.tell_report(good(first, 1.0)) == [], "there is nobody to meet yet"
    (child, other) = study.tell_report(good(second, 0.5))
    assert (child.target, child.checkpoint, child.parent) == (10, Checkpoint("t1", "", 5, 1), 1)
    (lost, won) = births(study)
    assert (lost.initiator, lost.opponent, lost.parent, lost.member, lost.generation) == (0, 1, 1, 0, 1)
    assert (won.initiator, won.opponent, won.parent, won.member) == (1, 0, 1, 1)
    assert other.checkpoint == Checkpoint("t1", "", 5, 1)
    assert study.state.trials[3].parent == 1 and study.state.trials[3].base == 5
    lr = study.state.trials[1].params["x"]
    assert study.state.trials[3].params["x"] == pytest.approx(min(1.0, lr * 1.2)) or study.state.trials[3].params[
        "x"
    ] == pytest.approx(lr * 0.8)


def test_one_worker_gives_a_synchronous_evolution() -> None:
    study = pbt(population=4, generations=4)
    World(1, workers=1).play(study)
    granted = facts(study.journal.entries("world"), JobGranted)
    assert [event.rung for event in granted] == [0] * 4 + [1] * 4 + [2] * 4 + [3] * 4
    assert [birth.initiator for birth in births(study)] == list(range(12))


def test_failed_and_diverged_trials_initiate_and_lose() -> None:
    study = pbt(population=3)
    one, two, three = study.set_capacity(3)
    assert study.tell_report(good(one, 1.0)) == [] == study.tell_report(completed(two, math.nan))
    (a, b, c) = study.tell_report(failed(three, Outcome.ERROR))
    assert [birth.parent for birth in births(study)] == [0, 0, 0]
    assert all(job.checkpoint == Checkpoint("t0", "", 1, 1) for job in (a, b, c))


def test_where_nobody_has_a_fitness_the_member_begins_anew() -> None:
    study = pbt(population=2, generations=2)
    one, two = study.set_capacity(2)
    assert study.tell_report(completed(one, math.nan)) == []
    (a, b) = study.tell_report(completed(two, math.inf))
    assert (a.checkpoint, a.target, births(study)[0].parent) == (None, 1, None)
    study.tell_report(good(a, 1.0))
    study.tell_report(good(b, 1.0))
    assert study.finished
    assert audit(study.journal.entries("world")).clean


@pytest.mark.parametrize(("population", "replaced"), [(10, 2), (4, 1), (3, 1), (2, 1)])
def test_truncation_replaces_a_fifth_and_at_least_one_by_one_of_the_best(population: int, replaced: int) -> None:
    study = pbt(population=population, generations=2, selection="truncation", reproduction="barrier")
    for job in study.set_capacity(population):
        study.tell_report(good(job, float(job.trial)))
    found = {birth.initiator: birth for birth in births(study)}
    params = [trial.params for trial in study.state.trials]
    *others, last = range(population - replaced + 1)
    assert all(found[n].parent == n and found[n].opponent is None for n in others), "they go on as they are"
    assert all(params[found[n].child] == params[n] for n in others)
    for n in range(last, population):
        assert found[n].parent == found[n].opponent and found[n].parent in range(replaced)
        assert params[found[n].child] != params[found[n].parent]  # type: ignore[index]


def test_with_gaps_in_the_metrics_the_best_is_whom_the_fewest_beat() -> None:
    nan = math.nan
    circle = {7: (1.0, nan, 3.0), 8: (2.0, 1.0, nan), 9: (nan, 2.0, 2.0), 1: (0.5, 0.5, 9.0), 5: None}
    assert by_priority(circle[7], circle[8]) == by_priority(circle[8], circle[9]) == -1
    assert by_priority(circle[9], circle[7]) == -1, "no order at all"
    for numbers in ([7, 8, 9, 1, 5], [5, 1, 9, 8, 7]):
        assert ranked({n: circle[n] for n in numbers}, by_priority) == [1, 7, 8, 9, 5]
    plain = {n: (float(n % 3),) for n in range(9)} | {9: None}
    assert ranked(plain, by_priority) == sorted(plain, key=lambda n: (plain[n] is None, plain[n] or (0.0,), n))


class Late(World):
    """Jobs of very different lengths on a virtual clock; sees how many slots were idle, and when."""

    def through(self, study: Study) -> list[tuple[int, int]]:
        ends = [(self.length(job), job.trial, job) for job in study.set_capacity(self.workers)]
        idle = []
        while ends:
            self.now, _, job = heapq.heappop(ends)
            for more in study.tell_report(self.report(job)):
                heapq.heappush(ends, (self.now + self.length(more), more.trial, more))
            study.check()
            created = len(study.state.trials)
            total = study.spec.search.population * study.spec.search.generations  # type: ignore[union-attr]
            if len(ends) < self.workers and created < total:
                idle.append((created, self.workers - len(ends)))
        assert study.finished
        return idle

    def length(self, job: Job) -> float:
        dice = random.Random(f"{job.trial}/{job.attempt}")
        return 1 + abs(dice.gauss(0, 1)) + (30 if dice.random() < 0.02 else 0)


@pytest.mark.parametrize(
    ("population", "workers", "more"),
    [(20, 5, {}), (4, 9, {}), (5, 1, {"selection": "truncation"}), (6, 2, {}), (6, 6, {})],
)
def test_by_generation_everybody_meets_somebody_and_no_slot_is_idle(
    population: int, workers: int, more: dict[str, Any]
) -> None:
    """Stragglers of thirty times the length: Algorithm 1 and 3.8, judged by the paper's text."""
    study = pbt(population=population, generations=12, reproduction="generation", **more)
    world = Late(5, workers=workers, failures=0.02, nans=0.02)
    idle = world.through(study)
    entries = list(study.journal.entries("world"))
    judge(study.spec, entries)
    assert audit(entries).clean
    assert len(study.state.trials) == 12 * population and not idle
    generation = Counter(birth.generation for birth in births(study))
    first = len(study.state.trials) - generation.total()
    assert population <= first <= population + workers - 1, "workers sample while generation 0 is not complete"
    assert all(birth.opponent is not None for birth in births(study)) or more
    assert study.method.rungs()[0].results == first


@pytest.mark.parametrize("workers", [3, 5])
def test_eager_reproduction_waits_for_an_opponent_only(workers: int) -> None:
    study = pbt(population=5, generations=12)
    idle = Late(5, workers=workers).through(study)
    assert all(birth.opponent is not None for birth in births(study)), "somebody met nobody"
    waited = [slots for created, slots in idle if created == 5]
    assert waited == ([1] if workers == 5 else []), "the first to end waits until another one has"
    judge(study.spec, study.journal.entries("world"))


def test_missing_metrics_are_no_divergence() -> None:
    metrics = [{"name": "loss"}, {"name": "gain", "mode": "max"}]
    spec = make_spec(search={"method": "pbt", "population": 2, "generations": 2}, metrics=metrics)
    study = fresh(spec, MemoryJournal())
    one, two = study.set_capacity(2)
    study.tell(one, {"gain": 3.0})
    study.tell(two, {"loss": 0.5, "gain": 4.0})
    assert [birth.parent for birth in births(study)] == [1, 1], "the second is fitter by the metric both have"
    assert study.best is not None and study.best.trial == 1


def test_a_bad_checkpoint_of_the_parent_sends_the_child_to_the_grandparent() -> None:
    study = pbt(population=2, generations=4)
    one, two = study.set_capacity(2)
    study.tell_report(good(one, 1.0))
    (child, _) = study.tell_report(good(two, 9.0))
    (grandchild,) = study.tell_report(good(child, 0.5))
    assert grandchild.checkpoint is not None and grandchild.parent == child.trial
    (again,) = study.tell_report(failed(grandchild, Outcome.CHECKPOINT_BAD))
    assert again.trial == grandchild.trial and again.parent == one.trial
    assert study.state.trials[child.trial].condemned == {2}
    (anew,) = study.tell_report(failed(again, Outcome.CHECKPOINT_BAD))
    assert (anew.trial, anew.checkpoint, anew.parent) == (grandchild.trial, None, None)
    study.check()


def test_rerun_of_an_ancestry_is_a_topological_order_with_the_same_schedule() -> None:
    study = pbt(population=4, generations=5)
    World(8, workers=4).play(study)
    entries = list(study.journal.entries("world"))
    best = study.best
    line = [best.trial]
    while (parent := study.state.trials[line[0]].parent) is not None:
        line.insert(0, parent)
    spec = rerun_spec(entries, "again", trials=[best.trial], changes={"data": "new"})
    again = fresh(spec, MemoryJournal())
    order: list[Job] = []
    running = again.set_capacity(8)
    while running:
        order.append(running[0])
        running = running[1:] + again.tell_report(good(running[0], 0.5))
    assert [job.params for job in order] == [study.state.trials[n].params | {"data": "new"} for n in line]
    assert [job.target for job in order] == [study.state.trials[n].results[-1].resource for n in line]
    assert [job.parent for job in order] == [None, *range(len(line) - 1)]
    several = rerun_spec(entries, "ensemble", trials=[best.trial, study.state.trials[-1].number])
    World(2).play(fresh(several))


def test_checkpoints_go_once_no_later_initiator_can_meet_their_trial() -> None:
    study = pbt(population=4, generations=8)
    most = 0
    running = study.set_capacity(4)
    removed: list[str] = []
    while running:
        loaded = {job.checkpoint.uri for job in running if job.checkpoint is not None}
        removed += study.checkpoints.take_dead()
        assert not loaded & set(removed), "a checkpoint that a running trial loads was removed"
        running = running[1:] + study.tell_report(good(running[0], 1.0 + (running[0].trial * 7) % 5))
        most = max(most, len(study.checkpoints))
        study.check()
    removed += study.checkpoints.take_dead()
    ever = {f"t{trial.number}" for trial in study.state.trials}
    assert set(removed) | study.checkpoints.uris == ever
    assert most <= 4 * (2 + 1) + 1, "two generations to meet, the one that fills, and the best"
    best = study.best
    assert best is not None and f"t{best.trial}" in study.checkpoints


def test_members_stay_within_a_distance() -> None:
    study = pbt(population=3, generations=9, max_gap=2)
    slow, *others = study.set_capacity(3)
    while others:
        others = others[1:] + study.tell_report(good(others[0], 1.0))
    generations = {birth.generation for birth in births(study)}
    assert max(generations) == 2, "two generations ahead of the slow one, and no further"
    assert len(study.tell_report(good(slow, 1.0))) > 0


def test_stragglers_are_named_and_stopped() -> None:
    study = pbt(population=3, generations=9, stragglers=3)
    slow, *others = study.set_capacity(3)
    method = study.method
    assert isinstance(method, Pbt)
    assert method.early_stopping() == []
    while not facts(study.journal.entries("world"), TrialStopped):
        others = others[1:] + study.tell_report(good(others[0], 1.0))
        study.check()
    assert study.state.trials[0].status == "stopped"
    assert study.tell_report(good(slow, 0.0)) == [], "its late report is noted, and changes nothing"
    assert 0 in [birth.initiator for birth in births(study)], "its member goes on"
    study.check()
