"""Every search ends, and what cannot reach its maximum resource is refused or said before the start."""

from __future__ import annotations

import itertools
import random
from typing import Any

import pytest

from hpo_core import StudySpec
from hpo_core.model.errors import SpecError
from hpo_core.model.trial import Job, Outcome, Report
from hpo_core.report.study_page import head
from hpo_core.search.asha import AshaSearch
from hpo_core.spec.assembly import notices
from hpo_core.views.series import read_series
from hpo_core.views.summary import notices_of
from tests.conftest import World, completed, fresh, make_spec

MOST_REPORTS = 3000

_LADDERS: list[dict[str, Any]] = [
    {},
    {"max_resource": 1},
    {"max_resource": 9, "min_resource": 9},
    {"max_resource": 3, "min_resource": 9},
    {"max_resource": 9, "min_resource": 1, "reduction_factor": 3},
    {"max_resource": 7, "min_resource": 2, "reduction_factor": 2.5},
    {"max_resource": 10, "min_resource": 1, "reduction_factor": 1.1},
    {"max_resource": 1000, "min_resource": 1, "reduction_factor": 1e6},
    {"max_resource": 9, "reduction_factor": 1.0001},
    {"max_resource": 9, "reduction_factor": 1e9},
    {"min_resource": 2, "reduction_factor": 3},
    {"min_resource": 1, "reduction_factor": 1.1},
    {"max_resource": 256},
]
_CONFIGS = [1, 2, 3, 13]
_KINDS: list[dict[str, Any]] = [
    {"method": "asha"},
    {"method": "asha", "brackets": "all"},
    {"method": "asha", "brackets": [0, 1], "rung_system": "shared", "assignment": "loop"},
    {"method": "asha", "brackets": [0, 1, 2, 99], "assignment": "proportional"},
    {"method": "asha", "brackets": [0]},
    {"method": "asha", "variant": "stopping"},
    {"method": "asha", "variant": "stopping", "brackets": "all"},
    {"method": "sha"},
    {"method": "sha", "rounds": 2},
    {"method": "pasha"},
    {"method": "random"},
]
SEARCHES = [kind | ladder | {"configs": n} for kind, ladder, n in itertools.product(_KINDS, _LADDERS, _CONFIGS)]
SEARCHES += [kind | ladder for kind, ladder in itertools.product(_KINDS, _LADDERS)]
SEARCHES += [{"method": "hyperband", **ladder} for ladder in _LADDERS if ladder.get("max_resource", 0) < 200]
SEARCHES += [{"method": "hyperband", **ladder, "rounds": 2} for ladder in _LADDERS[:7]]
SEARCHES += [
    {"method": "pbt", "population": population, "generations": generations, **more}
    for population, generations in itertools.product([1, 2, 3, 4], [1, 2, 3])
    for more in (
        {},
        {"selection": "truncation"},
        {"max_gap": 1},
        {"stragglers": 1},
        {"reproduction": "barrier"},
        {"fitness": "pareto"},
    )
]
SEARCHES += [{"method": "grid", "points": {"x": points, "d": 1}} for points in (1, 2)]


WAYS = ["better each time", "worse each time", "equal", "not a number", "random", "failing"]


class Tale(World):
    """A world in which results come as one of the ways in which they can be hardest to end."""

    def __init__(self, way: str, workers: int) -> None:
        super().__init__(5, workers=workers)
        self.way = way
        self.count = 0

    def report(self, job: Any) -> Report:
        self.count += 1
        self.now += 1.0
        if self.way == "failing":
            return Report(trial=job.trial, attempt=job.attempt, outcome=Outcome.ERROR, message="made to fail")
        loss = {
            "better each time": -float(self.count),
            "worse each time": float(self.count),
            "equal": 0.0,
            "not a number": float("nan"),
            "random": random.Random(self.count).random(),
        }[self.way]
        return completed(job, loss)


@pytest.mark.parametrize("way", WAYS)
def test_every_search_ends_or_is_refused_with_a_reason(way: str) -> None:
    played = refused = 0
    part = WAYS.index(way) % 3  # each search in two of the six ways
    for number, search in enumerate(SEARCHES[part::3]):
        try:
            spec = make_spec(search=search, training={"fail_fast": None})
        except SpecError as error:
            assert len(str(error)) > 20
            refused += 1
            continue
        workers = (1, 3)[number % 2]
        world = Tale(way, workers)
        study = fresh(spec, None, world)
        assert not world.play(study, steps=MOST_REPORTS), f"{search} goes on after {MOST_REPORTS} reports"
        assert study.status == "finished" and study.state.trials, search
        study.check()
        played += 1
    assert played > 60 and refused > 60, "both happen"


