"""What a person typed as 3.7 is the decimal 3.7: rules that jump at exact multiples jump there, and not beside them.

The judge reads the digits of the decimal and computes with whole numbers alone.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from hpo_core.gangs.growth import kappa
from hpo_core.model.events import JobGranted, TrialStopped
from hpo_core.pool.division import Member, divide, ideal_shares
from hpo_core.search.asha import AshaSearch
from hpo_core.search.evolution import Parents, TrialSession
from hpo_core.search.method import Sample
from hpo_core.search.pasha import PashaSearch
from hpo_core.search.rungs import Ladder
from hpo_core.search.search_settings import SearchContext
from hpo_core.search.sha import HyperbandSearch, ShaSearch
from tests.conftest import fresh, make_spec
from tests.methods import facts

ETAS = st.one_of(
    st.integers(110, 999).map(lambda hundredths: f"{hundredths / 100:.2f}"),
    st.integers(11, 99).map(lambda tenths: f"{tenths / 10:.1f}"),
)


def ratio(decimal: str) -> tuple[int, int]:
    """Digits and power of ten of a decimal."""
    whole, _, places = decimal.partition(".")
    return int(whole + places), 10 ** len(places)


def leaving(results: int, eta: str, rungs: int = 1) -> int:
    """``floor(n * eta**-k)``."""
    digits, ten = ratio(eta)
    return results * ten**rungs // digits**rungs


def nearest(number: int, of: int) -> int:
    """Quotient rounded to a whole number; halves to the even one."""
    low, rest = divmod(number, of)
    return low + (2 * rest > of or (2 * rest == of and low % 2))


def levels_of(r: int, top: int, eta: str) -> list[int]:
    digits, ten = ratio(eta)
    found, k = [r], 1
    while r * r * digits ** (2 * k + 1) < top * top * ten ** (2 * k + 1):
        found.append(nearest(r * digits**k, ten**k))
        k += 1
    return [level for level in dict.fromkeys(found) if level < top] + [top]


@given(ETAS, st.integers(1, 150))
@example("3.7", 37)
@example("1.6", 8)
@example("2.3", 46)
@pytest.mark.parametrize("method", ["asha", "pasha"])
def test_a_rung_offers_floor_of_n_by_eta(method: str, eta: str, results: int) -> None:
    settings: Any = {"max_resource": 10**6, "min_resource": 1, "reduction_factor": float(eta)}
    search = (AshaSearch if method == "asha" else PashaSearch)(**settings).create(SearchContext())
    rung = search.rung(0, 0)
    for trial in range(results):
        rung.add(trial, float(trial))
        assert rung.promotable() == leaving(trial + 1, eta)
        assert search.grantable(10**6) - search.samples_left(10**6) == 0 or rung.promotable()
    rung.check()


@pytest.mark.parametrize(("eta", "results"), [("3.7", 37), ("1.6", 8), ("2.3", 23), ("1.1", 22)])
@pytest.mark.parametrize("objectives", [1, 2])
def test_a_trial_at_an_exact_multiple_is_promoted(eta: str, results: int, objectives: int) -> None:
    """Results come best first, so that the promotions are the best ``floor(n / eta)`` at all times."""
    search = {
        "method": "asha",
        "configs": results,
        "max_resource": 10,
        "min_resource": 1,
        "reduction_factor": float(eta),
    }
    metrics: dict[str, Any] = {} if objectives == 1 else {"metrics": [{"name": "loss"}, {"name": "other"}]}
    study = fresh(make_spec(search=search | {"brackets": [0]}, **metrics))
    base = []
    while len(base) < results:
        job = study.ask()
        assert job is not None
        if job.rung:
            continue  # promoted ones stay on the way
        base.append(job.trial)
        study.tell(
            job, {"loss": float(job.trial), "other": float(job.trial)} if metrics else {"loss": float(job.trial)}
        )
    while (job := study.ask()) is not None:
        assert job.rung == 1
    granted = facts(study.journal.entries(study.name), JobGranted)
    assert sum(event.rung == 1 for event in granted) == leaving(results, eta)


@pytest.mark.parametrize(("eta", "results"), [("3.7", 37), ("1.6", 8), ("2.3", 23)])
def test_a_trial_at_an_exact_multiple_is_not_stopped(eta: str, results: int) -> None:
    """The last result of a rung is the last one of those that may go on: place ``n / eta`` of ``n``."""
    last = leaving(results, eta)
    search = {"method": "asha", "variant": "stopping", "configs": results, "max_resource": 10, "min_resource": 1,
              "reduction_factor": float(eta), "brackets": [0]}  # fmt: skip
    study = fresh(make_spec(search=search))
    places = [*range(1, last), *range(last + 1, results + 1), last]
    jobs = study.set_capacity(results)
    assert len(jobs) == results
    for job, place in zip(jobs, places, strict=True):
        study.tell(job, {"loss": float(place)})
    stopped = facts(study.journal.entries(study.name), TrialStopped)
    assert jobs[-1].trial not in {event.trial for event in stopped}


@pytest.mark.parametrize(("eta", "results"), [("3.7", 37), ("1.6", 8), ("2.3", 23)])
def test_the_pruner_for_optuna_keeps_a_trial_at_an_exact_multiple(eta: str, results: int) -> None:
    optuna = pytest.importorskip("optuna")
    from hpo_core.integrations.optuna import AshaPruner

    last = leaving(results, eta)
    study = optuna.create_study(pruner=AshaPruner(max_resource=10, reduction_factor=float(eta)))
    for place in [*range(1, last), *range(last + 1, results + 1), last]:
        trial = study.ask()
        trial.report(float(place), 1)
        pruned = trial.should_prune()
    assert not pruned


@given(st.integers(1, 60), st.integers(0, 6000), ETAS)
@example(50, 1000, "1.1")
@example(1, 31, "4.0")
@example(1, 7, "4.0")
def test_levels_are_r_times_powers_of_eta(r: int, more: int, eta: str) -> None:
    settings: dict[str, Any] = {"max_resource": r + more, "min_resource": r, "reduction_factor": float(eta)}
    wanted = [r] if not more else levels_of(r, r + more, eta)
    assert AshaSearch(configs=9, brackets=[0], **settings).levels() == wanted
    assert PashaSearch(configs=9, **settings).levels() == wanted
    assert HyperbandSearch(**settings).levels() == wanted
    assert ShaSearch(configs=10**6, **settings).levels() == wanted


@given(st.integers(1, 60), ETAS)
@example(15, "4.1")
def test_levels_without_an_end_are_r_times_powers_of_eta(r: int, eta: str) -> None:
    digits, ten = ratio(eta)
    plan = AshaSearch(min_resource=r, reduction_factor=float(eta)).plan()
    ladder, level = Ladder(plan.levels, plan.reduction_factor, endless=True), r
    for k in range(1, 8):
        level = max(level + 1, nearest(r * digits**k, ten**k))
        assert ladder.level(k) == level == ladder.rung(k).level


@given(ETAS, st.integers(1, 10**7), st.integers(2, 6))
@example("3.7", 37**4, 5)
def test_sizes_of_successive_halving(eta: str, configs: int, rungs: int) -> None:
    digits, ten = ratio(eta)
    top = digits ** (rungs - 1) // ten ** (rungs - 1) + 1
    search = ShaSearch(configs=configs, min_resource=1, max_resource=top, reduction_factor=float(eta))
    method = search.create(SearchContext())
    wanted = [size for size in (leaving(configs, eta, k) for k in range(len(search.levels()))) if size]
    assert [rung.expected for rung in method.rungs()] == wanted


@given(ETAS, st.integers(1, 3), st.integers(2, 400))
@example("2.5", 1, 39)
def test_sizes_of_hyperband(eta: str, r: int, factor: int) -> None:
    digits, ten = ratio(eta)
    search = HyperbandSearch(min_resource=r, max_resource=r * factor, reduction_factor=float(eta))
    rungs = len(search.levels())
    wanted = [-(-rungs * digits**s // ((s + 1) * ten**s)) for s in range(rungs - 1, -1, -1)]
    action = search.create(SearchContext()).next_action()
    assert isinstance(action, Sample) and action.target == search.levels()[0]
    assert search.sampled() == sum(wanted)
    bases = [rung.expected for rung in search.create(SearchContext()).rungs() if rung.rung == 0]
    assert bases == wanted


def test_shares_of_decimal_weights_are_exact() -> None:
    weights = {"a": "0.1", "b": "0.2", "c": "0.3"}
    claims = [Member(study=name, demand=60, weight=float(weight)) for name, weight in weights.items()]
    assert ideal_shares(6, claims) == {"a": 1, "b": 2, "c": 3}
    assert all(divide(6, claims, turn) == {"a": 1, "b": 2, "c": 3} for turn in range(9))


@given(st.integers(1, 100), st.integers(1, 64))
def test_a_speed_up_at_the_wanted_efficiency_is_enough(percent: int, gpus: int) -> None:
    assert kappa({gpus: percent * gpus / 100}, percent / 100) == gpus
    assert kappa({gpus: (percent * gpus - 0.001) / 100}, percent / 100) == 1


@pytest.mark.parametrize(("members", "percent"), [(100, 29), (180, 35), (10, 20), (7, 20), (25, 28)])
def test_so_many_of_a_population_are_replaced(members: int, percent: int) -> None:
    sessions = [TrialSession({}, None, member, fitness=(float(member),), ended=True) for member in range(members)]
    parents = Parents(sessions, seed=1, selection="truncation", truncation=percent / 100, fitness="priority")
    for member in range(members):
        parents.add(member)
    replaced = [member for member in range(members) if parents.choose(member, members, range(1)).explored]
    assert replaced == list(range(members - members * percent // 100, members))
