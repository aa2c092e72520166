"""Population based training: what it reaches that no fixed setting does, what it costs, and how it scales.

- ``toy``: the two quadratics of Jaderberg et al. 2017 (figure 2). What counts is 1.2 - t0**2 - t1**2, from
  t = (0.9, 0.9); what a session of 4 steps climbs is the surrogate with weights h0, h1. The population holds (1, 0) and
  (0, 1) alone: with either of them fixed one coordinate never moves, and 0.39 is the limit.
- ``digits``: ``examples/pbt`` (a real torch network on scikit-learn's digits, half of the pixels missing, two images a
  step) at equal resource: population 8 x 24 generations, ASHA (eta 3, r 1, R 24) and random search, all with 192 units
  of training and the space of the example. The incumbent is chosen by the validation loss; its loss on a test part that
  nobody chose by stands beside it. ``fixed``: random search with 4 times the resource. ``plain``: the winner's
  schedule, exported and trained along from scratch by a plain loop with 5 other seeds; ``its end``: the same with the
  schedule's last setting from the beginning on.
- ``steady``: ``examples/digits`` in the same way, where one setting serves from beginning to end: population 8 x 27
  against ASHA (eta 3, r 1, R 27) and random search with 216 units. Width and optimizer are static for PBT.
- ``reproduction``: who may initiate when, at equal resource, with stragglers (each job takes ``1 + |z|`` times as
  long, z standard normal): ``generation`` (Algorithm 1 of the paper) and ``eager`` (whoever ended). The example again
  with population 8 and 192 units on 2 and 8 workers, and the two quadratics with 20 generations; beside what is
  reached, how many generations there were, how many reproductions met nobody, and the virtual seconds.
- ``scaling``: generations an hour on the simulator against population (5 workers) and workers (population 20), jobs of
  60 s on average whose lengths vary by a fifth, asynchronous and with a barrier (Li et al. 2019, figure 12); and the
  CPU seconds of simulating 500 members for 30 generations.

Writes results/pbt.json (parts not asked for stay as they were) and pbt-toy.png, pbt-digits.png, pbt-scaling.png.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import plot_style
import result_file

sys.path.insert(0, str(Path(__file__).parents[1]))
from hpo_core.checkpoints.storage import checkpoint_path
from hpo_core.journal.memory import MemoryJournal
from hpo_core.model.events import Entry, JobCompleted, Reproduced
from hpo_core.model.rng import Stream
from hpo_core.model.trial import Checkpoint, Job, Metrics, Outcome, Rung
from hpo_core.samplers.sampler import RecordedSampler, Sampler
from hpo_core.simulation import Simulation, VirtualClock
from hpo_core.spec import StudySpec, load_spec
from hpo_core.study import Study
from hpo_core.training.attempt import run_attempt
from hpo_core.training.objective import load_objective
from hpo_core.training.request import JobRequest, StudySetup
from hpo_core.views.lineage import Segment, read_lineage

EXAMPLES = Path(__file__).parents[1] / "examples"
POPULATION, UNITS = 8, 24
Train = Callable[[Job], Metrics | Outcome]


def kept_as(job: Job) -> str:
    """Name that the simulated cluster gives to the checkpoint a job leaves."""
    return checkpoint_path(job)


def play(
    spec: StudySpec,
    train: Train,
    workers: int = 2,
    seconds: Callable[[Job], float] = lambda job: 1.0,
    sampler: Sampler | None = None,
) -> tuple[Study, list[Entry], float]:
    """A study on virtual workers: itself, its journal, and virtual seconds."""
    clock, journal = VirtualClock(), MemoryJournal()
    study = Study.create(spec, journal, clock=clock, sampler=sampler)
    Simulation(study, clock, workers=workers, train=train, seconds=seconds).run()
    study.check()
    return study, list(journal.entries(spec.study)), clock.now


# The two quadratics.


class Quadratics:
    """Sessions of gradient ascent on the surrogate; keeps what each left behind."""

    def __init__(self, rate: float = 0.02) -> None:
        self._rate = rate
        self._kept: dict[str, list[tuple[float, float]]] = {}

    def train(self, job: Job) -> Metrics:
        path = list(self._kept[job.checkpoint.uri]) if job.checkpoint else [(0.9, 0.9)]
        for _ in range(job.target - (job.checkpoint.resource if job.checkpoint else 0)):
            t0, t1 = path[-1]
            path.append((
                t0 - self._rate * 2 * job.params["h0"] * t0, t1 - self._rate * 2 * job.params["h1"] * t1,
            ))  # fmt: skip
        self._kept[kept_as(job)] = path
        return {"q": 1.2 - path[-1][0] ** 2 - path[-1][1] ** 2}

    def path(self, job: Checkpoint) -> list[tuple[float, float]]:
        return self._kept[job.uri]


def toy(seeds: int) -> dict[str, Any]:
    reached, generations, paths = [], 75, []
    for seed in range(seeds):
        spec = StudySpec.from_plain({
            "study": "quadratics", "metric": {"name": "q", "mode": "max"}, "seed": seed,
            "space": {"h0": {"type": "float", "low": 0, "high": 1}, "h1": {"type": "float", "low": 0, "high": 1}},
            "search": {"method": "pbt", "population": 4, "generations": generations, "steps_per_generation": 4},
        })  # fmt: skip
        world = Quadratics()
        begin = RecordedSampler([{"h0": 1.0, "h1": 0.0}, {"h0": 0.0, "h1": 1.0}] * 4)
        study, _, _ = play(spec, world.train, sampler=begin)
        assert study.best is not None
        reached.append(study.metric_value(study.best.loss))
        best = study.state.best_checkpoint()
        assert best is not None
        paths.append(world.path(best))
    fixed, lines = [], []
    for h0, h1 in ((1.0, 0.0), (0.0, 1.0)):
        world = Quadratics()
        job = Job(0, 0, Rung(0, 0), 4 * generations, {"h0": h0, "h1": h1})
        fixed.append(world.train(job)["q"])
        lines.append(world.path(Checkpoint(kept_as(job), "", 0, 0)))
    draw_toy(paths[0], lines, result_file.RESULTS / "pbt-toy.png")
    return {"optimum": 1.2, "fixed": fixed, "pbt": reached, "steps": 4 * generations}


def draw_toy(found: list[tuple[float, float]], fixed: list[list[tuple[float, float]]], path: Path) -> None:
    figure, [[left, right]] = plot_style.panels(1, 2, 9, 3.6)
    for k, line in enumerate(fixed):
        name = f"h = {'(1, 0)' if k == 0 else '(0, 1)'}, fixed"
        left.plot(*zip(*line, strict=True), color=plot_style.GREY, linestyle="--" if k else ":", label=name)
        right.plot(
            [1.2 - a * a - b * b for a, b in line], color=plot_style.GREY, linestyle="--" if k else ":", label=name
        )
    left.plot(*zip(*found, strict=True), color=plot_style.RUST, label="PBT, the winner's path")
    left.plot([0], [0], marker="*", markersize=12, color=plot_style.BLUE, linestyle="none", label="optimum")
    right.plot([1.2 - a * a - b * b for a, b in found], color=plot_style.RUST, label="PBT, the winner's path")
    right.axhline(1.2, color=plot_style.BLUE, linewidth=1)
    left.set_xlabel("t0")
    left.set_ylabel("t1")
    left.set_title("Where training leads")
    left.legend(loc="upper left", bbox_to_anchor=(0.0, 0.86))
    right.set_xlabel("steps")
    right.set_ylabel("1.2 - t0² - t1²")
    right.set_title("What counts")
    plot_style.keep(figure, path)


# Digits.


def real_training(spec: StudySpec, folder: str) -> Train:
    """The example's training function in this process; checkpoints are files, as anywhere."""
    assert spec.objective is not None
    train = load_objective(spec.objective, spec.pythonpath)
    files: dict[str, Checkpoint | None] = {}

    setup = StudySetup(study=spec.study, objective=spec.objective, metrics=(spec.metric.name,), folder=folder)

    def run(job: Job) -> Metrics | Outcome:
        start = files[job.checkpoint.uri] if job.checkpoint is not None else None
        begun = msgspec.structs.replace(job, checkpoint=start)
        report = run_attempt(train, JobRequest(setup=setup, job=begun, seed=spec.training_seed(job.trial)))
        if report.outcome not in (Outcome.COMPLETED, Outcome.DIVERGED):
            raise SystemExit(f"trial {job.trial}: {report.message}\n{report.detail}")
        files[kept_as(job)] = report.checkpoint
        return report.metrics

    return run