@pytest.mark.parametrize(
    ("search", "message"),
    [
        ({"method": "asha", "variant": "stopping", "configs": 9}, "stopping needs max_resource.*variant: promotion"),
        ({"method": "pasha", "max_resource": 9}, "has no end"),
        ({"method": "random"}, "has no end"),
        ({"method": "asha", "configs": 9, "max_resource": 9, "min_resource": 10}, "larger than max_resource"),
        ({"method": "pbt", "population": 1}, "greater than or equal to 2"),
    ],
)
def test_what_never_ends_or_never_reaches_its_maximum_is_refused(search: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        make_spec(search=search)


@pytest.mark.parametrize(("configs", "s"), [(9, 0), (3, 1), (1, 2)])
def test_the_assertion_of_algorithm_1(configs: int, s: int) -> None:
    """n >= eta**(s_max - s), so that at least one configuration will be allocated R."""
    ladder = {"method": "sha", "min_resource": 3**s, "max_resource": 9, "reduction_factor": 3}
    study = fresh(make_spec(search=ladder | {"configs": configs}))
    World(1).play(study)
    assert study.method.rungs()[-1].level == 9 and study.method.rungs()[-1].results == 1
    if configs > 1:
        with pytest.raises(SpecError, match=f"at least {configs}"):
            make_spec(search=ladder | {"configs": configs - 1})


def test_a_journal_from_before_the_rules_is_read() -> None:
    ladder = {"min_resource": 1, "max_resource": 9, "reduction_factor": 3}
    search: dict[str, Any]
    for search in ({"method": "sha", "configs": 5, **ladder}, {"method": "asha", "variant": "stopping", "configs": 5}):
        plain = make_spec().plain() | {"search": search}
        with pytest.raises(SpecError):
            StudySpec.from_plain(plain)
        assert StudySpec.from_journal(plain).search.method == search["method"]


# Where a search ends: the rule floor(n / eta) played out, against what is said.


def played_out(levels: list[int], eta: float, entering: dict[int, int]) -> int:
    """The highest level with a result, if each rung in turn sends its best floor(n / eta) up; one by one."""
    rungs = [[("new", k)] * entering.get(k, 0) for k in range(len(levels))]
    for k in range(len(levels) - 1):
        best = 0
        while (best + 1) * eta <= len(rungs[k]) * (1 + 1e-12):
            best += 1
        rungs[k + 1] += rungs[k][:best]
    return max((level for level, rung in zip(levels, rungs, strict=True) if rung), default=0)


@pytest.mark.parametrize("brackets", [[0], "standard", "all"])
@pytest.mark.parametrize("configs", [1, 4, 63, 64, 400])
@pytest.mark.parametrize("top", [1, 9, 256])
def test_the_highest_level_is_what_playing_it_out_gives(brackets: object, configs: int, top: int) -> None:
    spec = make_spec(search={"method": "asha", "brackets": brackets, "configs": configs, "max_resource": top})
    search = spec.search
    assert isinstance(search, AshaSearch)
    starts = [rung for rung in fresh(spec).method.rungs() if rung.rung == 0]
    levels = search.levels()
    found = max(played_out(levels[levels.index(r.level) :], search.reduction_factor, {0: r.expected}) for r in starts)
    assert search.highest_level(configs) == found
    said = notices(spec)
    assert bool(said) == (found < top)
    if said:
        assert f"bring a trial to {found:,}, and may not bring one to max_resource = {top:,}" in said[0]
        assert not notices(spec, 10**6), "an extension counts"


class Fickle(World):
    """No rung says anything about the next one."""

    def loss(self, job: Job, resource: int | None = None) -> float:
        return random.Random(f"{job.params['x']}/{job.trial}/{resource or job.target}").random()


@pytest.mark.parametrize("method", ["asha", "pasha"])
def test_the_notice_stays_until_a_trial_is_there(method: str) -> None:
    """Rungs that fill promote more than floor(n / eta): whether one gets there is luck, and then it is no news."""
    ladder = {"configs": 20, "min_resource": 1, "max_resource": 27, "reduction_factor": 3}
    tops = []
    for seed in range(12):
        spec = make_spec(search={"method": method, **ladder}, seed=seed)
        world = Fickle(seed, workers=2)
        study = fresh(spec, None, world)
        assert notices_of(study) == notices(spec) != []
        assert not world.play(study, steps=MOST_REPORTS)
        tops.append(max(trial.resource for trial in study.state.trials))
        page = head(read_series(list(study.journal.entries("world"))), {})
        expected = notices(spec) if tops[-1] < 27 else []
        assert notices_of(study) == expected and ("may not bring one" in page) == bool(expected), tops
    assert min(tops) < 27 == max(tops), "both happen"


def test_shared_rungs_and_what_has_nothing_to_say() -> None:
    ladder = {"min_resource": 1, "max_resource": 27, "reduction_factor": 3}
    shared = {"method": "asha", "configs": 12, **ladder, "brackets": [0, 1], "rung_system": "shared"}
    entering = [status.expected for status in fresh(make_spec(search=shared)).method.rungs()][:1]
    level = make_spec(search=shared).search.highest_level(12)  # type: ignore[attr-defined]
    assert level == played_out([1, 3, 9, 27], 3, {0: entering[0], 1: 12 - entering[0]})
    quiet: list[dict[str, Any]] = [
        {"method": "asha", "configs": 9, "min_resource": 1},
        {"method": "asha", "configs": 2, "variant": "stopping", **ladder},
        {"method": "hyperband", **ladder},
        {"method": "random", "configs": 1, "max_resource": 9},
        {"method": "pbt", "population": 2, "generations": 2},
    ]
    assert not any(notices(make_spec(search=search)) for search in quiet)
    assert notices(make_spec(search={"method": "pasha", "configs": 5, **ladder}))


def test_a_budget_below_one_training_is_said() -> None:
    search = {"method": "random", "configs": 5, "max_resource": 27}
    (said,) = notices(make_spec(search=search, stop={"total_resource": 20}))
    assert "stop.total_resource = 20 ends the study before a trial can reach max_resource = 27" in said
