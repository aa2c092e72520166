"""How Optuna's samplers are shown results of several rungs: as they stand on each rung, or as one rank of all.

The protocol of ``samplers.py``, with the same seeds for each way:

- ``rungs``: what a study does. To TPE a trial below the highest rung is pruned, so trials are ordered by rung, then by
  loss; to other samplers trials that reached the highest rung with enough results are complete, the rest running.
- ``ranks``: every trial with a result is complete, with the score across rungs of ``ranked_gp`` as its value.
- ``random``: random search, to compare with.

Regret after shares of the budget, and the difference between the two ways with a 95 % interval: over tables and
seeds, and over seeds alone (on these very tables). Each search is added to results/sampler_showing.runs.jsonl at once,
and what is there is not played again. Writes results/sampler_showing.json and .md.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np
import result_file
from numpy.typing import NDArray
from optuna.trial import TrialState
from sampler_tables import SpaceOfTable
from samplers import SHOWN, bootstrapped, play

from hpo_core.model.trial import Params
from hpo_core.samplers.optuna_sampler import OptunaSampler
from hpo_core.samplers.ranked_results import by_rung, scored
from hpo_core.samplers.sampler import Sampler, SamplerContext
from hpo_core.spec import StudySpec
from hpo_core.spec.assembly import create_sampler

WAYS = ("random", "rungs", "ranks")


class ShownByRank(OptunaSampler):
    """A sampler of Optuna that is shown all results as ranks across rungs."""

    def propose(self, number: int, given: Params | None = None) -> Params:
        numbers = list(self._values)
        found = [(row, at, losses) for row, n in enumerate(numbers) for at, losses in self._values[n].items()]
        if found:
            losses = np.array([math.inf if one is None else one[0] for _, _, one in found])
            rows, steps = np.array([row for row, _, _ in found]), np.array([float(at) for _, at, _ in found])
            scores = scored(by_rung(rows, steps, losses, np.zeros(len(numbers)))).values
            for trial, score in zip(numbers, scores.tolist(), strict=True):
                self._show(trial, TrialState.COMPLETE, (score,))
        return super().propose(number, given)

    def _show_result(self, number: int) -> None:
        """Scores of all trials change with each result, so they are shown when the sampler is asked."""


def shown_by_rank(spec: StudySpec) -> Sampler:
    """The sampler of a study without warm start and constraints."""
    context = SamplerContext(
        space=spec.search_space(), seed=spec.seed, objectives=1, max_resource=spec.search.outline().max_resource
    )
    return ShownByRank(spec.sampler.name, spec.sampler.arguments, context)


def compared(runs: dict[tuple[str, str, int], NDArray[np.float64]], one: str, other: str) -> dict[str, Any]:
    """Regret of two ways, and their difference, on the searches that both have played."""
    pairs = sorted((t, s) for t, way, s in runs if way == one and (t, other, s) in runs)
    tables = sorted({t for t, _ in pairs})
    found: dict[str, Any] = {"searches": len(pairs), "tables": {}, "at": {}}
    apart = {t: np.array([runs[t, one, s] - runs[t, other, s] for u, s in pairs if u == t]) for t in tables}
    for t in tables:
        at_end = apart[t][:, -1]
        error = float(at_end.std(ddof=1)) / math.sqrt(len(at_end)) if len(at_end) > 1 else None
        found["tables"][t] = {"seeds": len(at_end), "difference": round(float(at_end.mean()), 4), "error": error}
    for percent in SHOWN:
        means = [
            float(np.mean([np.mean([runs[t, way, s][percent] for u, s in pairs if u == t]) for t in tables]))
            for way in (one, other)
        ]
        differences = {t: values[:, percent] for t, values in apart.items()}
        _, low, high = bootstrapped(differences)
        rng = np.random.default_rng(0)
        drawn = [d[rng.integers(0, len(d), (10_000, len(d)))].mean(axis=1) for d in differences.values()]
        found["at"][f"{percent} %"] = {
            one: round(means[0], 4),
            other: round(means[1], 4),
            "difference": round(means[0] - means[1], 4),
            "tables_and_seeds": [round(low, 4), round(high, 4)],
            "seeds": [round(float(q), 4) for q in np.quantile(np.mean(drawn, axis=0), [0.025, 0.975])],
        }
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", help="folder with curves/ and reference/ (HPO_BENCH_DATA, or ../shared/data)")
    parser.add_argument("--sampler", default="TPESampler")
    parser.add_argument("--seeds", type=int, default=25)
    parser.add_argument("--tables", nargs="+", help="names of curve tables (default: all with reference figures)")
    parser.add_argument("--minutes", type=float, default=math.inf, help="begin no further search after these")
    parser.add_argument("--out", help="JSON file (default benchmarks/results/sampler_showing.json)")
    given = parser.parse_args()
    folder = result_file.data_folder(given.data)
    facts, began = result_file.machine(), time.monotonic()
    references = {one["task"]: one for one in json.loads((folder / "reference" / "ref_eta3_w9.json").read_text())}
    out = Path(given.out) if given.out else result_file.RESULTS / "sampler_showing.json"
    kept = out.with_suffix(".runs.jsonl")
    lines = [json.loads(line) for line in kept.read_text().splitlines()] if kept.exists() else []
    runs = {(one["table"], one["way"], one["seed"]): np.array(one["regrets"]) for one in lines}
    names = given.tables or [path.stem for path in sorted((folder / "curves").glob("*.npz")) if path.stem in references]
    tables = {name: SpaceOfTable(folder / "curves" / f"{name}.npz") for name in names}
    for seed in range(given.seeds):
        for name, table in tables.items():
            for way in WAYS:
                if (name, way, seed) in runs or time.monotonic() - began > 60 * given.minutes:
                    continue
                sampler = "random" if way == "random" else given.sampler
                create = shown_by_rank if way == "ranks" else create_sampler
                one = play(table, references[name], sampler, seed, create=create) | {"way": way}
                runs[name, way, seed] = np.array(one["regrets"])
                with kept.open("a") as file:
                    file.write(json.dumps(one) + "\n")
    figures = {f"{a} - {b}": compared(runs, a, b) for a, b in (("ranks", "rungs"), ("rungs", "random"))}
    head = ["at", "random", "rungs", "ranks", "ranks - rungs [tables and seeds] [seeds]"]
    rows = []
    for percent in SHOWN:
        at, base = (figures[name]["at"][f"{percent} %"] for name in ("ranks - rungs", "rungs - random"))
        by_both, by_seed = ("[{:+.3f}, {:+.3f}]".format(*at[k]) for k in ("tables_and_seeds", "seeds"))
        apart = f"{at['difference']:+.3f} {by_both} {by_seed}"
        rows.append([f"{percent} %", *(f"{x:.3f}" for x in (base["random"], at["rungs"], at["ranks"])), apart])
    result_file.table(head, rows)
    result_file.write("sampler_showing", facts, {"sampler": given.sampler, "figures": figures}, str(out))
    out.with_suffix(".md").write_text(result_file.markdown(head, rows))


if __name__ == "__main__":
    main()
