"""Two jobs on one GPU, by slowdowns that were really measured: what packing gains, and what learning them adds.

Recorded steps per second of 26 training jobs (five models with several batch sizes, CycleGAN, A3C) alone and in each
pair, on a K80 and on a P100. Lists of jobs run to their end on some GPUs of one kind; each job takes 10^U(1.5, 3)
minutes alone, and while two share a GPU, each runs at its recorded speed beside the other. ``mixed`` draws from all
jobs, ``one model`` from one model's batch sizes, as in a search. A GPU that is empty is used before one is shared.

- ``one per GPU``
- ``k = 2``: the oldest job goes beside any other, as typed by hand; a pair that does not fit costs its newer job a
  minute, and then it runs alone.
- ``by need``: the oldest job whose memory fits and whose compute does, up to an oversubscription ratio r. The data have
  no utilization: a job's compute is the share with which its speed beside itself would follow from the rule of the
  simulator, 1 / (2 x speed). ``tuned`` takes the r that was best on other lists.
- ``learned``: the oldest job that fits, but for pairs whose summed speeds, relative to alone, were seen below
  1 + margin. A pair that was not seen is taken to be like the mean of what both jobs gained beside others; where that
  is nothing, it is tried. What was seen is kept per pair of keys (model and batch size) and has 3 % noise.
- ``learned, history``: the same, with what was seen in five earlier lists.
- ``learned, chooses``: of the oldest 16 that fit, the one with the largest sum. ``all known``: the same with the
  table known from the beginning, the most that learning could come to.

These are policies of this script, with a simple rule and memory known beforehand. The placement of a packed study
itself (`SharedDevices`, the policy `fill`, at most two jobs on a GPU) plays the same lists and knows nothing
beforehand: a pair that does not fit runs out of memory after a minute, and the placement judges that as it would:

- ``placement``: any that fit share.
- ``placement, r = 1``, ``r = 2``: the placement of a study that knows what each job needs alone, its compute as above.
- ``placement, measures r``: the same where the study states no ratio: it begins at 1 and finds one while it works.

``makespan`` and ``mean completion``: as ratios to one per GPU, mean and standard deviation over the lists.
``worst pair``: share of the shared time in which two jobs did less together than one alone.

    python benchmarks/packing_pairs.py [--data FOLDER] [--lists 20]
"""

from __future__ import annotations

import argparse
import csv
import math
import random
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import plot_style
import result_file

from hpo_core.model.devices.inventory import Capacity, Device, Inventory
from hpo_core.model.devices.measurement import Measurement, Usage
from hpo_core.model.trial import Job as PlacedJob
from hpo_core.model.trial import Outcome, Report, Rung
from hpo_core.packing.estimates import Estimates
from hpo_core.packing.policies import POLICIES
from hpo_core.packing.shared_devices import SharedDevices
from hpo_core.spec.packing import PackingSpec, StatedDemand

KINDS = ("k80", "p100")
GPUS, JOBS, AHEAD = 8, 160, 16
MARGIN, NOISE, LOST_SECONDS = 0.05, 0.03, 60.0
RATIOS = (1.0, 1.2, 1.4, 1.6, 1.8, 2.0)
TUNING_LISTS, EARLIER_LISTS = 10, 5

Key = tuple[str, str]
"""Model and batch size."""


@dataclass(frozen=True)
class Speeds:
    """Of one kind of GPU."""

    beside: dict[tuple[Key, Key], float]
    """Speed of the first beside the second, relative to alone; 0 where they do not fit."""
    keys: list[Key]

    def total(self, one: Key, other: Key) -> float:
        return self.beside[one, other] + self.beside[other, one]

    def fits(self, one: Key, other: Key) -> bool:
        return self.total(one, other) > 0

    def compute(self, one: Key) -> float:
        """Share of the GPU that a job keeps busy, from its speed beside itself."""
        speed = self.beside[one, one]
        return min(1.0, 1 / (2 * speed)) if speed > 0 else 1.0


def read_speeds(folder: Path, kind: str) -> Speeds:
    beside: dict[tuple[Key, Key], float] = {}
    with (folder / f"gavel_pairs_{kind}.csv").open() as file:
        for row in csv.DictReader(file):
            one, other = (row["job1"], row["batch1"]), (row["job2"], row["batch2"])
            fits = row["fits"] == "1"
            beside[one, other] = float(row["norm1"]) if fits else 0.0
            beside[other, one] = float(row["norm2"]) if fits else 0.0
    return Speeds(beside, sorted({one for one, _ in beside}))