def searched(
    search: dict[str, Any],
    seed: int,
    budget: int,
    example: str = "pbt",
    static: Sequence[str] = (),
    *,
    workers: int = 2,
    late: Callable[[Job], float] = lambda job: 1.0,
) -> tuple[Study, list[Entry]]:
    plain = load_spec(EXAMPLES / example / "study.yaml").plain()
    if search["method"] == "pbt":
        search = search | {"static": list(static)}
    spec = StudySpec.from_plain(plain | {"search": search, "seed": seed, "stop": {"total_resource": budget}})
    with tempfile.TemporaryDirectory() as folder:
        study, entries, _ = play(
            spec,
            real_training(spec, folder),
            workers=workers,
            seconds=lambda job: late(job) * (job.target - (job.checkpoint.resource if job.checkpoint else 0)),
        )
    return study, entries


def anytime(entries: Sequence[Entry]) -> list[tuple[int, float]]:
    """(units used, validation loss of the incumbent) at each change."""
    used, best, found, reached = 0, math.inf, [], dict[int, int]()
    parents: dict[int, int | None] = {}
    for entry in entries:
        for event in entry.events:
            if type(event).__name__ == "TrialCreated":
                parents[event.trial] = event.parent  # type: ignore[union-attr]
            if isinstance(event, JobCompleted):
                parent = parents[event.trial]
                used += event.resource - reached.get(event.trial, 0 if parent is None else reached[parent])
                reached[event.trial] = event.resource
                if event.loss is not None and event.loss < best:
                    best = event.loss
                    found.append((used, best))
    return found


