"""Seconds from the command to the first running job, and from the last result to the prompt.

``hpo tune`` in a terminal of its own (a pty), two local workers, everything on, in three modes: the home's own Prefect
server, started for the study (``default``); a server that runs already (``PREFECT_API_URL``); ``--no-prefect``. The
start ends where the first training function begins, the end begins where the journal takes the last result. ``left``
is how much longer processes of the study work after the prompt: MLflow's rest, the end of the pages.

Two more modes time the call from a script: ``hpo.tune``, with everything on as by default, and ``home=None``, which
keeps nothing. There the start begins with the call (``import hpo_core`` is before it, what the call imports is not)
and the end ends where it returns.

With ``--before FOLDER``, a checkout of an earlier version, both are measured in turn: what else the machine does hits
both alike. ``cpu`` is what the command and its ended children used, in seconds; it hardly depends on the load.

    git worktree add ../before COMMIT && python benchmarks/start_end.py --before ../before
"""

from __future__ import annotations

import argparse
import json
import os
import pty
import resource
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import psutil
import result_file

ROOT = result_file.ROOT.parent
CALLS = {"hpo.tune": "home", "home=None": None}
"""Modes of the call: the home that it is given."""
MODES = ("default", "PREFECT_API_URL", "--no-prefect", *CALLS)
OWN = ("PREFECT_", "MLFLOW_", "HPO_")
LEFT_SECONDS = 90.0
OBJECTIVE = """
import time
def train(trial):
    for _ in trial.steps():
        time.sleep({seconds})
        trial.report(loss=trial.params["x"])
"""

SCRIPT = """
import json
import time
import hpo_core as hpo

def train(trial):
    for _ in trial.steps():
        began = time.time()
        time.sleep({seconds})
        trial.report(loss=trial.params["x"], began=began)

called = time.time()
result = hpo.tune(
    train, {{"x": hpo.Float(0, 1)}}, metric="loss", method=hpo.Random(configs={jobs}, max_resource=1), workers=2,
    name="timed", home={home!r},
)
returned = time.time()
began = result.results["began"]
print(json.dumps({{"start": began.min() - called, "end": returned - began.max() - {seconds}}}))
"""