@dataclass
class Job:
    number: int
    key: Key
    left: float
    """Seconds alone."""
    alone: bool = False
    """It did not fit beside another one."""


def models_of(speeds: Speeds) -> list[str]:
    """Those with several batch sizes."""
    return sorted({model for model, _ in speeds.keys if sum(key[0] == model for key in speeds.keys) > 1})


def job_list(speeds: Speeds, mix: str, seed: int) -> list[Job]:
    rng = random.Random(f"{mix} {seed}")
    keys = speeds.keys
    if mix == "one model":
        models = models_of(speeds)
        keys = [key for key in keys if key[0] == models[seed % len(models)]]
    return [Job(number, rng.choice(keys), 60 * 10 ** rng.uniform(1.5, 3)) for number in range(JOBS)]


class Policy:
    """Which waiting job goes beside one that runs; this one: none."""

    def choose(self, running: Job, waiting: Sequence[Job]) -> Job | None:
        return None

    def see(self, one: Key, other: Key, total: float) -> None:
        """Two jobs ran together, at these summed speeds."""


class Oldest(Policy):
    """The oldest that a rule allows."""

    def __init__(self, allows: Callable[[Key, Key], bool]) -> None:
        self.allows = allows

    def choose(self, running: Job, waiting: Sequence[Job]) -> Job | None:
        return next((job for job in waiting if not job.alone and self.allows(running.key, job.key)), None)


class Learned(Policy):
    """Keeps what pairs gained, and refuses those that gain less than a margin."""

    def __init__(self, speeds: Speeds, *, chooses: bool, margin: float = MARGIN) -> None:
        self.speeds = speeds
        self.chooses = chooses
        self.least = 1 + margin
        self.sums: dict[tuple[Key, Key], list[float]] = {}

    def see(self, one: Key, other: Key, total: float) -> None:
        self.sums.setdefault((min(one, other), max(one, other)), []).append(total)

    def expected(self, one: Key, other: Key) -> float:
        seen = self.sums.get((min(one, other), max(one, other)))
        if seen:
            return statistics.fmean(seen)
        beside = [statistics.fmean(found) for pair, found in self.sums.items() if one in pair or other in pair]
        return statistics.fmean(beside) if beside else math.inf

    def choose(self, running: Job, waiting: Sequence[Job]) -> Job | None:
        fitting = [job for job in waiting if not job.alone and self.speeds.fits(running.key, job.key)][:AHEAD]
        gains = [(self.expected(running.key, job.key), -job.number, job) for job in fitting]
        allowed = [one for one in gains if one[0] >= self.least]
        if not allowed:
            return None
        return max(allowed)[2] if self.chooses else allowed[0][2]


class Known(Learned):
    """The whole table from the beginning."""

    def expected(self, one: Key, other: Key) -> float:
        return self.speeds.total(one, other)


@dataclass
class Gpu:
    jobs: list[Job] = field(default_factory=list)
    since: float = 0.0


@dataclass(frozen=True)
class Played:
    makespan: float
    completion: float
    shared: float
    """GPU seconds with two jobs."""
    worse: float
    """Part of them in which the two did less than one alone."""
    out_of_memory: int


def play(jobs: Sequence[Job], speeds: Speeds, policy: Policy, seed: int, gpus: int = GPUS) -> Played:
    """A list to its end."""
    rng = random.Random(f"noise {seed}")
    waiting = [Job(job.number, job.key, job.left) for job in jobs]
    cluster = [Gpu() for _ in range(gpus)]
    now = completion = shared = worse = 0.0
    failures = 0
    held: list[tuple[float, Job]] = []
    """Jobs that did not fit, and when that is noticed."""
    while waiting or held or any(gpu.jobs for gpu in cluster):
        for time, job in [one for one in held if one[0] <= now]:
            held.remove((time, job))
            waiting.insert(0, job)
        for gpu in cluster:
            if not gpu.jobs and waiting:
                gpu.jobs.append(waiting.pop(0))
        for gpu in cluster:
            if len(gpu.jobs) == 1 and not gpu.jobs[0].alone and waiting:
                job = policy.choose(gpu.jobs[0], waiting)
                if job is None:
                    continue
                waiting.remove(job)
                if speeds.fits(gpu.jobs[0].key, job.key):
                    gpu.jobs.append(job)
                else:
                    job.alone = True
                    failures += 1
                    held.append((now + LOST_SECONDS, job))
        ends = [job.left / speed for gpu in cluster for job, speed in speeds_of(gpu, speeds)]
        passed = min([*ends, *(time - now for time, _ in held)])
        now += passed
        for gpu in cluster:
            pairs = speeds_of(gpu, speeds)
            if len(pairs) == 2:
                total = pairs[0][1] + pairs[1][1]
                shared += passed
                worse += passed if total < 1 else 0.0
            for job, speed in pairs:
                job.left -= passed * speed
            ended = [job for job, _ in pairs if job.left <= 1e-6]
            if ended and len(pairs) == 2:
                policy.see(pairs[0][0].key, pairs[1][0].key, total * rng.gauss(1, NOISE))
            completion += now * len(ended)
            gpu.jobs = [job for job in gpu.jobs if job not in ended]
    return Played(now, completion / len(jobs), shared, worse, failures)


