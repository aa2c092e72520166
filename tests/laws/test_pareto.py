"""Laws of several objectives: the ranking of a rung, the front of a study, and every method that has rungs."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from hpo_core.model.arithmetic import float_sum
from hpo_core.model.events import JobCompleted, JobGranted, TrialCreated
from hpo_core.model.trial import Rung as Stage
from hpo_core.search.pareto_rungs import ParetoRung
from hpo_core.search.rungs import LossRung, make_rung
from hpo_core.state import StudyState
from hpo_core.state.best_results import dominates
from tests.conftest import World

Losses = tuple[float, ...]
LOSS = st.one_of(st.integers(0, 4).map(float), st.floats(-5, 5), st.sampled_from([1e308, -1e308, 5e-324]))


@st.composite
def results(draw: st.DrawFn, most: int = 40) -> list[Losses | None]:
    """Losses of some trials in one to four objectives, with ties, outliers and None."""
    point = st.tuples(*[LOSS] * draw(st.integers(1, 4)))
    return draw(st.lists(st.one_of(point, point, point, st.none()), max_size=most))


def plain_fronts(points: dict[int, Losses]) -> list[list[int]]:
    """By the definition: take away what nothing left dominates, again and again."""
    left, fronts = dict(points), []
    while left:
        fronts.append([t for t in sorted(left) if not any(dominates(other, left[t]) for other in left.values())])
        left = {t: losses for t, losses in left.items() if t not in fronts[-1]}
    return fronts


def plain_order(front: list[int], points: dict[int, Losses], promoted: set[int]) -> list[int]:
    """Promoted ones first; the smallest first loss, then always the farthest from those before it."""
    columns = list(zip(*(points[t] for t in front), strict=True))
    halves = [(min(column) * 0.5, max(column) * 0.5) for column in columns]
    unit = {
        t: [(x * 0.5 - low) / (high - low) if high > low else 0.0 for x, (low, high) in zip(points[t], halves)]  # noqa: B905
        for t in front
    }

    def nearest(trial: int) -> float:
        return min(float_sum((a - b) * (a - b) for a, b in zip(unit[trial], unit[o], strict=True)) for o in order)

    order: list[int] = []
    for group in ([t for t in front if t in promoted], [t for t in front if t not in promoted]):
        while left := [t for t in group if t not in order]:
            best = min(points[t][0] for t in left)
            first = next(t for t in left if points[t][0] == best)
            order.append(max(left, key=lambda t: (nearest(t), -t)) if order else first)
    return order


def plain_ranking(given: list[Losses | None], promoted: set[int]) -> list[int]:
    points = {t: losses for t, losses in enumerate(given) if losses is not None}
    ranked = [t for front in plain_fronts(points) for t in plain_order(front, points, promoted)]
    return ranked + [t for t, losses in enumerate(given) if losses is None]


@settings(max_examples=40, deadline=None)
@given(results(), st.integers(2, 5), st.data())
def test_ranking_and_candidate_agree_with_the_plain_definition(
    given: list[Losses | None], eta: int, data: st.DataObject
) -> None:
    rung, promoted = ParetoRung(1, eta), set[int]()
    for trial, losses in enumerate(given):
        rung.add(trial, losses)
        ranked = plain_ranking(given[: trial + 1], promoted)
        free = [t for t in ranked[: (trial + 1) // eta] if t not in promoted and given[t] is not None]
        assert rung.ranking() == ranked
        assert [rung.rank(t) for t in ranked] == list(range(1, trial + 2))
        assert rung.candidate() == (free[0] if free else None)
        assert rung.promotable() == len(free)
        rung.check()
        if free and data.draw(st.booleans()):
            promoted.add(free[0])
            rung.promote(free[0])
            rung.check()
    assert rung.promoted == len(promoted) and rung.size == len(given)


@settings(max_examples=30, deadline=None)
@given(results(), st.randoms(use_true_random=False))
def test_the_order_in_which_results_come_does_not_matter(given: list[Losses | None], random: Any) -> None:
    order = list(range(len(given)))
    random.shuffle(order)
    one, two = ParetoRung(1, 3), ParetoRung(1, 3)
    for trial, losses in enumerate(given):
        one.add(trial, losses)
    for trial in order:
        two.add(trial, given[trial])
        two.check()
    assert one.ranking() == two.ranking()
    assert one.candidate() == two.candidate()


@settings(max_examples=30, deadline=None)
@given(st.lists(st.one_of(st.none(), st.floats(-5, 5)), max_size=60), st.integers(2, 5), st.data())
def test_with_one_objective_it_is_the_common_rung(given: list[float | None], eta: int, data: st.DataObject) -> None:
    plain, pareto = LossRung(1, eta), ParetoRung(1, eta)
    seen: set[float] = set()
    for trial, loss in enumerate(given):
        loss = None if loss in seen else loss  # between equal losses a promoted trial stays first here
        seen |= {loss} if loss is not None else set()
        plain.add(trial, loss)
        pareto.add(trial, None if loss is None else (loss,))
        assert plain.ranking() == pareto.ranking()
        assert plain.candidate() == pareto.candidate()
        assert plain.promotable() == pareto.promotable()
        if (candidate := plain.candidate()) is not None and data.draw(st.booleans()):
            plain.promote(candidate)
            pareto.promote(candidate)


def test_a_large_front_is_covered_evenly_and_not_reshuffled() -> None:
    rung = make_rung(1, 4, objectives=2)
    world = World(5)
    first: list[float] = []
    for trial in range(400):
        x = world.random.random()
        first.append(x)
        rung.add(trial, (x, 1 - x))
        if (candidate := rung.candidate()) is not None:
            rung.promote(candidate)
    assert rung.promoted == 100, "one in eta, although every result moves the others"
    assert isinstance(rung, ParetoRung)
    chosen = sorted(first[t] for t in rung.ranking()[:100])
    gaps = [b - a for a, b in pairwise(chosen)]
    assert max(gaps) < 0.03, "no stretch of the front is left out"


@settings(max_examples=40, deadline=None)
@given(results(60))
def test_the_front_of_a_study_is_what_nothing_dominates(given: list[Losses | None]) -> None:
    finite = [(losses, trial) for trial, losses in enumerate(given) if losses is not None and len(losses) > 1]
    state = StudyState()
    for trial, losses in enumerate(given):
        state.apply(TrialCreated(trial, 0, {}))
        state.apply(JobGranted(trial, 0, Stage(0, 0), target=1, checkpoint=None))
        kept = losses or ()
        several = kept if len(kept) > 1 else ()
        loss = kept[0] if several else None
        state.apply(JobCompleted(trial, 0, Stage(0, 0), 1, loss, {}, None, "", 0.0, 0.0, several))
    wanted = dict(reversed(finite))  # of equal ones the earliest
    wanted = {k: t for k, t in wanted.items() if not any(dominates(other, k) for other in wanted)}
    assert [(m.losses, m.trial) for m in state.front] == sorted(wanted.items())
    assert state.incumbent == (state.front[0] if state.front else None)
