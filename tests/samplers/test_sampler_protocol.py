"""The protocol of benchmarks/samplers.py: arithmetic, problems and searches in virtual time, by brute force."""

from __future__ import annotations

import itertools
import json
import math
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sklearn.datasets

from benchmarks.sampling import searches, trained
from benchmarks.sampling.comparison import Pairs, Run, chosen_elsewhere, compared, interval, resampled
from benchmarks.sampling.problems import TableProblem, trained_tables
from benchmarks.sampling.run_file import Key, RunFile
from benchmarks.sampling.searches import MOVED, NEAREST, Ours, PeerProcess, Track, play_ours, play_peer
from benchmarks.sampling.synthetic import FLOOR, KINDS, RESOURCE, SyntheticProblem


def regrets(*ends: float) -> np.ndarray:
    """Of one search per value, the same after each percent."""
    return np.array([np.full(101, end) for end in ends])


def runs_of(ends: dict[tuple[str, str], list[float]]) -> dict[Run, np.ndarray]:
    return {
        Run(problem, system, seed): np.full(101, end)
        for (problem, system), values in ends.items()
        for seed, end in enumerate(values)
    }


def test_bootstrap_draws_seeds_with_their_pairs() -> None:
    ours, theirs = np.array([0.0, 1.0]), np.array([0.5, 1.5])
    drawn = resampled([ours], [theirs])
    assert np.allclose(drawn[:, 1] - drawn[:, 0], 0.5)  # pairs stay together in each sample
    means = [np.mean(pick) for pick in itertools.product(ours, repeat=2)]
    for value in sorted(set(means)):
        share = np.isclose(drawn[:, 0], value).mean()
        assert share == pytest.approx(means.count(value) / len(means), abs=0.02), value


def test_bootstrap_draws_problems_too() -> None:
    ours = [np.array([0.0]), np.array([1.0]), np.array([5.0])]
    drawn = resampled(ours, ours)[:, 0]
    means = [np.mean(pick) for pick in itertools.product([0.0, 1.0, 5.0], repeat=3)]
    for value in set(means):
        assert np.isclose(drawn, value).mean() == pytest.approx(np.isclose(means, value).mean(), abs=0.02), value
    assert interval(np.arange(1001.0)) == (25.0, 975.0)


def test_pairs_are_the_searches_that_both_have_played() -> None:
    runs = runs_of({("a", "x"): [1.0, 3.0, 9.0], ("a", "base"): [2.0, 2.0], ("b", "x"): [5.0], ("c", "base"): [1.0]})
    pairs = Pairs.of(runs, "x", "base", ["a", "b", "c"])
    assert (pairs.searches, pairs.seeds, list(pairs.ours)) == (2, (2, 2), ["a"])
    assert pairs.ours["a"][:, 50].tolist() == [1.0, 3.0]


def test_means_are_over_problems_whatever_their_seeds() -> None:
    pairs = Pairs({"a": regrets(0.0, 0.2), "b": regrets(0.5)}, {"a": regrets(0.4, 0.4), "b": regrets(0.6)})
    at = pairs.at(100)
    assert at["mean"] == pytest.approx((0.1 + 0.5) / 2)
    assert at["base"] == pytest.approx(0.5)
    assert at["difference"][0] == pytest.approx(-0.2)
    assert at["ratio"][0] == pytest.approx(0.6)
    assert at["ratio"][1] <= 0.6 <= at["ratio"][2]


def test_better_and_worse_need_more_than_noise_and_three_seeds() -> None:
    base = regrets(0.5, 0.5, 0.5, 0.5)
    pairs = Pairs(
        {
            "better": regrets(0.1, 0.2, 0.1, 0.3), "worse": regrets(0.9, 0.6, 0.8, 0.9),
            "noise": regrets(0.1, 0.9, 0.4, 0.6), "same": base, "two": regrets(0.1, 0.1),
        },
        {"better": base, "worse": base, "noise": base, "same": base, "two": base[:2]},
    )  # fmt: skip
    assert pairs.verdicts(100) == {"better": "better", "worse": "worse", "noise": "equal", "same": "equal"}
    found = compared(pairs, {name: name[0] for name in pairs.ours})
    assert (found["better"], found["equal"], found["worse"]) == (["better"], ["noise", "same"], ["worse"])
    assert found["families"]["b"]["100 %"]["mean"] == pytest.approx(0.175)
    assert found["problems"]["worse"] == [0.8, 0.5]


