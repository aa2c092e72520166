"""Time per job beyond its training, end to end: 500 jobs of 10 ms on two workers.

``hpo tune`` with everything on: the home's Prefect server, a task run for each job or each rung, Dask, a child process
per job, SQL journal, MLflow follower. Figure: slot time per job, (last job's end - first job's start) x 2 / jobs -
10 ms, from the starts and ends the journal holds. Where it goes, from the same journal, in means per job:

- ``dispatch``: from the entry that granted a job to its start: decision, commit, Dask, fork;
- ``train``: from start to end, beyond the 10 ms;
- ``return``: from its end to the entry that took it in: end of the child, Dask, waiting for the controller.

The layers below it (jobs/layers.py) run the same jobs without Prefect and MLflow: children only, Dask, a driven
study. Peers do the same 10 ms, first start to last end: plain dask.distributed (this environment), Ray Tune with
actors reused, Optuna with a DaskStorage (``optuna-integration``), Syne Tune's local backend with ``--syne-jobs`` jobs
(``--peer-python NAME=PATH``).

With ``--rounds`` all are measured again in turn, so that a busy minute does not hit one of them alone; the lowest
is shown and the JSON has every reading, ``runs_ms``, and the machine's load before it.

    python benchmarks/overhead.py --peer-python ray=/path/to/ray-env/bin/python
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import result_file

JOBS = result_file.ROOT / "jobs"
sys.path.insert(0, str(JOBS))

from slots import SECONDS, slot_ms  # noqa: E402

RANDOM = {"method": "random", "max_resource": 1}
ASHA = {"method": "asha", "min_resource": 1, "max_resource": 27, "reduction_factor": 3}
ASHA_JOBS_PER_CONFIG = 1 + 1 / 3 + 1 / 9 + 1 / 27
VARIANTS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "hpo tune, grain rung": ("rungs", "objective:train", RANDOM),
    "hpo tune, grain job": ("jobs", "objective:train", RANDOM),
    "hpo tune, without Prefect": ("off", "objective:train", RANDOM),
    "hpo tune, grain rung, computing": ("rungs", "objective:train_computing", RANDOM),
    "hpo tune, grain rung, torch": ("rungs", "objective_torch:train", RANDOM),
    "hpo tune, grain job, torch": ("jobs", "objective_torch:train", RANDOM),
    "hpo tune, grain rung, ASHA, checkpoints": ("rungs", "objective:train_saving", ASHA),
    "hpo tune, grain job, ASHA, checkpoints": ("jobs", "objective:train_saving", ASHA),
    "hpo tune, grain rung, ASHA, checkpoints, torch": ("rungs", "objective_torch:train_saving", ASHA),
}
DASK = "plain dask.distributed"
AIMS = {"hpo tune, grain job": 30 / 14.1, "hpo tune, grain rung": 15 / 14.1, "hpo tune, without Prefect": 13 / 14.1}
"""Slot time at most, as a multiple of that of plain Dask in the same run."""
PACKED = "hpo tune, grain rung, packing"
"""As the first, with jobs that share a device: the same two at once."""
SHARED = "hpo tune, grain rung, share"
"""As the first, in a pool of slots where it is alone."""
TWO_AT_ONCE = {"demand": {"compute": 50, "memory": "50MB"}}
KEPT = "hpo tune, grain rung, kept processes"
"""As the first, with processes that stay for the next job."""
Run = Callable[[], dict[str, Any]]
LAYERS = ("child", "dask", "driver")
PEERS = {
    "ray": ("Ray Tune, actors reused", "ray_tune.py"),
    "optuna": ("Optuna on Dask, DaskStorage", "optuna_dask.py"),
    "syne-tune-0.13": ("Syne Tune 0.13, local backend", "syne_tune_local.py"),
    "syne-tune-0.16": ("Syne Tune 0.16, local backend", "syne_tune_local.py"),
}
OWN = ("PREFECT_API_URL", "MLFLOW_TRACKING_URI", "HPO_HOME", "HPO_JOURNAL")
"""Settings that would send the run somewhere else."""


def tune(
    grain: str,
    objective: str,
    search: dict[str, Any],
    jobs: int,
    seconds: float,
    *,
    packing: dict[str, Any] | None = None,
    share: dict[str, Any] | None = None,
    training: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """One ``hpo tune`` in a home of its own; figures from its journal."""
    configs = jobs if search["method"] == "random" else round(jobs / ASHA_JOBS_PER_CONFIG)
    study = {
        "study": "overhead",
        "objective": objective,
        "pythonpath": [str(JOBS)],
        "metric": {"name": "loss"},
        "space": {"x": {"type": "float", "low": 0.0, "high": 1.0}},
        "search": {**search, "configs": configs},
        "cluster": {"kind": "local", "workers": 2},
        "prefect": grain,
    }
    if packing is not None:
        study["packing"] = packing
    if share is not None:
        study["share"] = share
    if training is not None:
        study["training"] = training
    environment = {key: value for key, value in os.environ.items() if key not in OWN}
    hpo = Path(sys.executable).with_name("hpo")
    with tempfile.TemporaryDirectory(prefix="hpo-bench-", ignore_cleanup_errors=True) as name:
        home = Path(name) / "home"
        file = Path(name) / "study.yaml"
        file.write_text(json.dumps(study))  # JSON is YAML
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        began = time.monotonic()
        try:
            done = subprocess.run(
                [str(hpo), "tune", str(file), "--home", str(home)],
                capture_output=True, text=True, timeout=seconds, env=environment, cwd=name,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            return {"error": f"longer than {seconds:g} s"}
        wall = time.monotonic() - began
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        if done.returncode:
            return {"error": (done.stderr.strip().splitlines() or ["no output"])[-1][:200]}
        found = from_journal(home)
    cpu = after.ru_utime + after.ru_stime - used.ru_utime - used.ru_stime
    return found | {"command_s": round(wall, 1), "command_cpu_s": round(cpu, 1)}


def from_journal(home: Path) -> dict[str, Any]:
    """Slot time and its parts, from the recorded starts, ends and entry times."""
    from hpo_core.home import Home
    from hpo_core.model.events import JobCompleted, JobGranted

    granted: dict[tuple[int, int], float] = {}
    spans, dispatch, train, back = [], [], [], []
    for entry in Home(home).open_journal().entries("overhead"):
        for event in entry.events:
            if isinstance(event, JobGranted):
                granted[event.trial, event.attempt] = entry.time
            elif isinstance(event, JobCompleted):
                spans.append((event.started, event.ended))
                dispatch.append(event.started - granted[event.trial, event.attempt])
                train.append(event.ended - event.started - SECONDS)
                back.append(entry.time - event.ended)
    spans.sort()
    fifth = spans[-max(2, len(spans) // 5) :]

    def ms(values: list[float]) -> float:
        return round(statistics.mean(values) * 1e3, 2)

    return {
        "jobs": len(spans),
        "slot_ms": slot_ms(spans),
        "last_fifth_ms": slot_ms(fifth),
        "dispatch_ms": ms(dispatch[2:]),
        "train_ms": ms(train),
        "return_ms": ms(back),
    }


def script(python: str, name: str, *more: str, seconds: float) -> dict[str, Any]:
    try:
        done = subprocess.run([python, str(JOBS / name), *more], capture_output=True, text=True, timeout=seconds)
    except subprocess.TimeoutExpired:
        return {"error": f"longer than {seconds:g} s"}
    except OSError as error:
        return {"error": error.strerror or type(error).__name__}
    lines = done.stdout.strip().splitlines()
    if done.returncode or not lines:
        return {"error": (done.stderr.strip().splitlines() or ["no output"])[-1][:200]}
    found: dict[str, Any] = json.loads(lines[-1])
    return found


def main() -> None:
    given = _parser().parse_args()
    facts = result_file.machine()
    pythons = {}
    for item in given.peer_python:
        name, _, path = item.partition("=")
        if name not in PEERS or not path:
            raise SystemExit(f"--peer-python {item}: write NAME=PATH with NAME one of {', '.join(PEERS)}.")
        pythons[name] = path
    plan = [(name, run) for name, run in _plan(given, pythons) if _wanted(name, given)]
    figures: dict[str, dict[str, Any]] = {}
    for turn in range(given.rounds):
        for name, run in plan:
            load = round(os.getloadavg()[0], 2)
            found = run() | {"load_before": load}
            seen = found.get("slot_ms")
            print(f"  {turn + 1}: {name}: {seen or found.get('error')} (load {load})", file=sys.stderr, flush=True)
            best = figures.get(name, {})
            runs = [*best.get("runs_ms", []), seen]
            if "slot_ms" not in best or (seen is not None and seen < best["slot_ms"]):
                best = found
            figures[name] = best | {"runs_ms": runs}

    head = [
        "ms of slot time per job beyond 10 ms",
        "jobs",
        "slot",
        "last fifth",
        "dispatch",
        "train",
        "return",
        "decide",
    ]
    keys = ("jobs", "slot_ms", "last_fifth_ms", "dispatch_ms", "train_ms", "return_ms", "decision_and_journal_ms")
    result_file.table(
        head,
        [
            [f"{name}: {found['error']}" if "error" in found else name, *(found.get(key) for key in keys)]
            for name, found in figures.items()
        ],
    )
    aims: dict[str, Any] = {}
    dask = figures.get(DASK, {}).get("slot_ms")
    for name, most in AIMS.items():
        seen = figures.get(name, {}).get("slot_ms")
        if seen is not None and dask is not None:
            aims[name] = {"most": round(most, 2), "seen": round(seen / dask, 2), "met": seen / dask <= most}
            print(
                f"{name}: {seen / dask:.2f} of plain Dask (aim {most:.2f}): {'met' if aims[name]['met'] else 'MISSED'}"
            )
    result_file.write("overhead", facts, {"figures": figures, "aims": aims}, given.out)


def _plan(given: argparse.Namespace, pythons: dict[str, str]) -> Iterator[tuple[str, Run]]:
    """All that can be measured, in the order of the table."""
    count = ["--jobs", str(given.jobs)]
    for name, variant in VARIANTS.items():
        yield name, partial(tune, *variant, given.jobs, given.seconds)
        if name == "hpo tune, grain rung":
            yield KEPT, partial(tune, *variant, given.jobs, given.seconds, training={"process": "kept"})
            yield SHARED, partial(tune, *variant, given.jobs, given.seconds, share={"pool": "benchmark"})
            yield PACKED, partial(tune, *variant, given.jobs, given.seconds, packing=TWO_AT_ONCE)
    for objective, word in (("objective:train", ""), ("objective_torch:train", ", torch")):
        for layer in LAYERS:
            more = ["--layer", layer, "--objective", objective, *count]
            yield f"layer {layer}{word}", partial(script, sys.executable, "layers.py", *more, seconds=given.seconds)
    yield DASK, partial(script, sys.executable, "plain_dask.py", *count, seconds=given.seconds)
    for peer, (title, file) in PEERS.items():
        if peer in pythons:
            jobs = given.syne_jobs if peer.startswith("syne") else given.jobs
            yield title, partial(script, pythons[peer], file, "--jobs", str(jobs), seconds=given.seconds)
        else:
            yield title, lambda: {"error": "not installed (see --peer-python)"}


def _wanted(name: str, given: argparse.Namespace) -> bool:
    return not any(part in name for part in given.skip) and (not given.only or name in given.only)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=500)
    parser.add_argument("--syne-jobs", type=int, default=100, help="jobs for Syne Tune, which takes about 0.5 s each")
    parser.add_argument("--seconds", type=float, default=300.0, help="longest time of one variant")
    parser.add_argument("--rounds", type=int, default=1, help="times to go through all; the lowest is shown")
    parser.add_argument("--only", action="append", default=[], metavar="NAME", help="measure this (repeatable)")
    parser.add_argument(
        "--skip", action="append", default=[], metavar="PART", help="leave out what has this in its name"
    )
    parser.add_argument(
        "--peer-python", action="append", default=[], metavar="NAME=PATH", help=f"NAME: {', '.join(PEERS)}"
    )
    parser.add_argument("--out", type=Path, help="JSON file (default benchmarks/results/overhead.json)")
    return parser


if __name__ == "__main__":
    main()