def plain_training(schedule: list[Segment], seed: int) -> dict[str, float]:
    """What somebody does with an exported schedule: no study, no trial, a loop."""
    import torch

    from examples.pbt import train as example

    torch.manual_seed(seed)
    model = example.build_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    for now in (one.params for one in schedule for _ in range(one.start, one.end)):
        optimizer.param_groups[0].update(lr=now["learning_rate"], momentum=now["momentum"])
        example.train_one_unit(model, optimizer)
    return {part: float(example.evaluate(model, getattr(example, whole))[0]) for part, whole in (
        ("val", "valid"), ("test", "test"),
    )}  # fmt: skip


def digits(seeds: int) -> dict[str, Any]:
    budget = POPULATION * UNITS
    searches: dict[str, tuple[dict[str, Any], int]] = {
        "pbt": ({"method": "pbt", "population": POPULATION, "generations": UNITS}, budget),
        "asha": ({"method": "asha", "min_resource": 1, "max_resource": UNITS, "reduction_factor": 3}, budget),
        "random": ({"method": "random", "configs": POPULATION, "max_resource": UNITS}, budget),
        "fixed": ({"method": "random", "configs": 4 * POPULATION, "max_resource": UNITS}, 4 * budget),
    }
    rows: dict[str, list[dict[str, Any]]] = {name: [] for name in (*searches, "plain", "its end")}
    schedules = []
    for seed in range(seeds):
        for name, (search, units) in searches.items():
            study, entries = searched(search, seed, units)
            best = study.best
            assert best is not None
            rows[name].append({
                "seed": seed, "val": best.loss, "test": best.metrics["test_loss"], "units": study.state.resource_used,
                "trials": len(study.state.trials), "steps": anytime(entries),
            })  # fmt: skip
            if name == "pbt":
                schedule = read_lineage(entries).schedule(best.trial, best.resource)
                schedules.append(schedule)
                last = msgspec.structs.replace(schedule[-1], start=0)
                for k in range(5):
                    rows["plain"].append({"seed": seed, **plain_training(schedule, 1000 + k)})
                    rows["its end"].append({"seed": seed, **plain_training([last], 1000 + k)})
            print(f"  seed {seed}, {name}: {rows[name][-1]['val']:.4f}", flush=True)
    summary = {name: spread(found) for name, found in rows.items()}
    wins = {
        other: sum(a["val"] < b["val"] for a, b in zip(rows["pbt"], rows[other], strict=True))
        for other in ("asha", "random", "fixed")
    }
    draw_digits(rows, schedules, result_file.RESULTS / "pbt-digits.png")
    return {
        "summary": summary, "seeds_won_by_pbt": wins, "runs": rows,
        "schedules": [[(s, e, p["learning_rate"], p["momentum"]) for s, e, p, _ in one.segments] for one in schedules],
    }  # fmt: skip