def test_a_choice_is_judged_on_the_family_that_did_not_see_it() -> None:
    families = {"a1": "a", "a2": "a", "b1": "b", "c1": "c"}
    rng = np.random.default_rng(1)
    runs = runs_of({(p, s): rng.uniform(size=3).tolist() for p in families for s in ("x", "y", "z")})
    del runs[Run("a1", "z", 2)]  # so seed 2 of a1 counts for nobody
    found, chosen = chosen_elsewhere(runs, ["x", "y", "z"], families, "choice")
    for family in "abc":
        means = {}
        for system in "xyz":
            others = [p for p, f in families.items() if f != family]
            of_problem = [[runs[Run(p, system, s)][25] for s in range(2 if p == "a1" else 3)] for p in others]
            means[system] = np.mean([np.mean(values) for values in of_problem])
        assert chosen[family] == min(means, key=means.__getitem__)
    for run, values in found.items():
        assert values is runs[run._replace(system=chosen[families[run.problem]])]
    assert len(found) == 2 + 3 + 3 + 3
    changed = {run: one * (100 if families[run.problem] == "a" else 1) for run, one in runs.items()}
    assert chosen_elsewhere(changed, ["x", "y", "z"], families, "choice")[1]["a"] == chosen["a"]
    with pytest.raises(ValueError, match="another one"):
        chosen_elsewhere(runs, ["x", "y"], dict.fromkeys(families, "one"), "choice")


@pytest.fixture
def table(tmp_path: Path) -> TableProblem:
    rng = np.random.default_rng(0)
    losses = rng.uniform(1, 2, (20, 9))
    losses[3, 4:] = np.nan
    X = np.stack([10 ** rng.uniform(-4, 0, 20), rng.integers(1, 9, 20), rng.integers(0, 3, 20)], axis=1)
    meta = {
        "primary_metric": "loss", "direction": "min",
        "hyperparameters": [
            {"name": "lr", "type": "float", "lower": 1e-4, "upper": 1.0, "log": True},
            {"name": "depth", "type": "int", "lower": 1, "upper": 8},
            {"name": "kind", "type": "categorical", "choices": ["p", "q", "r"]},
        ],
    }  # fmt: skip
    seconds = np.cumsum(rng.uniform(1, 3, (20, 9)), axis=1)
    path = tmp_path / "lcbench_made.npz"
    np.savez(path, X=X, loss=losses, time_s=seconds, fidelity=np.arange(1, 10), meta_json=json.dumps(meta))
    return TableProblem(path, workers=3, full_runs=6)


def test_a_proposal_is_moved_to_the_nearest_row(table: TableProblem) -> None:
    rng, taken = np.random.default_rng(1), set[int]()
    for _ in range(20):
        asked = {
            "lr": float(10 ** rng.uniform(-4, 0)),
            "depth": int(rng.integers(1, 9)),
            "kind": str(rng.choice(["p", "q"])),
        }

        def apart(row: int, asked: dict[str, Any] = asked) -> float:
            other = table.params(row)
            lr = (math.log10(asked["lr"]) - math.log10(other["lr"])) / 4
            return lr**2 + ((asked["depth"] - other["depth"]) / 7) ** 2 + (asked["kind"] != other["kind"])

        assert table.place(asked, set()) == min(range(20), key=apart)
        place = table.place(asked, taken)
        assert place == min(set(range(20)) - taken, key=apart)
        taken.add(place)
    assert table.family == "LCBench"


def test_of_rows_with_the_same_parameters_the_first_counts(table: TableProblem, tmp_path: Path) -> None:
    path = tmp_path / "lcbench_made.npz"
    with np.load(path) as data:
        arrays = dict(data)
    repeated = [0, 3, 0, 1, 2, *range(3, 20)]
    np.savez(
        path, **{name: values[repeated] if values.shape[:1] == (20,) else values for name, values in arrays.items()}
    )
    found = TableProblem(path, workers=3, full_runs=6)
    order = [0, 3, 1, 2, *range(4, 20)]
    assert found.size == 20
    assert [found.params(row) for row in range(20)] == [table.params(row) for row in order]
    assert [found.loss(row, 4) for row in range(20) if row != 1] == [table.loss(row, 4) for row in order if row != 3]
    assert [found.seconds(row, 9) for row in range(20)] == [table.seconds(row, 9) for row in order]


