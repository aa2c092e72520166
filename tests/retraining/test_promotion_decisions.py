"""The policy of retraining: drift, branches, the test a challenger must pass, what is trained again."""

from __future__ import annotations

import math
import random
import re
from pathlib import Path

import msgspec
import pytest

from hpo_core import MemoryJournal, Study
from hpo_core.model.errors import SpecError, StorageError
from hpo_core.replay.rerun import rerun_spec
from hpo_core.retraining.model_registry import Decision, ModelCard, Repeat
from hpo_core.retraining.promotion_policy import (
    check_drift,
    is_good_enough,
    promotion_test,
)
from hpo_core.retraining.repeated_studies import (
    absolute_path,
    fingerprint,
    repeats_spec,
    trials_of_repeats,
    tuning_spec,
)
from hpo_core.spec.refusals import check_retraining
from tests.conftest import World, fresh, make_spec


def draws(seed: int, count: int, mean: float = 0.0, spread: float = 1.0) -> list[float]:
    source = random.Random(seed)
    return [source.gauss(mean, spread) for _ in range(count)]


# Drift.


def test_equal_losses_are_no_drift_and_different_ones_are() -> None:
    same = check_drift(draws(1, 300), draws(2, 300))
    other = check_drift(draws(1, 300), draws(2, 300, mean=1.0))
    assert not same.drifted and other.drifted
    assert other.statistic == pytest.approx(0.383, abs=0.08), "2 Phi(1/2) - 1 for a shift by one deviation"


def test_a_drift_must_be_large_and_significant() -> None:
    sure_but_small = check_drift(draws(1, 5000), draws(2, 5000, mean=0.2))
    assert sure_but_small.p_value < 1e-6 and not sure_but_small.drifted
    large_but_unsure = check_drift(draws(1, 20), draws(5, 20, mean=0.2), limit=0.1)
    assert large_but_unsure.statistic >= 0.1 and not large_but_unsure.drifted


# The test of a challenger.


def test_a_clear_gain_wins_and_noise_does_not() -> None:
    champion = [0.50, 0.52, 0.49, 0.51, 0.50]
    assert promotion_test(champion, [0.40, 0.41, 0.39, 0.42, 0.40]).wins
    assert not promotion_test(champion, [0.49, 0.53, 0.48, 0.50, 0.51]).wins
    assert not promotion_test(champion, [0.60, 0.61, 0.62, 0.60, 0.59]).wins, "worse"
    assert not promotion_test(champion, [0.1, 0.9, 0.2, 0.8, 0.3]).wins, "better on average, but all noise"


def test_margin_level_and_number_of_challengers_make_a_win_harder() -> None:
    champion, challenger = [0.50, 0.52, 0.49, 0.51], [0.47, 0.49, 0.46, 0.48]
    plain = promotion_test(champion, challenger)
    assert plain.wins and plain.gain == pytest.approx(0.03)
    assert not promotion_test(champion, challenger, margin=0.02).wins
    assert not promotion_test(champion, challenger, level=plain.p_value * 1.5, challengers=2).wins
    assert promotion_test(champion, challenger, level=plain.p_value * 1.5, challengers=1).wins


def test_without_spread_the_difference_decides() -> None:
    assert promotion_test([1.0, 1.0], [0.9, 0.9]).wins
    assert not promotion_test([1.0, 1.0], [1.0, 1.0]).wins
    assert not promotion_test([1.0, 1.0], [0.9, 0.9], margin=0.2).wins


@pytest.mark.parametrize("bad", [[0.1], [], [0.1, math.nan], [0.1, math.inf]])
def test_fewer_than_two_finite_results_are_refused(bad: list[float]) -> None:
    with pytest.raises(SpecError, match="at least two, all finite"):
        promotion_test([0.5, 0.6], bad)


def test_a_retraining_worse_than_the_champion_on_the_same_data_leads_to_tuning() -> None:
    champion = [0.20, 0.21, 0.19, 0.20]
    good, better, worse = [0.21, 0.20, 0.20, 0.21], [0.10, 0.11, 0.1, 0.1], [0.30, 0.31, 0.29, 0.30]
    assert is_good_enough(champion, good) and is_good_enough(champion, better)
    assert not is_good_enough(champion, worse)


# What is trained again.


def played(journal: MemoryJournal, **changes: object) -> Study:
    study = fresh(make_spec(**changes), journal)
    World(3).play(study)
    return study


def test_repeats_follow_the_recorded_grants_with_new_seeds() -> None:
    journal = MemoryJournal()
    study = played(journal)
    assert study.best is not None
    best = study.state.trials[study.best.trial]
    spec = repeats_spec(list(journal.entries("world")), "again", trial=best.number, repeats=3, changes={"data": "new"})
    again = fresh(spec)
    World(4).play(again)
    assert again.status == "finished" and trials_of_repeats(spec, 3) == [0, 1, 2]
    for trial in again.state.trials:
        assert trial.params == best.params | {"data": "new"}
        assert [r.resource for r in trial.results] == [r.resource for r in best.results], "the recorded schedule"
    seeds = [spec.training_seed(k) for k in range(3)]
    recorded = {study.spec.training_seed(trial.number) for trial in study.state.trials}
    assert len({*seeds} - recorded) == 3, "none is of a training that was chosen for its result"
    assert again.method.ruled_out == [], "every repeat keeps its last checkpoint"

    once_more = rerun_spec(list(again.journal.entries("again")), "more", trials=[1])
    assert once_more.training_seed(0) == seeds[1], "a rerun of a rerun keeps its seeds too"


