"""The protocol of benchmarks/samplers.py: arithmetic, problems and searches in virtual time, by brute force."""

from __future__ import annotations

import itertools
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.sampling.comparison import Pairs, Run, chosen_elsewhere, compared
from benchmarks.sampling.problems import TableProblem
from benchmarks.sampling.searches import MOVED, NEAREST, Ours, play_ours


def regrets(*ends: float) -> np.ndarray:
    """Of one search per value, the same after each percent."""
    return np.array([np.full(101, end) for end in ends])


def runs_of(ends: dict[tuple[str, str], list[float]]) -> dict[Run, np.ndarray]:
    return {
        Run(problem, system, seed): np.full(101, end)
        for (problem, system), values in ends.items()
        for seed, end in enumerate(values)
    }


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