def test_both_ways_of_counting(table: TableProblem) -> None:
    losses = np.where(np.isfinite(table.curves.losses), table.curves.losses, np.inf)
    final, lowest = losses[:, -1], losses.min(axis=1)
    for row in range(20):
        trained = (final[row] - final.min()) / (np.median(final) - final.min())
        assert table.regret(row) == pytest.approx(min(1.0, trained))
        for resource in (1, 4):
            value = (losses[row, resource - 1] - lowest.min()) / (np.median(lowest) - lowest.min())
            assert table.checkpoint_regret(row, resource) == pytest.approx(min(1.0, value))
    assert min(map(table.regret, range(20))) == 0
    assert min(table.checkpoint_regret(row, t) for row in range(20) for t in range(1, 10) if row != 3 or t < 5) == 0


def test_a_track_holds_what_a_user_would_take(table: TableProblem) -> None:
    track = Track(table)
    track.incumbent(0.103 * table.until, 5, 1)
    track.incumbent(0.5 * table.until, 7, 3)
    assert track.trained[[0, 10, 11, 49, 50, 100]].tolist() == [1, 1, *[table.regret(5)] * 2, *[table.regret(7)] * 2]
    assert track.checkpoint[[10, 11, 100]].tolist() == [1, table.checkpoint_regret(5, 1), table.checkpoint_regret(7, 3)]


class Halving:
    """A peer that trains one trial to 1, waits for three results, resumes the best to 3 and trains that on to 9."""

    def __init__(self) -> None:
        self.told: list[tuple[str, int, float]] = []
        self.number = 0

    def __call__(self, do: str, **message: Any) -> dict[str, Any]:
        if do == "ask":
            if self.number < 3:
                self.number += 1
                params = {"lr": 0.01 * self.number, "depth": self.number, "kind": "p"}
                return {"trial": str(self.number - 1), "params": params, "start": 0, "target": 1}
            if len(self.told) == 3:
                best = min(self.told, key=lambda one: one[2])[0]
                self.told.append(("", 0, 0))
                return {"trial": best, "params": {}, "start": 1, "target": 3}
            return {"wait": True}
        if do == "tell":
            self.told.append((message["trial"], message["resource"], message["loss"]))
            return {"target": 9} if message["resource"] == 3 else {}
        return {"cpu_seconds": 1.5}


def test_a_peer_plays_in_virtual_time(table: TableProblem) -> None:
    table.until = 1e9  # ends because the peer only waits
    peer = Halving()
    with pytest.raises(RuntimeError, match="waits with no job running"):
        play_peer(table, peer, "halving", 0, NEAREST)
    places = [table.place({"lr": 0.01 * n, "depth": n, "kind": "p"}, set()) for n in (1, 2, 3)]
    first = {str(n): table.loss(place, 1) for n, place in enumerate(places)}
    best = min(first, key=first.__getitem__)
    order = sorted(first, key=lambda trial: table.seconds(places[int(trial)], 1))
    row = places[int(best)]
    assert peer.told[:3] == [(trial, 1, first[trial]) for trial in order]
    assert peer.told[4:] == [(best, 3, table.loss(row, 3)), (best, 9, table.loss(row, 9))]
    table.until = max(table.seconds(place, 1) for place in places) + table.seconds(row, 3) - table.seconds(row, 1)
    found = play_peer(table, Halving(), "halving", 0, NEAREST)  # the result at 3 comes with the end of the budget
    taken = min((table.loss(row, 3), 3), (first[best], 1))[1]
    assert found["checkpoint"][-1] == pytest.approx(table.checkpoint_regret(row, taken), abs=1e-4)
    assert (found["trials"], found["ms"]) == (3, 1500 / 4)