def test_the_best_of_equal_configurations_wins_at_the_rate_of_the_level() -> None:
    """The whole procedure: the best of thirty equal configurations, trained again, against a champion of equals."""
    journal = MemoryJournal()
    study = played(journal, search={"method": "random", "configs": 30, "max_resource": 3})
    entries = list(journal.entries("world"))
    specs = [repeats_spec(entries, "again", trial=trial.number, repeats=5, changes={}) for trial in study.state.trials]
    wins, worlds = 0, 1000
    for world in range(worlds):

        def noise(seed: int, world: int = world) -> float:
            return random.Random(f"{world}/{seed}").gauss(0, 1)

        best = min(range(30), key=lambda trial: noise(study.spec.training_seed(trial)))
        challenger = [noise(specs[best].training_seed(trial)) for trial in trials_of_repeats(specs[best], 5)]
        wins += promotion_test([noise(-k) for k in range(1, 6)], challenger, level=0.05).wins
    assert 25 < wins < 75, "5 % of 1,000 and 3.6 deviations; with the winner's own seed among them there are some 95"


def test_the_tuning_spec_has_the_search_and_the_new_data() -> None:
    spec = tuning_spec(make_spec(), "next", data="new.npz", studies=["world"], key="k")
    assert spec.space["data"].choices == ["new.npz"] and spec.search == make_spec().search  # type: ignore[union-attr]
    assert spec.seed != make_spec().seed and spec.warm_start is not None and spec.warm_start.studies == ["world"]
    grid = make_spec(search={"method": "grid", "points": {"x": 3, "d": 2}, "max_resource": 3})
    again = tuning_spec(grid, "next", data="new.npz", studies=["world"], key="k")
    assert again.warm_start is None and again.search == grid.search, "a grid says itself what is tried"
    journal = MemoryJournal()
    played(journal)
    rerun = repeats_spec(list(journal.entries("world")), "again", trial=0, repeats=2, changes={})
    with pytest.raises(SpecError, match="has no search to begin anew"):
        check_retraining(rerun)


# Which data, and what is shown.


def test_the_fingerprint_depends_on_the_content(tmp_path: Path) -> None:
    one, two = tmp_path / "a.bin", tmp_path / "b.bin"
    one.write_bytes(b"same")
    two.write_bytes(b"same")
    assert fingerprint(str(one)) == fingerprint(str(two))
    two.write_bytes(b"other")
    assert fingerprint(str(one)) != fingerprint(str(two))
    before = fingerprint(str(tmp_path))
    two.rename(tmp_path / "c.bin")
    assert fingerprint(str(tmp_path)) != before, "names inside a folder count"
    before = fingerprint(str(tmp_path))
    outside = tmp_path.with_name(f"{tmp_path.name}-today")
    outside.mkdir()
    (outside / "d.bin").write_bytes(b"monday")
    (tmp_path / "current").symlink_to(outside)
    monday = fingerprint(str(tmp_path))
    (outside / "d.bin").write_bytes(b"tuesday")
    assert len({before, monday, fingerprint(str(tmp_path))}) == 3, "what a link leads to is content"
    (outside / "back").symlink_to(tmp_path)
    with pytest.raises(StorageError, match="leads back into itself"):
        fingerprint(str(tmp_path))
    assert fingerprint("period-1") != fingerprint("period-2")
    assert absolute_path("period-1") == "period-1" and absolute_path(str(one)) == str(one)


def decision(**changes: object) -> Decision:
    repeats = tuple(Repeat(k, loss) for k, loss in enumerate((-0.8, -0.9)))
    card = ModelCard("acc", "max", "m-best", ("m-tune",), "<script>", "f" * 64, "a:b", repeats, (0.1,) * 20)
    verdict = promotion_test([-0.5, -0.6], card.losses)
    made = Decision(
        model="m", key="k", champion_version=3, promoted=True,
        drift=check_drift(draws(1, 50), draws(2, 50)), verdict=verdict, steps=("because",),
        rows=(("champion, new data", (-0.5, -0.6)), ("challenger, <b>tuned", tuple(card.losses))), challenger=card,
    )  # fmt: skip
    return msgspec.structs.replace(made, **changes)


def test_a_decision_has_a_text() -> None:
    made = decision()
    words = made.markdown()
    assert "became champion" in words and "one-sided Welch test over seeds, p = " in words and "Kolmogorov" in words
    assert "| challenger, &lt;b&gt;tuned | 0.85 | 0.8, 0.9 |" in words, "in the user's metric, not as losses"
    assert "stays champion" in decision(promoted=False).markdown()
    assert made.outcome(4) == (
        "version 4 became champion in place of version 3: acc 0.85 instead of 0.55 on the new data"
    )


def test_a_challenger_with_a_better_mean_is_not_called_worse() -> None:
    """0.1461 of the challenger "is no better" than 0.1953, said the list of runs, and the page: not proven better."""
    verdict = promotion_test([0.1953, 0.3, 0.1], [0.1461, 0.25, 0.05], margin=0.01)
    card = msgspec.structs.replace(decision().challenger, metric="val_loss", mode="min")
    kept = decision(promoted=False, challenger=card, verdict=verdict)
    said = kept.outcome(2)
    assert said.startswith("version 3 stays champion: val_loss 0.1984 on the new data, and 0.1487 of version 2 is not ")
    found = re.search(r"is (not proven better by more than 0.01) \((p = 0\.\d+)\)$", said)
    assert found and found[1] in kept.markdown() and found[2] in kept.markdown(), "both say the same"
