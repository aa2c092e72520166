"""Early removal of checkpoints: which rule retrains the least, and whether the predicted chances come true.

Promotion ASHA plays a table of real learning curves (``DATA/curves/mlp_digits.npz``) on a virtual clock, nine workers.

- ``retrained``: with room for ``max_count`` checkpoints, the units of training spent again on trials that were
  promoted after their checkpoint had been removed, summed over the study, mean of the seeds. The rules differ in what
  goes first: ``expected loss``, the least chance of promotion times the units behind the trial (what studies do);
  ``chance alone``; ``lowest level``, no chance at all: the lowest rung, there the last in order.
- ``calibration``: without a limit, after every 7th result, what the chance says of each trial that waits outside the
  best 1/eta of its rung, in ten bins, and which share of them was promoted later.

Writes results/checkpoint_removal.json and .png.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import plot_style
import result_file

sys.path.insert(0, str(Path(__file__).parents[1]))
from hpo_core.checkpoints.retention import Budget, promotion_chance
from hpo_core.journal.memory import MemoryJournal
from hpo_core.model.events import JobGranted
from hpo_core.model.trial import Job, Report
from hpo_core.simulation import CurveTable, Simulation, TableSampler, VirtualClock
from hpo_core.study import Study

WORKERS, CONFIGS = 4, 200
LIMITS = (12, 20, 40)
SEARCHES: dict[str, dict[str, Any]] = {
    "eta 3, five rungs": {"reduction_factor": 3, "min_resource": 1},
    "eta 4, four rungs": {"reduction_factor": 4, "min_resource": 1},
    "eta 3, three brackets": {"reduction_factor": 3, "min_resource": 1, "brackets": [0, 1, 2]},
}
Choice = tuple[float, int, int, float]


class ChanceAlone(Budget):
    def _choice(self, rung: Any, turn: int | None) -> Choice | None:
        found = super()._choice(rung, turn)
        return None if found is None else (found[3], *found[1:])


class LowestLevel(Budget):
    def _choice(self, rung: Any, turn: int | None) -> Choice | None:
        found = super()._choice(rung, turn)
        return None if found is None else (float(found[1]), *found[1:])


RULES: dict[str, type[Budget]] = {"expected loss": Budget, "chance alone": ChanceAlone, "lowest level": LowestLevel}


class Observed(Study):
    """Notes what the chances say of the trials that wait."""

    looks: list[tuple[int, int, float]]
    """(trial, rung, chance)."""

    def tell_report(self, report: Report) -> list[Job]:
        jobs = super().tell_report(report)
        if self.state.completed_jobs % 7 == 0:
            self._look()
        return jobs

    def _look(self) -> None:
        brackets = self.method.brackets  # type: ignore[attr-defined]
        for trial in self.state.trials:
            if trial.running or not trial.results or trial.loss is None:
                continue
            bracket, rung = trial.bracket, trial.results[-1].rung
            here = brackets.rung(bracket, rung)
            place, eta = here.rank(trial.number), here.reduction_factor
            if place > here.size // eta and not brackets.is_top(bracket, rung):
                self.looks.append((trial.number, rung, promotion_chance(place, here.size, float(eta))))


def played(
    table: CurveTable, search: dict[str, Any], seed: int, limit: int | None = None, rule: type[Budget] | None = None
) -> Study:
    clock, rows = VirtualClock(), table.losses.shape[0]
    spec = {
        "study": "removal", "metric": {"name": "loss"}, "space": {"row": {"type": "int", "low": 0, "high": rows - 1}},
        "search": {"method": "asha", "configs": CONFIGS, "max_resource": table.max_resource} | search, "seed": seed,
        "checkpoints": {"max_count": limit},
    }  # fmt: skip
    kind = Study if limit is not None else Observed
    study = kind.create(spec, MemoryJournal(), sampler=TableSampler(rows, seed), clock=clock)
    if isinstance(study, Observed):
        study.looks = []
    if rule is not None:
        study.parts.budget = rule(study.spec, study.checkpoints)
    Simulation(study, clock, workers=WORKERS, train=table.train, seconds=table.cost).run()
    assert study.status == "finished", study.state.halted
    return study


def grants(study: Study) -> Iterable[JobGranted]:
    for entry in study.journal.entries(study.name):
        for event in entry.events:
            if isinstance(event, JobGranted) and not event.retry:
                yield event


def retrained(study: Study) -> int:
    """Units spent again on trials that were promoted without a checkpoint."""
    below = {(t.number, r.rung): r.resource for t in study.state.trials for r in t.results}
    again = [e for e in grants(study) if e.rung and e.checkpoint is None]
    return sum(below[event.trial, event.rung - 1] for event in again)


def compare(table: CurveTable, seeds: int) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, search in SEARCHES.items():
        for limit in LIMITS:
            row: dict[str, Any] = {}
            for rule, budget in RULES.items():
                studies = [played(table, search, seed, limit, budget) for seed in range(seeds)]
                units = [retrained(study) for study in studies]
                row[rule] = {
                    "retrained": round(statistics.fmean(units), 2),
                    "error": round(statistics.stdev(units) / len(units) ** 0.5, 2),
                    "units": round(statistics.fmean(study.state.resource_used for study in studies)),
                    "each": units,
                }
            found[f"{name}, room for {limit}"] = row
            print(name, limit, {rule: row[rule]["retrained"] for rule in RULES}, flush=True)
    return found


def calibrate(table: CurveTable, seeds: int) -> dict[str, Any]:
    """By search and part of the ladder: looks, mean predicted chance and share promoted, by bin."""
    found: dict[str, Any] = {}
    for name, search in SEARCHES.items():
        looks: list[tuple[int, bool, float]] = []
        for seed in range(seeds):
            study = played(table, search, seed)
            assert isinstance(study, Observed)
            went = {(event.trial, event.rung) for event in grants(study)}
            looks += [(rung, (trial, rung + 1) in went, chance) for trial, rung, chance in study.looks]
        for part in ("base rung", "rungs above"):
            bins: list[list[tuple[float, bool]]] = [[] for _ in range(10)]
            for rung, promoted, chance in looks:
                if (rung == 0) == (part == "base rung"):
                    bins[min(9, int(chance * 10))].append((chance, promoted))
            found.setdefault(name, {})[part] = [
                {"looks": len(b), "predicted": round(statistics.fmean(p for p, _ in b), 4),
                 "observed": round(statistics.fmean(o for _, o in b), 4)} if b else {"looks": 0}
                for b in bins
            ]  # fmt: skip
    return found


def draw(found: dict[str, Any], path: Path) -> None:
    figure, rows = plot_style.panels(len(found), 2, 9, 3.4 * len(found))
    for (name, parts), panels in zip(found.items(), rows, strict=True):
        for panel, (part, bins) in zip(panels, parts.items(), strict=True):
            seen = [b for b in bins if b["looks"] >= 20]
            panel.plot([0, 1], [0, 1], color=plot_style.GREY, linewidth=0.9)
            predicted, observed = [b["predicted"] for b in seen], [b["observed"] for b in seen]
            panel.plot(predicted, observed, color=plot_style.RUST, marker="o")
            panel.set_xlabel("predicted chance of promotion")
            panel.set_ylabel("share promoted")
            panel.set_title(f"{name}: {part}")
    plot_style.keep(figure, path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", help="folder with curves/")
    parser.add_argument("--seeds", type=int, default=30)
    parser.add_argument("--out", help="JSON file (default benchmarks/results/checkpoint_removal.json)")
    given = parser.parse_args()
    folder, facts, began = result_file.data_folder(given.data), result_file.machine(), time.monotonic()
    table = CurveTable.load(folder / "curves" / "mlp_digits.npz")
    calibration = calibrate(table, given.seeds)
    for name, parts in calibration.items():
        print(f"\n{name}")
        result_file.table(
            ("part", *(f"{k / 10:.1f}-" for k in range(10))),
            [[part, *(f"{b.get('observed')} ({b['looks']})" for b in bins)] for part, bins in parts.items()],
        )
    draw(calibration, result_file.RESULTS / "checkpoint_removal.png")
    comparison = compare(table, given.seeds)
    result_file.table(
        ("units retrained", "units in all", *RULES),
        [
            [name, row["expected loss"]["units"], *(f"{row[r]['retrained']} ± {row[r]['error']}" for r in RULES)]
            for name, row in comparison.items()
        ],
    )
    figures = {"seeds": given.seeds, "workers": WORKERS, "configs": CONFIGS, "retrained": comparison}
    seconds = round(time.monotonic() - began, 1)
    result_file.write(
        "checkpoint_removal", facts, {"seconds": seconds, **figures, "calibration": calibration}, given.out
    )


if __name__ == "__main__":
    main()