def test_a_study_plays_a_table_in_both_spaces(table: TableProblem) -> None:
    moved = play_ours(table, Ours(), 1, MOVED)
    nearest = play_ours(table, Ours(), 1, NEAREST)
    assert moved["distinct"] == moved["trials"] <= 20
    assert nearest["distinct"] < nearest["trials"]
    for found in (moved, nearest):
        assert found["checkpoint"][0] == found["trained"][0] == 1 > found["checkpoint"][-1]
        assert all(b <= a + 1e-4 for a, b in itertools.pairwise(found["checkpoint"]))  # its loss only falls
    assert play_ours(table, Ours(), 1, MOVED)["trained"] == moved["trained"]


def test_a_study_is_judged_by_its_own_rule_for_the_best(table: TableProblem) -> None:
    lowest = play_ours(table, Ours(), 3, MOVED)["checkpoint"][-1]
    highest = play_ours(table, Ours({"best_of": "highest_rung"}), 3, MOVED)["checkpoint"][-1]
    assert lowest < highest  # losses are noise here, so the lowest of all is on the rung with most results


@pytest.mark.parametrize("way", ["related", "shuffled", "reversed"])
def test_an_earlier_study_says_what_its_way_says(table: TableProblem, way: str) -> None:
    journal = searches.earlier(table, 0, way)
    told = [e for entry in journal.entries("earlier") for e in entry.events if type(e).__name__ == "JobCompleted"]
    params = {e.trial: e.params for entry in journal.entries("earlier") for e in entry.events if hasattr(e, "params")}
    same = 0
    for event in told:
        own = table.loss(table.place(params[event.trial], set()), event.resource)
        if event.loss is None or not math.isfinite(own):
            continue
        same += event.loss == own
        assert way != "related" or event.loss == own
        assert way != "reversed" or event.loss == -own
    assert way != "shuffled" or same < len(told) / 2
    assert len(told) > 3
    found = play_ours(table, Ours({"sampler": {"name": "random"}}, past=way), 0, MOVED, related=table)
    assert found["trials"] > 3


def test_a_run_file_goes_on_where_it_was(tmp_path: Path) -> None:
    path = tmp_path / "runs.jsonl"
    runs = RunFile(path)
    runs.add(Key(MOVED, "a", "x", 0), {"trained": [0.5], "checkpoint": [0.4]})
    runs.add(Key(MOVED, "a", "y", 0), {"error": "no"})
    again = RunFile(path)
    assert set(again.lines) == {Key(MOVED, "a", "x", 0), Key(MOVED, "a", "y", 0)}
    assert {run: one.tolist() for run, one in again.runs(MOVED, "checkpoint").items()} == {Run("a", "x", 0): [0.4]}
    assert again.runs(NEAREST, "trained") == {}
    again.forget(["x"])
    assert set(RunFile(path).lines) == {Key(MOVED, "a", "y", 0)}


def test_a_peer_process_answers_and_its_end_is_told(tmp_path: Path) -> None:
    script = tmp_path / "peer.py"
    script.write_text(
        f"import sys, time; sys.path.insert(0, {str(searches.PEERS)!r}); print('noise on import')\n"
        "from protocol import serve\n"
        "class One:\n"
        "    def __init__(self, start): self.losses = []\n"
        "    def ask(self): print('noise'); return {'wait': True}\n"
        "    def tell(self, trial, resource, loss):\n"
        "        while trial == 'slow' and time.process_time() < 1: pass\n"
        "        if trial == 'bad': raise ValueError('a defect of the peer')\n"
        "        self.losses.append(loss); return {'losses': self.losses}\n"
        "serve(One)\n"
    )
    peer = PeerProcess(sys.executable, str(script))
    try:
        peer(do="start", method="", space={}, resource=9, workers=1, seed=0)
        assert peer(do="ask") == {"wait": True}
        for loss in (3.0, 7.0, None, 5.0):
            found = peer(do="tell", trial="1", resource=1, loss=loss)
        assert found == {"losses": [3.0, 7.0, 7.0, 5.0]}  # not finite: the worst so far
        peer(do="tell", trial="slow", resource=1, loss=9.0)
        spent = peer(do="end")["cpu_seconds"]
        assert spent > 0.5
        peer(do="start", method="", space={}, resource=9, workers=1, seed=1)  # another search in the same process
        assert peer(do="tell", trial="1", resource=1, loss=2.0) == {"losses": [2.0]}
        assert peer(do="tell", trial="1", resource=1, loss=None) == {"losses": [2.0, 2.0]}
        assert peer(do="end")["cpu_seconds"] < spent
        with pytest.raises(RuntimeError, match="a defect of the peer"):
            peer(do="tell", trial="bad", resource=1, loss=1.0)
    finally:
        peer.close()


