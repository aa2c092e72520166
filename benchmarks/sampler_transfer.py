"""What a warm start gains a sampler on related tables of learning curves, and what a misleading one costs.

Families of tables with one search space: four of TaskSet, four of LCBench. An earlier study (ASHA with random search,
the protocol of ``samplers.py``, half of its budget) on one table of a family, then one on another table, in four ways:

- ``alone``: without it.
- ``related``: ``warm_start`` names the earlier study, with its defaults: the best three configurations are tried
  first, half of the results are shown to the sampler.
- ``shuffled``: the same, but the earlier study's losses were dealt to other configurations: what it says is wrong.
- ``reversed``: the same, but what was best there was called worst: what it says is the opposite.

Regret after shares of the budget; difference to ``alone`` of the same sampler, paired by both tables and the seed,
with a 95 % interval from bootstrap samples of the pairs of tables, and of seeds within each. Writes
results/sampler_transfer.json and .md.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np
import result_file
from numpy.typing import NDArray
from sampler_tables import RowsOf, SpaceOfTable
from samplers import SHOWN, bootstrapped, regrets_of

from hpo_core import MemoryJournal
from hpo_core.replay.past_results import with_past
from hpo_core.simulation import Simulation, VirtualClock
from hpo_core.spec import StudySpec
from hpo_core.spec.assembly import create_sampler
from hpo_core.study import Study

FAMILIES = ("lcbench", "taskset_imdb")
WAYS = ("alone", "related", "shuffled", "reversed")
EARLIER_SHARE = 0.5


def spec_of(name: str, table: SpaceOfTable, sampler: str, seed: int, **more: Any) -> StudySpec:
    """ASHA on a table's space."""
    search = {"method": "asha", "configs": len(table.rows), "min_resource": 1, "reduction_factor": 3, "brackets": [0]}
    common = {"study": name, "metric": {"name": "loss"}, "space": table.space, "seed": seed}
    search["max_resource"] = table.curves.max_resource
    return StudySpec.from_plain(common | {"sampler": {"name": sampler}, "search": search} | more)


def budget(table: SpaceOfTable, reference: dict[str, Any]) -> float:
    """Seconds on the virtual clock."""
    full = float(np.nanmean(table.curves.seconds[:, -1]))
    return float(reference["budget_full_runs"] / reference["workers"] * full)


def earlier(table: SpaceOfTable, reference: dict[str, Any], seed: int, way: str) -> MemoryJournal:
    """The journal of a study that is named ``earlier``."""
    order = np.random.default_rng(seed).permutation(len(table.rows))
    journal, clock = MemoryJournal(), VirtualClock()
    spec = spec_of("earlier", table, "random", seed)
    rows = RowsOf(create_sampler(spec), table)

    def train(job: Any) -> dict[str, float]:
        if way == "shuffled":
            return {"loss": float(table.curves.losses[order[rows.rows[job.trial]], job.target - 1])}
        return {"loss": -rows.train(job)["loss"]} if way == "reversed" else rows.train(job)

    study = Study.create(spec, journal, sampler=rows, clock=clock)
    executor = Simulation(study, clock, workers=reference["workers"], train=train, seconds=rows.cost)
    executor.run(until=EARLIER_SHARE * budget(table, reference))
    return journal


def play(
    table: SpaceOfTable, reference: dict[str, Any], sampler: str, seed: int, past: MemoryJournal | None
) -> NDArray[np.float64]:
    """Regrets of one search."""
    clock, until = VirtualClock(), budget(table, reference)
    warm = {"warm_start": {"studies": ["earlier"]}} if past is not None else {}
    spec = spec_of("later", table, sampler, seed, **warm)
    if past is not None:
        spec = with_past(spec, past)
    rows = RowsOf(create_sampler(spec), table)
    study = Study.create(spec, sampler=rows, clock=clock)
    Simulation(study, clock, workers=reference["workers"], train=rows.train, seconds=rows.cost).run(until=until)
    return regrets_of(study, rows, table.curves, until)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", help="folder with curves/ and reference/ (HPO_BENCH_DATA, or ../shared/data)")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--samplers", nargs="+", default=["random", "ranked_gp"])
    parser.add_argument("--out", help="JSON file (default benchmarks/results/sampler_transfer.json)")
    given = parser.parse_args()
    folder = result_file.data_folder(given.data)
    facts, began = result_file.machine(), time.monotonic()
    references = {one["task"]: one for one in json.loads((folder / "reference" / "ref_eta3_w9.json").read_text())}
    tables = {name: SpaceOfTable(folder / "curves" / f"{name}.npz") for name in references if name.startswith(FAMILIES)}
    pairs = [
        (old, new)
        for family in FAMILIES
        for old in tables
        for new in tables
        if old != new and old.startswith(family) and new.startswith(family)
    ]
    found: dict[tuple[str, str], dict[tuple[str, str], list[NDArray[np.float64]]]] = {}
    for seed in range(given.seeds):
        alone = {
            (sampler, new): play(tables[new], references[new], sampler, seed, None)
            for sampler in given.samplers
            for new in tables
        }
        for old, new in pairs:
            for way in WAYS:
                past = None if way == "alone" else earlier(tables[old], references[old], seed, way)
                for sampler in given.samplers:
                    of_pair = found.setdefault((sampler, way), {}).setdefault((old, new), [])
                    if past is None:
                        of_pair.append(alone[sampler, new])
                    else:
                        of_pair.append(play(tables[new], references[new], sampler, seed, past))
    figures, rows = [], []
    for (sampler, way), of_pairs in found.items():
        one: dict[str, Any] = {"sampler": sampler, "way": way, "at": {}}
        cells: list[Any] = [sampler, way]
        for percent in SHOWN:
            means = np.mean([np.mean([r[percent] for r in searches]) for searches in of_pairs.values()])
            against = found[sampler, "alone"]
            apart = {
                " ".join(pair): np.array(
                    [a[percent] - b[percent] for a, b in zip(searches, against[pair], strict=True)]
                )
                for pair, searches in of_pairs.items()
            }
            difference = [round(value, 4) for value in bootstrapped(apart)]
            one["at"][f"{percent} %"] = {"mean": round(float(means), 4), "minus_alone": difference}
            cells.append(
                f"{means:.3f}" + ("" if way == "alone" else " ({:+.3f} [{:+.3f}, {:+.3f}])".format(*difference))
            )
        figures.append(one)
        rows.append(cells)
    rows.sort(key=lambda cells: cells[0])
    head = ["sampler", "earlier study", *(f"regret at {percent} %" for percent in SHOWN)]
    result_file.table(head, rows)
    seconds = round(time.monotonic() - began, 1)
    body = {"seeds": given.seeds, "pairs": len(pairs), "seconds": seconds, "figures": figures}
    out = result_file.write("sampler_transfer", facts, body, given.out)
    Path(out).with_suffix(".md").write_text(result_file.markdown(head, rows))


if __name__ == "__main__":
    main()