def steady(seeds: int) -> dict[str, Any]:
    top, rows = 27, dict[str, list[dict[str, Any]]]()
    searches: dict[str, dict[str, Any]] = {
        "pbt": {"method": "pbt", "population": POPULATION, "generations": top},
        "asha": {"method": "asha", "min_resource": 1, "max_resource": top, "reduction_factor": 3},
        "random": {"method": "random", "configs": POPULATION, "max_resource": top},
    }
    for seed in range(seeds):
        for name, search in searches.items():
            static = ("width", "optimizer") if name == "pbt" else ()
            study, _ = searched(search, seed, POPULATION * top, "digits", static)
            assert study.best is not None
            rows.setdefault(name, []).append({"seed": seed, "val": study.best.loss, "units": study.state.resource_used})
            print(f"  seed {seed}, {name}: {study.best.loss:.4f}", flush=True)
    wins = {o: sum(a["val"] < b["val"] for a, b in zip(rows["pbt"], rows[o], strict=True)) for o in ("asha", "random")}
    return {"summary": {name: spread(found) for name, found in rows.items()}, "seeds_won_by_pbt": wins, "runs": rows}


WHO_INITIATES: dict[str, dict[str, Any]] = {
    "generation": {"reproduction": "generation"},
    "eager": {"reproduction": "eager"},
}


def met_nobody(entries: Sequence[Entry]) -> int:
    return sum(isinstance(event, Reproduced) and event.opponent is None for entry in entries for event in entry.events)


def reproduction(seeds: int) -> dict[str, Any]:
    found: dict[str, Any] = {}

    def note(world: str, rule: str, study: Study, entries: list[Entry], reached: float) -> None:
        row = found.setdefault(world, {}).setdefault(rule, {"val": [], "alone": [], "seconds": [], "depth": []})
        row["val"].append(round(reached, 5))
        row["alone"].append(met_nobody(entries))
        row["seconds"].append(round(entries[-1].time, 1))
        row["depth"].append(max(session.generation for session in study.method.sessions) + 1)  # type: ignore[attr-defined]

    for seed in range(4 * seeds):
        draw = lambda job, seed=seed: 1 + abs(Stream(seed, "late", job.trial).normal())  # noqa: E731
        for population, workers in ((4, 4), (20, 4), (20, 20)):
            for rule, more in WHO_INITIATES.items():
                search = {"method": "pbt", "population": population, "generations": 20}
                spec = StudySpec.from_plain({
                    "study": "quadratics", "metric": {"name": "q", "mode": "max"}, "seed": seed,
                    "space": {name: {"type": "float", "low": 0, "high": 1} for name in ("h0", "h1")},
                    "search": search | {"steps_per_generation": 4} | more,
                })  # fmt: skip
                begin = RecordedSampler([{"h0": 1.0, "h1": 0.0}, {"h0": 0.0, "h1": 1.0}] * population)
                study, entries, _ = play(spec, Quadratics().train, workers, draw, begin)
                assert study.best is not None
                note(
                    f"quadratics, {population} members, {workers} workers", rule, study, entries, 1.2 + study.best.loss
                )
    for seed in range(seeds):
        draw = lambda job, seed=seed: 1 + abs(Stream(seed, "late", job.trial).normal())  # noqa: E731
        for workers in (2, POPULATION):
            for rule, more in WHO_INITIATES.items():
                search = {"method": "pbt", "population": POPULATION, "generations": UNITS} | more
                study, entries = searched(search, seed, POPULATION * UNITS, workers=workers, late=draw)
                assert study.best is not None
                note(f"digits, 8 members, {workers} workers", rule, study, entries, study.best.loss)
                print(f"  seed {seed}, {workers} workers, {rule}: {study.best.loss:.4f}", flush=True)
    return found


