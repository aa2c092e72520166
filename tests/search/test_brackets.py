"""Brackets: the drafts' figures for their sizes, the production defaults, and who goes where."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import yaml

from hpo_core import Asha, StudySpec
from hpo_core.model.errors import SpecError
from hpo_core.search.asha import NAMED_SETS
from hpo_core.search.brackets import Assignment, BracketPlan, hyperband_size, ladder_budget, split_width
from tests.conftest import World, fresh, make_spec, played

PRODUCTION = [ladder_budget([4**k for k in range(s, 5)], 4) for s in range(3)]
"""Average resource of a configuration in brackets 0, 1 and 2 of five rungs, eta 4."""


def test_base_rungs_of_hyperband_for_r_1_R_200_eta_3() -> None:
    sizes = [hyperband_size(s, 6, 3) for s in range(6)]
    assert sizes == [243, 98, 41, 18, 9, 6] and sum(sizes) == 415


def test_average_budgets_and_shares_of_the_production_defaults() -> None:
    assert PRODUCTION == [5 / 256, 4 / 64, 3 / 16]
    shares = split_width(100_000, PRODUCTION)
    assert [round(share / 1000, 1) for share in shares] == [70.6, 22.1, 7.4]
    resource = [n * budget for n, budget in zip(shares, PRODUCTION, strict=True)]
    assert max(resource) / min(resource) < 1.001, "each bracket gets the same resource"


def test_a_set_that_there_is_not_is_refused_with_the_names_of_those_that_there_are() -> None:
    with pytest.raises(SpecError, match="aggressive, standard, conservative, all, or a list.*did you mean 'standard'"):
        make_spec(search={"method": "asha", "configs": 9, "max_resource": 9, "brackets": "standart"})


@pytest.mark.parametrize(
    ("search", "brackets", "base"),
    [
        ({"configs": 1000, "max_resource": 256}, [0], [1]),  # nothing but configs and R
        ({"configs": 1000, "max_resource": 1024}, [0], [4]),
        ({"configs": 1000, "max_resource": 1}, [0], [1]),
        ({"configs": 1000, "max_resource": 256, "brackets": "standard"}, [0, 1, 2], [1, 4, 16]),  # ASHA 5.1
        ({"configs": 1000, "max_resource": 16, "brackets": "standard"}, [0, 1], [1, 4]),  # as far as two rungs are left
        ({"configs": 1000, "max_resource": 3, "brackets": "standard"}, [0], [1]),
        ({"configs": 1000, "max_resource": 1, "brackets": "standard"}, [0], [1]),
        ({"configs": 1000, "max_resource": 256, "brackets": "aggressive"}, [0], [1]),
        ({"configs": 1000, "max_resource": 256, "brackets": "conservative"}, [0, 1, 2, 3, 4], [1, 4, 16, 64, 256]),
        ({"configs": 1000, "max_resource": 256, "reduction_factor": 4}, [0], [1]),
        ({"configs": 1000, "max_resource": 81, "min_resource": 1}, [0], [1]),
        ({"configs": 9, "max_resource": 9, "min_resource": 1, "reduction_factor": 3, "brackets": "all"},
         [0, 1, 2], [1, 3, 9]),
    ],
)  # fmt: skip
def test_default_brackets(search: dict[str, Any], brackets: list[int], base: list[int]) -> None:
    spec = make_spec(search={"method": "asha", **search})
    assert spec.search.brackets == brackets  # type: ignore[union-attr]
    rungs = fresh(spec).method.rungs()
    assert [rung.level for rung in rungs if rung.rung == 0] == base
    assert spec.plain()["search"]["brackets"] == brackets, "the journal says what was meant"


def test_the_default_search_and_the_papers_sets() -> None:
    """The default is the first of these by name; each reads the same from the journal and from its own file."""
    only = {"method": "asha", "configs": 500, "max_resource": 256}
    found = {
        name: make_spec(search={**only, **({} if name is None else {"brackets": name})}) for name in (None, *NAMED_SETS)
    }
    etas = {name: spec.search.reduction_factor for name, spec in found.items()}  # type: ignore[union-attr]
    assert etas == {None: 3, "aggressive": 4, "standard": 4, "conservative": 4}
    assert [rung.level for rung in fresh(found[None]).method.rungs()] == [1, 3, 9, 27, 81, 256]
    bases = [rung.expected for rung in fresh(found["standard"]).method.rungs() if rung.rung == 0]
    assert bases == split_width(500, PRODUCTION)
    for spec in found.values():
        assert StudySpec.from_journal(spec.plain()).search == spec.search
        assert StudySpec.from_plain(yaml.safe_load(spec.to_yaml())).search == spec.search
    assert Asha(configs=500, max_resource=256, brackets="standard") == found["standard"].search
    assert make_spec(search=only | {"brackets": [0]}).search == found[None].search, "written out, the same"
    with pytest.raises(SpecError, match="brackets = standard needs max_resource"):
        make_spec(search={"method": "asha", "configs": 500, "brackets": "standard"})


def plan(rule: str, brackets: list[int], rungs: int, eta: int) -> BracketPlan:
    levels = [eta**k for k in range(rungs)]
    return BracketPlan(brackets=brackets, levels=levels, reduction_factor=eta, endless=False, shared=False, rule=rule)


def draws(rule: str, width: int, brackets: list[int], rungs: int, eta: int) -> list[int]:
    assignment = Assignment(plan(rule, brackets, rungs, eta), width, seed=1)
    found = []
    while (index := assignment.next()) is not None:
        assert assignment.next() == index, "asking twice gives the same answer"
        found.append(brackets[index])
        assignment.take(brackets[index])
    return found


def test_budget_keeps_the_shares_at_all_times() -> None:
    found = draws("budget", 1000, [0, 1, 2], 5, 4)
    assert Counter(found) == {0: 706, 1: 221, 2: 73}
    for seen in (50, 200, 500):
        counts = Counter(found[:seen])
        assert all(abs(counts[s] - seen * share) <= 1.5 for s, share in enumerate([0.706, 0.221, 0.073]))


def test_loop_goes_through_the_brackets_in_blocks() -> None:
    found = draws("loop", 20, [0, 1, 2], 3, 3)
    assert found == [0] * 9 + [1] * 5 + [2] * 3 + [0] * 3


def test_proportional_draws_follow_the_base_rungs() -> None:
    counts = Counter(draws("proportional", 4150, list(range(6)), 6, 3))
    for s, size in enumerate([243, 98, 41, 18, 9, 6]):
        sigma = (4150 * size / 415 * (1 - size / 415)) ** 0.5
        assert abs(counts[s] - 10 * size) < 4 * sigma, (s, counts[s])


@pytest.mark.parametrize(("width", "more"), [(10, 7), (6, 1)])  # by shares alone, bracket 2 has none of 7 and one of 6
def test_widening_takes_nothing_back(width: int, more: int) -> None:
    assignment = Assignment(plan("budget", [0, 1, 2], 5, 4), width)
    for _ in range(300):
        index = assignment.next()
        if index is None:
            assert sum(assignment.created) == assignment.width
            assignment.widen(more)
        else:
            assignment.take(assignment.brackets[index])
        assert all(made <= share for made, share in zip(assignment.created, assignment.quota, strict=True))


def test_shared_rungs_let_trials_in_at_their_level() -> None:
    search = {"method": "asha", "configs": 40, "min_resource": 1, "max_resource": 9, "reduction_factor": 3,
              "brackets": "all", "rung_system": "shared", "assignment": "proportional"}  # fmt: skip
    study = played(make_spec(search=search), World(3))
    rungs = study.method.rungs()
    assert [(rung.bracket, rung.level) for rung in rungs] == [(None, 1), (None, 3), (None, 9)]
    entered = Counter(trial.bracket for trial in study.state.trials)
    assert rungs[1].results == rungs[0].promoted + entered[1]
    assert rungs[2].results == rungs[1].promoted + entered[2]
    assert all(trial.results[0].resource == [1, 3, 9][trial.bracket] for trial in study.state.trials)


def test_endless_rungs_grow_as_trials_are_promoted() -> None:
    search = {"method": "asha", "configs": 81, "min_resource": 2, "reduction_factor": 3}
    study = played(make_spec(search=search), World(1, workers=1))
    rungs = study.method.rungs()
    assert [rung.level for rung in rungs] == [2, 6, 18, 54, 162]
    assert rungs[0].results == 81 and 27 <= rungs[1].results <= 27 + 9, "about sqrt(n) mispromotions"
    assert rungs[-1].results < 3, "it drains where too few results are left for a promotion"


@pytest.mark.parametrize(
    ("search", "message"),
    [
        ({"configs": 9, "max_resource": 9, "brackets": [3]}, "bracket 3 does not exist: there are 3 rungs"),
        ({"configs": 9, "max_resource": 9, "brackets": [1, 0]}, "must ascend, each once"),
        ({"configs": 9, "max_resource": 9, "brackets": [0, 0]}, "must ascend, each once"),
        ({"configs": 9, "max_resource": 9, "brackets": []}, "brackets"),
        ({"configs": 9, "brackets": "all"}, "brackets = all needs max_resource"),
        ({"configs": 9, "brackets": [0, 1]}, "no end without max_resource"),
    ],
)
def test_impossible_brackets_are_refused(search: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        make_spec(search={"method": "asha", "reduction_factor": 3, **search})


def spent(levels: list[int], eta: int, configs: int) -> int:
    """Units that a bracket of so many configurations takes, rung for rung; each result counts with its whole level."""
    units, here = 0, configs
    for level in levels:
        units += here * level
        here //= eta
    return units


@pytest.mark.parametrize(
    ("smallest", "top", "eta"), [(1, 100, 3), (1, 200, 3), (3, 1000, 4), (2, 50, 2), (1, 256, 4), (7, 12345, 5)]
)
def test_budget_gives_each_bracket_the_same_units_whatever_the_levels(smallest: int, top: int, eta: int) -> None:
    """Played out rung for rung, with so many configurations that floor() does not matter."""
    ladder = {"min_resource": smallest, "max_resource": top, "reduction_factor": eta}
    spec = make_spec(search={"method": "asha", "configs": 2_000_000, "brackets": [0, 1, 2], **ladder})
    study = fresh(spec)
    base = [rung for rung in study.method.rungs() if rung.rung == 0]
    levels = spec.search.levels()  # type: ignore[union-attr]
    units = [spent(levels[s:], eta, rung.expected) for s, rung in enumerate(base)]
    assert max(units) / min(units) < 1.001, units