def test_optuna_plays_as_a_peer() -> None:
    problem = SyntheticProblem("conditional", 0)
    problem.until /= 4
    peer = PeerProcess(sys.executable, "optuna_worker.py")
    try:
        found = play_peer(problem, peer, "TPE+Hyperband", 0, NEAREST)
        assert play_peer(problem, peer, "TPE+Hyperband", 0, NEAREST)["trained"] == found["trained"]
    finally:
        peer.close()
    assert found["trials"] > 10
    assert found["trained"][-1] < 1


# made-up problems


def places_of(problem: SyntheticProblem, count: int = 60) -> list[str]:
    return problem._drawn[:count]


def discordant(problem: SyntheticProblem, early: int) -> float:
    """Share of pairs whose order after ``early`` units is not that of the end."""
    values = [(problem.value(p, early), problem.value(p, RESOURCE)) for p in places_of(problem)]
    pairs = list(itertools.combinations(values, 2))
    return sum((a[0] - b[0]) * (a[1] - b[1]) < 0 for a, b in pairs) / len(pairs)


def test_curves_cross_only_where_they_should() -> None:
    assert discordant(SyntheticProblem("plain", 0), 1) == 0
    assert discordant(SyntheticProblem("costs", 0), 1) == 0
    assert discordant(SyntheticProblem("crossing", 0), 1) > 0.15
    assert discordant(SyntheticProblem("overfitting", 0), 1) > 0.3


@pytest.mark.parametrize("kind", [*KINDS][::4])
def test_worlds_follow_from_the_seed_and_nothing_is_below_their_floor(kind: str) -> None:
    problem, again, other = SyntheticProblem(kind, 3), SyntheticProblem(kind, 3), SyntheticProblem(kind, 4)
    places = places_of(problem, 40)
    values = [problem.loss(p, 5) for p in places]
    assert np.array_equal(values, [again.loss(p, 5) for p in places], equal_nan=True)
    assert not np.array_equal(values, [other.loss(p, 5) for p in places], equal_nan=True)
    finite = [p for p in places if math.isfinite(problem.value(p, RESOURCE))]
    assert min(problem.value(p, RESOURCE) for p in finite) >= FLOOR
    assert (
        sum(problem.regret(p) == 1 for p in problem._drawn) == pytest.approx(len(problem._drawn) / 2, abs=2)
        or kind == "diverging"
    )
    assert all(0 < problem.checkpoint_regret(p, 5) <= 1 for p in places)


@pytest.mark.parametrize(
    "name", ["trained_network_wine", "trained_network_diabetes", "trained_linear_cancer", "trained_boosting_diabetes"]
)
def test_a_table_of_real_trainings(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trained, "LEAST_ROWS", 3)
    made = trained.make(name, 3, 60.0)
    assert made is not None
    assert trained.make(name, 3, 0.0) is None  # too few got ready
    np.savez(tmp_path / f"{name}.npz", **made)
    problem = trained_tables(tmp_path)[name]
    assert np.isfinite(made["valid_loss"]).any()
    assert (problem.max_resource, problem.size, problem.family) == (27, 3, "own trainings")
    assert set(problem.space) == set(trained.TABLES[name][2])
    source, train, space = trained.TABLES[name]
    data, regression = trained.data_of(source)
    assert len(data[0]) + len(data[1]) == len(getattr(sklearn.datasets, f"load_{source}")().target)
    rng = np.random.default_rng(0)
    for row in range(3):
        params, values = trained.drawn(space, rng)
        assert values == made["X"][row].tolist()
        again = np.array(list(train(data, params, regression)), dtype=np.float32)
        assert np.array_equal(again, made["valid_loss"][row], equal_nan=True)
        assert all(b >= a > 0 for a, b in itertools.pairwise(made["time_s"][row].tolist()))
    assert play_ours(problem, Ours(), 0, NEAREST)["trials"] > 3