def spread(rows: Sequence[dict[str, Any]]) -> dict[str, float]:
    found: dict[str, float] = {"runs": len(rows)}
    for key in ("val", "test") if "test" in rows[0] else ("val",):
        values = [row[key] for row in rows]
        found |= {
            f"{key}_mean": statistics.fmean(values),
            f"{key}_sd": statistics.stdev(values) if len(values) > 1 else 0.0,
        }
    return found


def draw_digits(rows: dict[str, list[dict[str, Any]]], schedules: list[list[Segment]], path: Path) -> None:
    figure, [[left, right]] = plot_style.panels(1, 2, 10, 3.8)
    looks = (
        ("pbt", "PBT", plot_style.RUST),
        ("asha", "ASHA", plot_style.BLUE),
        ("random", "random search", plot_style.GREY),
    )
    for name, label, color in looks:
        grid = range(POPULATION, POPULATION * UNITS + 1)
        runs = [[min((v for u, v in run["steps"] if u <= at), default=math.nan) for at in grid] for run in rows[name]]
        for run in runs:
            left.plot(grid, run, color=color, linewidth=0.7, alpha=0.35)
        left.plot(grid, [statistics.fmean(column) for column in zip(*runs, strict=True)], color=color, label=label)
    limit = statistics.fmean(row["val"] for row in rows["fixed"])
    left.axhline(limit, color=plot_style.GREEN, linestyle="--", label="best fixed setting, 4 x the resource")
    left.set_yscale("log")
    left.set_ylim(top=2.5)
    left.set_yticks([0.4, 0.6, 1, 2], ["0.4", "0.6", "1", "2"])
    left.minorticks_off()
    left.set_xlabel("units of training used, all trials together")
    left.set_ylabel("validation loss of the incumbent")
    left.set_title("Equal resource: mean and each seed")
    left.legend()
    for k, schedule in enumerate(schedules):
        steps = [
            (at, one.params["learning_rate"] / (1 - one.params["momentum"]))
            for one in schedule
            for at in (one.start, one.end)
        ]
        right.plot(
            *zip(*steps, strict=True), color=plot_style.RUST, alpha=0.75, label="winner of each seed" if not k else None
        )
    right.set_yscale("log")
    right.set_xlabel("units of training of one member")
    right.set_ylabel("learning rate / (1 - momentum)")
    right.set_title("Schedules found")
    right.legend()
    plot_style.keep(figure, path)


# Scaling.


def generations_an_hour(population: int, workers: int, seed: int, generations: int = 40, **more: Any) -> float:
    spec = StudySpec.from_plain({
        "study": "scaling", "metric": {"name": "loss"}, "space": {"x": {"type": "float", "low": 0.1, "high": 1.0}},
        "search": {"method": "pbt", "population": population, "generations": generations} | more, "seed": seed,
    })  # fmt: skip
    _, _, seconds = play(
        spec, lambda job: {"loss": (job.params["x"] - 0.3) ** 2}, workers=workers,
        seconds=lambda job: 60.0 * math.exp(0.2 * Stream(seed, "length", job.trial).normal() - 0.02),
    )  # fmt: skip
    return generations / (seconds / 3600)


def scaling(seeds: int) -> dict[str, Any]:
    populations, clusters = (5, 10, 20, 40, 80), (1, 2, 4, 5, 8, 10, 16, 20)
    found: dict[str, Any] = {"population": {}, "workers": {}}
    for name, rule in (("asynchronous", "eager"), ("barrier", "barrier")):
        found["population"][name] = {
            n: [generations_an_hour(n, 5, seed, reproduction=rule) for seed in range(seeds)] for n in populations
        }
        found["workers"][name] = {
            n: [generations_an_hour(20, n, seed, reproduction=rule) for seed in range(seeds)] for n in clusters
        }
    began = time.process_time()
    generations_an_hour(500, 100, 0, generations=30)
    found["500 members, 30 generations, CPU seconds"] = round(time.process_time() - began, 2)
    draw_scaling(found, result_file.RESULTS / "pbt-scaling.png")
    return found