OBJECTIVE = "gavel:job"
MEMORY = 16_000_000_000
"""Bytes of a GPU; each job is told to need a fourth, which is not known to be too little for some pairs."""


def placer_for(gpus: int) -> SharedDevices:
    packing = PackingSpec(most=2, oversubscribe={"default": 1})
    return _placer(gpus, packing, {"memory": MEMORY // 4, "compute": 10, "cores": 0.001}, ())


def placer_by_compute(gpus: int, speeds: Speeds, ratio: float | None) -> SharedDevices:
    """It knows what each job needs alone; without a ratio it finds one by itself, as in a study that states none."""
    packing = PackingSpec(most=2, oversubscribe={} if ratio is None else {"default": ratio})
    past = [
        Measurement(
            objective=OBJECTIVE, code="", architecture="GPU", params={"model": model, "batch": batch},
            device_memory=MEMORY // 4, compute=speeds.compute((model, batch)), cores=0.001, unit_seconds=60.0,
            study="before", measured_at=0.5,
        )
        for model, batch in speeds.keys
    ]  # fmt: skip
    return _placer(gpus, packing, {"memory": MEMORY // 4, "cores": 0.001}, past)


def _placer(gpus: int, packing: PackingSpec, demand: dict[str, Any], past: Sequence[Measurement]) -> SharedDevices:
    estimates = Estimates(
        objective=OBJECTIVE, code="", study="pairs", by=("model", "batch"), stated=StatedDemand(demand), past=past
    )
    placer = SharedDevices(packing, POLICIES[packing.policy](), estimates, free_choice=True)
    capacity = Capacity(node="n", architecture="GPU", memory=MEMORY, free=MEMORY, cores=10**6, gpu=True)
    placer.update(Inventory(tuple(Device(f"gpu-{number}", 2, capacity) for number in range(gpus))))
    return placer


@dataclass
class Running:
    job: Job
    placed: PlacedJob
    gpu: str
    began: float
    work: float
    """Seconds alone."""
    fails_at: float = math.inf


def play_placed(jobs: Sequence[Job], speeds: Speeds, placer: SharedDevices, seed: int) -> Played:
    """A list to its end by the placement of a study."""
    rng = random.Random(f"noise {seed}")
    waiting = [Job(job.number, job.key, job.left) for job in jobs]
    attempts = dict.fromkeys(range(len(jobs)), 0)
    running: dict[int, Running] = {}
    now, completion, shared, worse, failures = 1.0, 0.0, 0.0, 0.0, 0
    while waiting or running:
        placer.update(placer.inventory)
        ahead = [
            PlacedJob(job.number, attempts[job.number], Rung(0, 0), 1, {"model": job.key[0], "batch": job.key[1]})
            for job in waiting[:AHEAD]
        ]
        for placed, slot in placer.place(ahead, now=now).begun:
            (job,) = (one for one in waiting if one.number == placed.trial)
            waiting.remove(job)
            begun = Running(job, placed, slot.name, now, job.left)
            others = [one for one in running.values() if one.gpu == slot.name]
            if others and not speeds.fits(job.key, others[0].job.key):
                begun.fails_at = now + LOST_SECONDS
            running[job.number] = begun
        rates = {}
        for number, one in running.items():
            others = [other for other in running.values() if other.gpu == one.gpu and other is not one]
            beside = speeds.beside[one.job.key, others[0].job.key] if others else 1.0
            fits = not others or speeds.fits(one.job.key, others[0].job.key)
            rates[number] = beside if fits else float(one.fails_at == math.inf)
        ends = [one.job.left / rates[number] for number, one in running.items() if rates[number] > 0]
        passed = min([*ends, *(one.fails_at - now for one in running.values() if one.fails_at < math.inf)])
        for gpu in {one.gpu for one in running.values()}:
            together = [rates[number] for number, one in running.items() if one.gpu == gpu]
            if len(together) == 2:
                shared += passed
                worse += passed if sum(together) < 1 else 0.0
        now += passed
        for number, one in running.items():
            one.job.left -= passed * rates[number]
        for number, one in list(running.items()):
            is_out = one.fails_at <= now + 1e-9
            if not is_out and one.job.left > 1e-6:
                continue
            unit = 0.0 if is_out else 60 * (now - one.began) / one.work * rng.gauss(1, NOISE)
            usage = Usage(
                device_memory=MEMORY // 4, compute=speeds.compute(one.job.key), cores=0.001, unit_seconds=unit
            )
            outcome = Outcome.OUT_OF_MEMORY if is_out else Outcome.COMPLETED
            placer.judge(
                Report(
                    trial=number,
                    attempt=one.placed.attempt,
                    outcome=outcome,
                    started=one.began,
                    ended=now,
                    usage=usage,
                )
            )
            placer.release(one.placed.key)
            del running[number]
            if is_out:
                failures += 1
                attempts[number] += 1
                waiting.insert(0, Job(number, one.job.key, one.work))
                for other in running.values():  # what it shares with is alone again
                    other.fails_at = math.inf if other.gpu == one.gpu else other.fails_at
            else:
                completion += now - 1.0
    return Played(now - 1.0, completion / len(jobs), shared, worse, failures)


RATIO_OF: dict[str, float | None] = {
    "placement, r = 1": 1.0, "placement, r = 2": 2.0, "placement, measures r": None,
}  # fmt: skip


def play_row(name: str, make: Callable[[int], Policy] | None, speeds: Speeds, mix: str, seed: int) -> Played:
    jobs = job_list(speeds, mix, seed)
    if make is not None:
        return play(jobs, speeds, make(seed), seed)
    if name in RATIO_OF:
        return play_placed(jobs, speeds, placer_by_compute(GPUS, speeds, RATIO_OF[name]), seed)
    return play_placed(jobs, speeds, placer_for(GPUS), seed)


def speeds_of(gpu: Gpu, speeds: Speeds) -> list[tuple[Job, float]]:
    if len(gpu.jobs) < 2:
        return [(job, 1.0) for job in gpu.jobs]
    one, other = gpu.jobs
    return [(one, speeds.beside[one.key, other.key]), (other, speeds.beside[other.key, one.key])]


def by_need(speeds: Speeds, ratio: float) -> Oldest:
    return Oldest(
        lambda one, other: speeds.fits(one, other) and speeds.compute(one) + speeds.compute(other) <= ratio + 1e-9
    )


def tuned_ratio(speeds: Speeds, mix: str) -> float:
    """Of the lists that are not reported, the ratio with the least mean makespan."""
    lists = [(job_list(speeds, mix, seed), seed) for seed in range(1000, 1000 + TUNING_LISTS)]
    means = {
        ratio: statistics.fmean(play(jobs, speeds, by_need(speeds, ratio), seed).makespan for jobs, seed in lists)
        for ratio in RATIOS
    }
    return min(means, key=lambda ratio: means[ratio])


def learned_before(speeds: Speeds, mix: str, seed: int) -> Learned:
    """With what earlier lists of the same jobs taught."""
    policy = Learned(speeds, chooses=False)
    models = len(models_of(speeds))
    for lap in range(1, EARLIER_LISTS + 1):
        earlier = seed + 1000 * models * lap  # of the same model, where lists have one
        play(job_list(speeds, mix, earlier), speeds, policy, earlier)
    return policy


def policies(speeds: Speeds, mix: str, ratio: float) -> dict[str, Callable[[int], Policy] | None]:
    """By name: made for the list of a seed; None for the placement of a study."""
    return {
        "one per GPU": lambda seed: Policy(),
        "k = 2": lambda seed: Oldest(lambda one, other: True),
        "by need, r = 1": lambda seed: by_need(speeds, 1.0),
        "by need, tuned": lambda seed: by_need(speeds, ratio),
        "learned": lambda seed: Learned(speeds, chooses=False),
        "learned, history": lambda seed: learned_before(speeds, mix, seed),
        "learned, chooses": lambda seed: Learned(speeds, chooses=True),
        "all known": lambda seed: Known(speeds, chooses=True),
        **dict.fromkeys(RATIO_OF),
        "placement": None,
    }


def measure(speeds: Speeds, kind: str, mix: str, lists: int) -> list[dict[str, Any]]:
    ratio = tuned_ratio(speeds, mix)
    rows: list[dict[str, Any]] = []
    alone: list[Played] = []
    for name, make in policies(speeds, mix, ratio).items():
        runs = [play_row(name, make, speeds, mix, seed) for seed in range(lists)]
        alone = alone or runs
        spans = [run.makespan / base.makespan for run, base in zip(runs, alone, strict=True)]
        completions = [run.completion / base.completion for run, base in zip(runs, alone, strict=True)]
        shared = sum(run.shared for run in runs)
        rows.append({
            "gpu": kind, "jobs": mix, "policy": name, **({"ratio": ratio} if name.endswith("tuned") else {}),
            "makespan": round(statistics.fmean(spans), 3), "makespan_deviation": round(statistics.stdev(spans), 3),
            "completion": round(statistics.fmean(completions), 3),
            "completion_deviation": round(statistics.stdev(completions), 3),
            "sooner": sum(span < 1 for span in spans), "lists": lists,
            "worst_pair": round(sum(run.worse for run in runs) / shared, 3) if shared else 0.0,
            "out_of_memory": round(statistics.fmean(run.out_of_memory for run in runs), 1),
            "makespans": [round(span, 4) for span in spans],
        })  # fmt: skip
    return rows


def picture(rows: Sequence[dict[str, Any]], path: Path) -> None:
    settings = list(dict.fromkeys((row["gpu"], row["jobs"]) for row in rows))
    figure, grid = plot_style.panels(1, len(settings), 3.2 * len(settings), 3.6, sharey=True, sharex=True)
    for panel, (kind, mix) in zip(grid[0], settings, strict=True):
        own = [row for row in rows if (row["gpu"], row["jobs"]) == (kind, mix)][::-1]
        for figure_name, colour, label in (
            ("makespan", plot_style.BLUE, "makespan"),
            ("completion", plot_style.RUST, "mean completion"),
        ):
            shift = 0.12 if figure_name == "makespan" else -0.12
            panel.errorbar(
                [row[figure_name] for row in own], [place + shift for place in range(len(own))],
                xerr=[row[f"{figure_name}_deviation"] for row in own], fmt="o", color=colour, elinewidth=1, label=label,
            )  # fmt: skip
        panel.axvline(1.0, color=plot_style.INK, linewidth=1)
        panel.set(title=f"{kind.upper()}, {mix}", xlabel="ratio to one per GPU", xlim=(0.74, 1.1))
        panel.set_yticks(range(len(own)), [row["policy"] for row in own])
    handles, labels = grid[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=2)
    plot_style.keep(figure, path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", help="folder with gpu_sharing/; default ../shared/data, seen from the repository")
    parser.add_argument("--lists", type=int, default=20, help="random lists of jobs in each setting; at least 2")
    parser.add_argument("--out", help="file for the figures; default results/packing_pairs.json")
    given = parser.parse_args()
    folder = result_file.data_folder(given.data) / "gpu_sharing"
    if not folder.is_dir():
        print(f"No data: {folder} is not there. It holds the recorded speeds of pairs of jobs. Nothing was measured.")
        raise SystemExit(2)
    if given.lists < 2:
        parser.error(f"--lists {given.lists}: a deviation needs at least 2 lists.")
    facts = result_file.machine()
    rows: list[dict[str, Any]] = []
    for kind in KINDS:
        speeds = read_speeds(folder, kind)
        for mix in ("mixed", "one model"):
            rows += measure(speeds, kind, mix, given.lists)
    columns = ("policy", "gpu", "jobs", "ratio", "makespan", "makespan_deviation", "completion",
               "completion_deviation", "sooner", "worst_pair", "out_of_memory")  # fmt: skip
    result_file.table(columns, [[row.get(column) for column in columns] for row in rows])
    settings = {"gpus": GPUS, "jobs": JOBS, "margin": MARGIN, "noise": NOISE}
    path = result_file.write("packing_pairs", facts, {"settings": settings, "rows": rows}, given.out)
    picture(rows, path.with_suffix(".png"))


if __name__ == "__main__":
    main()
