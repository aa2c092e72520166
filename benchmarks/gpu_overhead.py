"""Time per job on a GPU beyond its training: fork, CUDA context, kernels, checkpoint.

Each job runs as it does in a study: a Trainer, its zygote (torch imported once), a forked child per job
(``training.process: fresh``), or one that stays (``kept``). Median of ``--jobs`` jobs after one that is not counted,
for a new job and for one that goes on from a checkpoint, with models of 8 and 200 MB of weights (Adam makes the
checkpoint three times that) and with one that saves nothing: its jobs take about 10 ms, and what they cost beyond
that in a kept process is the row ``kept: no checkpoint, new``.

- ``fork``: from ``run()`` to the first line of the training function (going on: with the checkpoint read and verified)
- ``context``: until CUDA is ready;  ``build``: model and optimizer on the GPU;  ``load``: their state, onto the GPU
- ``kernels``: what the first step takes beyond another;  ``save``: state off the GPU, hashed, written, fsynced
- ``end``: from there until ``run()`` returned: context closed, process gone
- ``beyond``: all of ``run()`` less the steps at the time of the fastest

For comparison: a fresh Python that imports torch and opens the context, which is what a job without fork starts with.

    python benchmarks/gpu_overhead.py
"""

from __future__ import annotations

import argparse
import itertools
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Literal

import result_file

sys.path.insert(0, str(result_file.ROOT.parent))
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(result_file.ROOT.parent), os.environ.get("PYTHONPATH")]))

OBJECTIVE = "gpu_objective:train"
STEPS = 4
STAGES = ("fork", "context", "build", "load", "kernels", "save", "end", "beyond")
FRESH = "import torch; torch.zeros(1, device='cuda'); torch.cuda.synchronize()"
PROCESSES: tuple[Literal["fresh", "kept"], ...] = ("fresh", "kept")
CASES = {"no checkpoint": (8, False), "8 MB": (8, True), "200 MB": (200, True)}


def gpu() -> dict[str, Any]:
    """Card, driver and the CUDA it speaks; exits with 2 where there is none."""
    try:
        import pynvml

        pynvml.nvmlInit()
        device = pynvml.nvmlDeviceGetHandleByIndex(0)
        cuda = pynvml.nvmlSystemGetCudaDriverVersion_v2()
        return {
            "card": pynvml.nvmlDeviceGetName(device),
            "card_memory_gib": round(pynvml.nvmlDeviceGetMemoryInfo(device).total / 2**30, 1),
            "driver": pynvml.nvmlSystemGetDriverVersion(),
            "driver_cuda": f"{cuda // 1000}.{cuda % 1000 // 10}",
        }
    except Exception as error:
        print(f"No NVIDIA GPU answers ({error}). Nothing was measured.")
        raise SystemExit(2) from error


def stages(called: float, returned: float, metrics: dict[str, float]) -> dict[str, float]:
    """Milliseconds of one job."""
    at = [called, *(metrics[name] for name in ("entered", "context", "built", "loaded"))]
    found = {name: b - a for name, a, b in zip(("fork", "context", "build", "load"), at, at[1:], strict=False)}
    found["kernels"] = metrics["first_step"] - metrics["step"]
    found["save"] = metrics["saved"] - metrics["trained"]
    found["end"] = returned - metrics["saved"]
    found["beyond"] = returned - called - STEPS * metrics["step"]
    return {name: 1e3 * found[name] for name in STAGES}


def measure(jobs: int, megabytes: int, saved: bool, process: Literal["fresh", "kept"]) -> dict[str, dict[str, Any]]:
    """Medians of new jobs, and of jobs that go on from theirs."""
    from hpo_core.model.trial import Checkpoint, Job, Rung
    from hpo_core.training.child.trainer import Trainer
    from hpo_core.training.request import JobRequest, StudySetup

    where = (str(result_file.ROOT),)
    trainer = Trainer(OBJECTIVE, where)
    trainer.prepare()

    same: Any = {"study": "gpu", "objective": OBJECTIVE, "metrics": ("loss",), "pythonpath": where}
    setup = StudySetup(folder="", process=process, **same)

    def run(folder: str, trial: int, rung: int, checkpoint: Checkpoint | None) -> tuple[dict[str, float], Any]:
        job = Job(trial, 0, Rung(0, rung), STEPS * (rung + 1), {"megabytes": megabytes, "saved": saved}, checkpoint)
        request = JobRequest(setup=setup, job=job, seed=1).with_setup(folder=folder)
        called = time.monotonic()
        report = trainer.run(request)
        returned = time.monotonic()
        if report.outcome != "completed":
            raise SystemExit(f"{report.outcome}: {report.message}\n{report.detail}")
        if process == "kept" and trainer.waiting is None:
            raise SystemExit(f"the process did not stay: {report.warnings}")
        return stages(called, returned, report.metrics), report.checkpoint

    new, resumed, size = [], [], 0
    try:
        with tempfile.TemporaryDirectory(prefix="hpo-bench-") as folder:
            for trial in range(jobs + 1):
                found, checkpoint = run(folder, trial, 0, None)
                new.append(found)
                if checkpoint is not None:
                    size = checkpoint.size
                    resumed.append(run(folder, trial, 1, checkpoint)[0])
                for file in Path(folder, "checkpoints").rglob("*.safetensors"):
                    file.unlink()
    finally:
        trainer.close()

    def medians(all_of: list[dict[str, float]]) -> dict[str, Any]:
        counted = all_of[1:]
        middle = {f"{name}_ms": round(statistics.median(one[name] for one in counted), 2) for name in STAGES}
        beyond = [one["beyond"] for one in counted]
        spread = {"beyond_least_ms": round(min(beyond), 2), "beyond_most_ms": round(max(beyond), 2)}
        return {"jobs": len(counted), "checkpoint_mb": round(size / 1e6, 1), **middle, **spread}

    return {"new": medians(new), **({"goes on": medians(resumed)} if resumed else {})}


def fresh_process(times: int) -> dict[str, Any]:
    """What a job costs that starts a Python of its own."""
    took = []
    for _ in range(times + 1):
        started = time.monotonic()
        subprocess.run([sys.executable, "-c", FRESH], check=True)
        took.append(1e3 * (time.monotonic() - started))
    return {"jobs": times, "beyond_ms": round(statistics.median(took[1:]), 2)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=10)
    parser.add_argument("--out", type=Path, help="JSON file (default benchmarks/results/gpu_overhead.json)")
    given = parser.parse_args()
    facts = gpu()
    figures: dict[str, dict[str, Any]] = {}
    for process, (name, (megabytes, saved)) in itertools.product(PROCESSES, CASES.items()):
        for kind, found in measure(given.jobs, megabytes, saved, process).items():
            row = f"{process}: {name}, {kind}"
            figures[row] = found
            print(f"  {row}: {found['beyond_ms']} ms", file=sys.stderr, flush=True)
    figures["a fresh Python: import torch, open the context"] = fresh_process(min(5, given.jobs))
    result_file.table(
        ["ms per job beyond training, medians", "jobs", "checkpoint MB", *STAGES],
        [
            [name, found["jobs"], found.get("checkpoint_mb"), *(found.get(f"{stage}_ms") for stage in STAGES)]
            for name, found in figures.items()
        ],
    )
    result_file.write("gpu_overhead", facts, {"figures": figures}, given.out)


if __name__ == "__main__":
    main()