def draw_scaling(found: dict[str, Any], path: Path) -> None:
    figure, axes = plot_style.panels(1, 2, 9, 3.6)
    for panel, key, other in zip(axes[0], ("population", "workers"), ("5 workers", "population 20"), strict=True):
        for name, color, style in (("asynchronous", plot_style.RUST, "-"), ("barrier", plot_style.GREY, "--")):
            rates = {n: statistics.fmean(values) for n, values in found[key][name].items()}
            panel.plot(list(rates), list(rates.values()), color=color, linestyle=style, marker="o", label=name)
        ideal = {n: 60 * (5 / n if key == "population" else n / 20) for n in rates}
        panel.plot(
            list(ideal), list(ideal.values()), color=plot_style.BLUE, linewidth=0.9, label="every worker always busy"
        )
        plot_style.log_axis(panel.xaxis)
        plot_style.log_axis(panel.yaxis)
        panel.set_xlabel(key)
        panel.set_ylabel("generations an hour")
        panel.set_title(other)
        panel.legend()
    plot_style.keep(figure, path)


def show(figures: dict[str, Any]) -> None:
    if "toy" in figures:
        one = figures["toy"]
        rows = [["fixed (1, 0)", f"{one['fixed'][0]:.3f}"], ["fixed (0, 1)", f"{one['fixed'][1]:.3f}"]]
        rows += [["PBT, worst and best seed", f"{min(one['pbt']):.3f} {max(one['pbt']):.3f}"], ["optimum", "1.200"]]
        result_file.table(("two quadratics", "reached"), rows)
    for part, keys in (("digits", ("val", "test")), ("steady", ("val",))):
        if part in figures:
            print()
            rows = [
                [name, row["runs"], *(f"{row[f'{key}_mean']:.3f} ± {row[f'{key}_sd']:.3f}" for key in keys)]
                for name, row in figures[part]["summary"].items()
            ]
            result_file.table((part, "runs", *(f"{key} loss" for key in keys)), rows)
            print(f"seeds that PBT won: {figures[part]['seeds_won_by_pbt']}")
    for world, rules in figures.get("reproduction", {}).items():
        print()
        rows = [
            [rule, len(row["val"]), f"{statistics.fmean(row['val']):.4f} ± {statistics.stdev(row['val']):.4f}"]
            + [f"{statistics.fmean(row[key]):.1f}" for key in ("depth", "alone", "seconds")]
            for rule, row in rules.items()
        ]
        result_file.table((world, "runs", "reached (smaller is better)", "generations", "met nobody", "seconds"), rows)
    if "scaling" in figures:
        print()
        for key in ("population", "workers"):
            rows = [
                [n, *(f"{statistics.fmean(found[n]):.1f}" for found in figures["scaling"][key].values())]
                for n in figures["scaling"][key]["asynchronous"]
            ]
            result_file.table((key, "asynchronous", "barrier"), rows)
        print({key: value for key, value in figures["scaling"].items() if "CPU" in key})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "parts", nargs="*", choices=["toy", "digits", "steady", "reproduction", "scaling", []], help="default: all"
    )
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--out", help="JSON file (default benchmarks/results/pbt.json)")
    given = parser.parse_args()
    facts = result_file.machine()
    began = time.monotonic()
    run = {"toy": toy, "digits": digits, "steady": steady, "reproduction": reproduction, "scaling": scaling}
    before = Path(given.out) if given.out else result_file.RESULTS / "pbt.json"
    known = json.loads(before.read_text()) if before.exists() else {}
    figures = {name: known[name] for name in run if name in known and given.parts and name not in given.parts}
    for name in given.parts or run:
        figures[name] = run[name](given.seeds)
    seconds = round(time.monotonic() - began, 1)
    show({name: figures[name] for name in given.parts or run})
    result_file.write("pbt", facts, {"seeds": given.seeds, "seconds": seconds, **figures}, given.out)


if __name__ == "__main__":
    main()
