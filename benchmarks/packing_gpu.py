"""Small networks that share one card: units per second and peak memory, one after another, packed, packed with MPS.

Each line is a study of ``--jobs`` equal jobs, run by ``hpo tune`` as a user runs it, with one worker:

- ``one after another``: ``packing: {most: 1}``, so that the measurements are made in the same way
- ``packed``: as many at once as memory, compute as measured (times ``--oversubscribe``) and ``most: 16`` allow
- ``packed, MPS``: the same with ``mps: auto``, whose daemon is to run: nvidia-cuda-mps-control -d

Units per second: all units of the study over the time from the first job's start to the last one's end. Jobs at once
and shares are what the journal says; the card's memory is looked at through NVML every 50 ms, without what was in use
before.
A line fails where an attempt used more than its share and 10 %, or ended otherwise than well.

Where no NVIDIA GPU answers it says so and exits with 2. ``--cpu`` runs the same on the processors, to try the script
itself; no MPS then, and figures are not kept unless ``--out`` is named.

    python benchmarks/packing_gpu.py
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import result_file
from gpu_overhead import gpu

MB = 1_000_000
LIMIT = 3600
TOLERANCE = 1.1


def study(given: argparse.Namespace, packing: dict[str, Any]) -> dict[str, Any]:
    """The study file of one line."""
    return {
        "study": "packed",
        "objective": "packing_gpu_objective:train",
        "metric": {"name": "loss"},
        "space": {"lr": {"type": "float", "low": 1e-4, "high": 1e-2, "log": True}},
        "constants": {"width": given.width, "batch": 64, "loader_ms": given.loader_ms},
        "search": {"method": "random", "configs": given.jobs, "max_resource": given.units},
        "cluster": {"kind": "local", "workers": 1},
        "packing": {"oversubscribe": given.oversubscribe} | packing,
        "prefect": "off",
        "tracking": {"mlflow": "off"},
        "pythonpath": [str(result_file.ROOT)],
    }


class Card:
    """Looks at a card's memory while a study runs: the peak above what was in use before."""

    def __init__(self) -> None:
        self.peak = 0

    @contextlib.contextmanager
    def watched(self, on_cpu: bool) -> Iterator[None]:
        if on_cpu:
            yield
            return
        import pynvml

        pynvml.nvmlInit()
        device = pynvml.nvmlDeviceGetHandleByIndex(0)
        before, ended = pynvml.nvmlDeviceGetMemoryInfo(device).used, threading.Event()

        def look() -> None:
            while not ended.wait(0.05):
                self.peak = max(self.peak, pynvml.nvmlDeviceGetMemoryInfo(device).used - before)

        thread = threading.Thread(target=look)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()
            pynvml.nvmlShutdown()


def run(given: argparse.Namespace, packing: dict[str, Any]) -> dict[str, Any]:
    """One study in a home of its own, and its figures."""
    import yaml

    from hpo_core.model.events import AttemptFailed, JobCompleted

    with tempfile.TemporaryDirectory(prefix="hpo-bench-") as folder:
        (Path(folder) / "study.yaml").write_text(yaml.safe_dump(study(given, packing)))
        environment = os.environ | {"HPO_HOME": str(Path(folder) / "home")}
        card = Card()
        with card.watched(given.cpu):
            done = subprocess.run(
                [sys.executable, "-m", "hpo_flows", "tune", "study.yaml"],
                cwd=folder, env=environment, capture_output=True, text=True, timeout=LIMIT,
            )  # fmt: skip
        if done.returncode:
            raise SystemExit(f"hpo tune ended with {done.returncode}:\n{done.stdout}{done.stderr}")
        events = recorded(Path(folder) / "home")
    failed = [event for event in events if isinstance(event, AttemptFailed)]
    ended = [event for event in events if isinstance(event, JobCompleted)]
    found = figures(ended, failed, units=given.units, on_cpu=given.cpu)
    return found | {
        "card_peak_mb": None if given.cpu else round(card.peak / MB),
        "mps_off": "MPS is off" in done.stdout,
    }


def recorded(home: Path) -> list[Any]:
    """Ends of attempts, in order."""
    from hpo_core.home import Home

    journal = Home(home).read_journal()
    try:
        return [event for entry in journal.entries("packed") for event in entry.events if hasattr(event, "usage")]
    finally:
        journal.close()


def figures(ended: list[Any], failed: list[Any], *, units: int, on_cpu: bool) -> dict[str, Any]:
    """Throughput, jobs at once, memory and what was exceeded."""
    seconds = max(one.ended for one in ended) - min(one.started for one in ended)
    at_once = [sum(other.started <= one.started < other.ended for other in ended) for one in ended]
    peaks = [(one.usage.memory if on_cpu else one.usage.device_memory) or 0 for one in ended]
    over = [
        peak
        for one, peak in zip(ended, peaks, strict=True)
        if one.usage.share and peak > TOLERANCE * one.usage.share[1]
    ]
    return {
        "jobs": len(ended),
        "units_per_second": round(len(ended) * units / seconds, 2),
        "seconds": round(seconds, 2),
        "jobs_at_once": max(at_once),
        "job_peak_mb": round(max(peaks) / MB),
        "over_their_share": len(over),
        "failed_attempts": len(failed),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=32)
    parser.add_argument("--units", type=int, default=20, help="epochs of 2,048 samples")
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--loader-ms", type=float, default=2.0, help="of the processor, for each batch")
    parser.add_argument("--oversubscribe", type=float, default=1.0)
    parser.add_argument("--cpu", action="store_true", help="try the script without a card")
    parser.add_argument("--out", type=Path, help="JSON file (default benchmarks/results/packing_gpu.json)")
    given = parser.parse_args()
    facts = result_file.machine() if given.cpu else gpu() | result_file.machine()
    lines: dict[str, dict[str, Any]] = {"one after another": {"most": 1}, "packed": {}}
    if not given.cpu and shutil.which("nvidia-cuda-mps-control"):
        lines["packed, MPS"] = {"mps": "auto"}
    elif not given.cpu:
        print("nvidia-cuda-mps-control is not installed: no line with MPS.")
    found: dict[str, dict[str, Any]] = {}
    for name, packing in lines.items():
        began = time.monotonic()
        found[name] = run(given, packing)
        off = " (MPS was off, as the study said)" if found[name]["mps_off"] else ""
        print(f"  {name}: {time.monotonic() - began:.0f} s in all{off}", file=sys.stderr, flush=True)
    columns = ["units_per_second", "seconds", "jobs_at_once", "job_peak_mb", "card_peak_mb", "over_their_share"]
    result_file.table(
        [f"{given.jobs} jobs of {given.units} units", *(name.replace("_", " ") for name in columns), "failed attempts"],
        [[name, *(one[column] for column in columns), one["failed_attempts"]] for name, one in found.items()],
    )
    wrong = [name for name, one in found.items() if one["over_their_share"] or one["failed_attempts"]]
    if given.cpu and given.out is None:
        print("\nOn processors: the script works; these are no figures of a card, and none were kept.")
    else:
        settings = {name: getattr(given, name) for name in ("jobs", "units", "width", "loader_ms", "oversubscribe")}
        result_file.write("packing_gpu", facts, {"settings": settings, "figures": found}, given.out)
    if wrong:
        raise SystemExit(f"Limits were exceeded or attempts failed in: {', '.join(wrong)}")


if __name__ == "__main__":
    main()