def measure_call(mode: str, code: Path, jobs: int, *, seconds: float, limit: float) -> dict[str, Any]:
    """One script that calls ``hpo.tune``."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith(OWN)}
    environment["PYTHONPATH"] = os.pathsep.join([str(code), str(code / "flows")])
    with tempfile.TemporaryDirectory(prefix="hpo-bench-", ignore_cleanup_errors=True) as name:
        script = Path(name) / "script.py"
        script.write_text(SCRIPT.format(seconds=seconds, jobs=jobs, home=CALLS[mode] and str(Path(name) / CALLS[mode])))
        used, load = resource.getrusage(resource.RUSAGE_CHILDREN), os.getloadavg()[0]
        try:
            ended = subprocess.run(
                [sys.executable, script], cwd=name, env=environment, capture_output=True, text=True, timeout=limit
            )
        except subprocess.TimeoutExpired:
            return {"error": f"longer than {limit:g} s"}
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        if ended.returncode:
            return {"error": ended.stderr[-300:]}
        times = json.loads(ended.stdout.splitlines()[-1])
        return {
            "start": round(times["start"], 2),
            "end": round(times["end"], 2),
            "left": _left(Path(name)),
            "cpu": round(after.ru_utime + after.ru_stime - used.ru_utime - used.ru_stime, 1),
            "load": round(load, 1),
        }


def measure(mode: str, code: Path, jobs: int, *, seconds: float, limit: float) -> dict[str, Any]:
    """One command in a home of its own."""
    plain = {
        "study": "timed",
        "objective": "timed_objective:train",
        "metric": {"name": "loss"},
        "space": {"x": {"type": "float", "low": 0.0, "high": 1.0}},
        "search": {"method": "random", "configs": jobs, "max_resource": 1},
        "cluster": {"kind": "local", "workers": 2},
    }
    environment = {key: value for key, value in os.environ.items() if not key.startswith(OWN)}
    environment["PYTHONPATH"] = os.pathsep.join([str(code), str(code / "flows")])
    with tempfile.TemporaryDirectory(prefix="hpo-bench-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        (folder / "timed_objective.py").write_text(OBJECTIVE.format(seconds=seconds))
        (folder / "study.yaml").write_text(json.dumps(plain | {"pythonpath": [name]}))  # JSON is YAML
        command = [sys.executable, "-m", "hpo_flows", "tune", "study.yaml", "--home", str(folder / "home")]
        server = None
        if mode == "--no-prefect":
            command.append(mode)
        elif mode == "PREFECT_API_URL":
            server = _server(folder)
            environment |= server.client_settings()
        try:
            return _timed(command, folder, environment, limit)
        finally:
            if server is not None:
                server.close()


def _server(folder: Path) -> Any:
    from hpo_flows.prefect_api.shared_server import SharedServer

    server = SharedServer(folder / "server")
    server.start()
    server.wait()
    return server


def _timed(command: list[str], folder: Path, environment: dict[str, str], limit: float) -> dict[str, Any]:
    ours, theirs = pty.openpty()
    printed: list[bytes] = []

    def read() -> None:
        try:
            while data := os.read(ours, 65536):
                printed.append(data)
        except OSError:  # the other end is closed
            return

    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    load = os.getloadavg()[0]
    began = time.time()
    process = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=theirs, stderr=theirs, cwd=folder, env=environment
    )
    os.close(theirs)
    threading.Thread(target=read, daemon=True).start()
    try:
        code = process.wait(limit)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        return {"error": f"longer than {limit:g} s"}
    ended = time.time()
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if code:
        return {"error": b"".join(printed)[-300:].decode(errors="replace")}
    first, last = _from_journal(folder / "home")
    return {
        "start": round(first - began, 2),
        "end": round(ended - last, 2),
        "left": _left(folder),
        "cpu": round(after.ru_utime + after.ru_stime - used.ru_utime - used.ru_stime, 1),
        "load": round(load, 1),
    }


def _from_journal(home: Path) -> tuple[float, float]:
    """When the first job began and when the last result was taken in."""
    with closing(sqlite3.connect(home / "journal.db")) as database:  # read here: an earlier version has another format
        bodies = database.execute("SELECT body FROM hpo_entries WHERE study = 'timed' ORDER BY seq").fetchall()
    entries = [entry for (body,) in bodies if "report" in (entry := json.loads(body))["stimulus"]]
    return min(entry["stimulus"]["report"]["started"] for entry in entries), entries[-1]["time"]


def _left(folder: Path) -> float:
    """Seconds until no process of the study works any more."""
    began = time.monotonic()
    while time.monotonic() - began < LEFT_SECONDS:
        if not any(_is_of(process, folder) for process in psutil.process_iter()):
            break
        time.sleep(0.1)
    return round(time.monotonic() - began, 1)


def _is_of(process: psutil.Process, folder: Path) -> bool:
    try:
        words = " ".join(process.cmdline())
    except psutil.Error:
        return False
    return str(folder) in words and str(folder / "server") not in words


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--before", type=Path, help="checkout of an earlier version, measured in turn with this one")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=40)
    parser.add_argument("--job-seconds", type=float, default=0.5)
    parser.add_argument("--limit", type=float, default=400.0, help="longest time of one command")
    parser.add_argument("--mode", action="append", choices=MODES, help="measure this one (repeatable)")
    parser.add_argument("--out", type=Path, help="JSON file (default benchmarks/results/start_end.json)")
    given = parser.parse_args()
    facts = result_file.machine()
    codes = {"before": given.before.resolve()} if given.before else {}
    codes["now"] = ROOT
    found: dict[str, list[dict[str, Any]]] = {}
    for _ in range(given.rounds):
        for mode in given.mode or MODES:
            for word, code in codes.items():
                timed = measure_call if mode in CALLS else measure
                one = timed(mode, code, given.jobs, seconds=given.job_seconds, limit=given.limit)
                print(f"{mode}, {word}: {one}", flush=True)
                found.setdefault(f"{mode}, {word}", []).append(one)
    rows = []
    for name, every in found.items():
        good = [one for one in every if "error" not in one]
        rows.append([name, *(_words([one[key] for one in good]) for key in ("start", "end", "left", "cpu", "load"))])
    print()
    result_file.table(["", "start s", "end s", "left s", "cpu s", "load"], rows)
    print("lowest (median)")
    result_file.write("start_end", facts, {"jobs": given.jobs, "runs": found}, given.out)


def _words(values: list[float]) -> str:
    return f"{min(values):g} ({statistics.median(values):g})" if values else "-"


if __name__ == "__main__":
    main()
