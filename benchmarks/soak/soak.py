"""Soak: real studies while a script kills, stops and restarts everything they consist of, at random.

Two lanes run at once on one PostgreSQL journal, each one study after the other: ASHA, Hyperband, PASHA, PBT, ASHA
with TPESampler, and ASHA, random search and PBT whose models hop over four partitions. One lane has a Prefect API
configured, the other the server that studies start by themselves. Every few seconds one of these is done to each
lane: SIGKILL, SIGTERM, or SIGSTOP for 20 to 90 seconds, to the controller; SIGKILL or SIGSTOP to a Dask worker, a
zygote, a training child, the MLflow follower, the Prefect server, PostgreSQL (which, killed, is away for 2 to 25
seconds). While models hop, a partition is deleted and copied back, replaced by another one of the same size, written
to, or the folder of all is moved away for 2 to 25 seconds or a moment. A controller that ended is started again (`hpo
resume`). After ``--minutes`` nothing is broken any more, no study begins, and those that run end.

In the end each study must be finished and its audit clean; every result must be, to the bit, what an uninterrupted
training gives, and recorded once; no trial is blamed for a partition; each model saw each partition once an epoch;
checkpoints on disk are those that are needed; MLflow has every trial once and no step twice; and no process is left.
Exit code 1 where one of these does not hold.

    python benchmarks/soak/soak.py --minutes 40
    python benchmarks/soak/soak.py --minutes 20 --studies hop-asha hop-random hop-pbt
    python benchmarks/soak/soak.py --minutes 20 --load 24      # beside 24 processes that compute
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

import result_file  # noqa: E402
from checks import figures_of, log_tail, problems_in_mlflow, problems_of  # noqa: E402
from faults import MARKER, Fault, Saboteur, marked  # noqa: E402
from partitions import Partitions  # noqa: E402
from services import PostgreSQL, PrefectApi, with_group  # noqa: E402

from hpo_core.home import Home  # noqa: E402
from hpo_core.model.errors import HpoError  # noqa: E402

WORKERS = 3
UNIT_SECONDS = 1.0
STUDIES: dict[str, dict[str, Any]] = {
    "asha": {"search": {"method": "asha", "configs": 90, "min_resource": 1, "max_resource": 27, "reduction_factor": 3}},
    "pbt": {"search": {"method": "pbt", "population": 6, "generations": 8, "steps_per_generation": 4}},
    "hyperband": {"search": {"method": "hyperband", "max_resource": 27, "reduction_factor": 3}},
    "pasha": {
        "search": {"method": "pasha", "configs": 90, "min_resource": 1, "max_resource": 27, "reduction_factor": 3}
    },
    "asha-tpe": {
        "search": {"method": "asha", "configs": 90, "min_resource": 1, "max_resource": 27, "reduction_factor": 3},
        "sampler": {"name": "TPESampler", "n_startup_trials": 10},
    },
    "hop-asha": {"search": {"method": "asha", "configs": 60, "max_resource": 9, "reduction_factor": 3}},
    "hop-random": {"search": {"method": "random", "configs": 16, "max_resource": 6}},
    "hop-pbt": {"search": {"method": "pbt", "population": 6, "generations": 6, "steps_per_generation": 2}},
}
HOPPING = "hop-"
"""Models of these hop over partitions, which are broken as well."""
LOADED = "hop-asha"
"""Of these ``data.load`` reads the partitions; the others' training function does."""
QUIET_SECONDS = 240.0
"""How long what a study started may take to end after it."""
SILENT_SECONDS = 900.0
"""A study that records nothing for so long is wedged, whatever is done to it."""
STUDY_SECONDS = 3600.0
LOOK_SECONDS = 3.0


class Lane:
    """Runs studies one after the other, and starts their controllers again when they end early."""

    def __init__(self, name: str, folder: Path, journal: str, prefect: bool, faults: tuple[float, float], seed: int):
        self.name = name
        self.folder = folder
        self.prefect = prefect
        self.marker = f"{os.getpid()}-{name}"
        self.home = Home(folder / "home", journal)
        self.environment = os.environ | {
            MARKER: self.marker,
            "HPO_HOME": str(folder / "home"), "HPO_JOURNAL": journal, "HOME": str(folder), "COLUMNS": "120",
            "PREFECT_SERVER_ANALYTICS_ENABLED": "false", "DO_NOT_TRACK": "1",
        }  # fmt: skip
        for setting in ("PREFECT_API_URL", "MLFLOW_TRACKING_URI"):
            self.environment.pop(setting, None)
        self.api: PrefectApi | None = None
        self.partitions = Partitions(folder / "partitions", random.Random(seed))
        self.saboteur = Saboteur(
            name, self.marker, random.Random(seed), faults, {}, partitions=self.partitions.faults()
        )
        self.results: list[dict[str, Any]] = []
        self.runs = 0
        self._known = 0
        self._news = 0.0

    def start(self) -> None:
        if self.prefect:
            plain = {key: value for key, value in self.environment.items() if key != MARKER}
            self.api = PrefectApi(self.folder / "prefect", plain)
            self.api.start()
            self.api.wait()
            self.environment["PREFECT_API_URL"] = self.api.url
            self.saboteur.servers["prefect", "killed"] = self._prefect_away
            self.saboteur.servers["prefect", "stopped"] = self._prefect_stopped
        threading.Thread(target=self.saboteur.run, daemon=True).start()

    def _prefect_away(self, seconds: float) -> None:
        assert self.api is not None
        self.api.kill()
        time.sleep(seconds)
        self.api.start()

    def _prefect_stopped(self, seconds: float) -> None:
        assert self.api is not None
        self.api.stop_for(seconds)

    def close(self) -> None:
        self.saboteur.end()
        if self.api is not None:
            self.api.kill()

    def run(self, kind: str, number: int) -> dict[str, Any]:
        """One study to its end, and what is to be said of it."""
        name = f"{kind}-{self.name}-{number}"
        study = {
            "study": name,
            "objective": "objective:train",
            "pythonpath": [str(HERE)],
            "metric": {"name": "loss"},
            "space": {"x": {"type": "float", "low": -1.0, "high": 1.0}},
            "seed": number,
            "cluster": {"kind": "local", "workers": WORKERS},
            "training": {"stall_timeout": 60.0},
            **STUDIES[kind],
        }
        self.saboteur.hopping = kind.startswith(HOPPING)
        if self.saboteur.hopping:
            load = {"load": "objective:read"} if kind == LOADED else {}
            data = {"partitions": self.partitions.listed(), "folder": str(self.partitions.folder), **load}
            study |= {"objective": "objective:hop", "data": data}
        file = self.folder / f"{name}.json"
        file.write_text(json.dumps(study))
        before = len(self.saboteur.faults)
        log = self.folder / f"{name}.log"
        problems = self._drive(name, file, log)
        faults = self.saboteur.faults[before:]
        problems += self._left_over()
        self._look(name, patient=True)  # the journal's database may still be away
        try:
            problems += problems_of(self.home, name)
            self._hpo(log, "project", name)
            problems += problems_in_mlflow(self.home, name)
            figures = figures_of(self.home, name, faults, WORKERS, UNIT_SECONDS)
        except Exception as error:
            problems.append(f"{type(error).__name__}: {error}")
            figures = {"study": name, "faults": len(faults)}
        if problems:
            figures["log_tail"] = log_tail(log)
        print(f"{time.strftime('%H:%M:%S')} {name}: {'; '.join(problems[:5]) or 'whole'}; {brief(figures)}", flush=True)
        return figures | {"lane": self.name, "problems": problems}

    def _drive(self, name: str, file: Path, log: Path) -> list[str]:
        deadline = time.monotonic() + STUDY_SECONDS
        self._known, self._news = 0, time.monotonic()
        self.saboteur.study = name
        try:
            while time.monotonic() < deadline:
                known = self._look(name, patient=True)
                code = self._hpo(log, "resume", name, study=name) if known else self._hpo(log, "tune", file, study=name)
                if code == 0:
                    return []
                if time.monotonic() - self._news > SILENT_SECONDS:
                    return [f"wedged: nothing was recorded for {SILENT_SECONDS:.0f} s"]
                time.sleep(1.0)
            return [f"not finished within {STUDY_SECONDS:.0f} s"]
        finally:
            self.saboteur.study = ""

    def _hpo(self, log: Path, *arguments: object, study: str = "") -> int:
        """Run the command to its end; with ``study`` watch what it records."""
        self.runs += 1
        command = [sys.executable, "-m", "hpo_flows", *map(str, arguments)]
        with log.open("ab") as out:
            out.write(f"\n== {time.strftime('%H:%M:%S')} {' '.join(command[2:])}\n".encode())
            out.flush()
            process = subprocess.Popen(
                command, stdout=out, stderr=out, env=self.environment, cwd=self.folder, start_new_session=True
            )
        before = self._known
        self.saboteur.started = False
        self.saboteur.controller = process.pid
        deadline = time.monotonic() + STUDY_SECONDS
        while process.poll() is None and time.monotonic() < deadline:
            time.sleep(LOOK_SECONDS)
            if study:
                self.saboteur.started = self._look(study) > before
                if time.monotonic() - self._news > SILENT_SECONDS:
                    break
        if process.poll() is None:
            process.kill()
        code = process.wait()
        with log.open("ab") as out:
            out.write(f"== {time.strftime('%H:%M:%S')} exit code {code}\n".encode())
        return code

    def _look(self, name: str, *, patient: bool = False) -> int:
        """Entries of a study as far as known; its database may be away for a while."""
        for _ in range(120 if patient else 1):
            try:
                journal = self.home.open_journal()
                try:
                    found = next((info.entries for info in journal.studies() if info.name == name), 0)
                finally:
                    journal.close()
            except HpoError:
                if patient:
                    time.sleep(1.0)
                continue
            if found > self._known:
                self._known, self._news = found, time.monotonic()
            return found
        if patient:
            raise RuntimeError("The journal's database did not come back.")
        return self._known

    def _left_over(self) -> list[str]:
        """Processes of the study that are still there; what was stopped is woken first."""
        deadline = time.monotonic() + QUIET_SECONDS
        while (left := marked(self.marker)) and time.monotonic() < deadline:
            time.sleep(1.0)
        found = []
        for process in left:
            found.append(f"process left: {' '.join(process.cmdline())[:150]}")
            process.kill()
        return found


def brief(figures: dict[str, Any]) -> str:
    return ", ".join(
        f"{key} {value}" for key, value in figures.items() if not isinstance(value, list) and key != "log_tail"
    )


def burn(count: int) -> list[subprocess.Popen[bytes]]:
    """Processes that compute, so that the machine is busy."""
    code = "while True: sum(range(10**6))"
    return [subprocess.Popen([sys.executable, "-c", code], start_new_session=True) for _ in range(count)]


def by_kind(results: list[dict[str, Any]]) -> list[list[Any]]:
    """For each kind of fault: how many, and for how long results were held up after it."""
    held: dict[str, list[float]] = {}
    for result in results:
        for kind, _, seconds in result.get("held_up", []):
            held.setdefault(kind, []).append(seconds)
    return [
        [kind, len(found), round(sum(found) / len(found), 1), round(max(found), 1)]
        for kind, found in sorted(held.items())
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=40.0, help="nothing is broken, no study is begun after that")
    parser.add_argument("--load", type=int, default=0, help="so many processes compute meanwhile")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--every", type=float, nargs=2, default=(6.0, 16.0), help="seconds between two faults of a lane"
    )
    parser.add_argument("--studies", nargs="*", choices=STUDIES, default=list(STUDIES))
    parser.add_argument("--keep", action="store_true", help="leave logs and homes behind")
    parser.add_argument("--out", help="default: results/soak.json, or soak_hopping.json of such studies alone")
    args = parser.parse_args()
    facts = result_file.machine()
    folder = Path(tempfile.mkdtemp(prefix="hpo-soak-"))
    folder.chmod(0o755)  # PostgreSQL's own user must get through
    database = PostgreSQL(folder / "postgresql")
    database.start()
    database_lock = threading.Lock()

    def database_away(seconds: float) -> None:
        with database_lock:
            database.crash()
            time.sleep(seconds)
            database.start()

    def database_stopped(seconds: float) -> None:
        with database_lock:
            database.stop_for(seconds)

    burners = burn(args.load)
    lanes = [
        Lane("own", folder / "own", database.url, False, tuple(args.every), args.seed),
        Lane("api", folder / "api", database.url, True, tuple(args.every), args.seed + 1),
    ]
    lanes[0].saboteur.servers["postgresql", "killed"] = database_away
    lanes[0].saboteur.servers["postgresql", "stopped"] = database_stopped
    began = time.monotonic()
    for lane in lanes:
        lane.saboteur.until = began + args.minutes * 60
    queue = itertools.cycle(enumerate_forever(args.studies))
    lock = threading.Lock()
    results: list[dict[str, Any]] = []
    loads: list[float] = []

    def work(lane: Lane) -> None:
        lane.start()
        while time.monotonic() - began < args.minutes * 60:
            with lock:
                number, kind = next(queue)
            result = lane.run(kind, number)
            with lock:
                results.append(result)
                loads.append(os.getloadavg()[0])

    threads = [threading.Thread(target=work, args=(lane,)) for lane in lanes]
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        for lane in lanes:
            lane.close()
        for burner in burners:
            with_group(burner.pid, signal.SIGKILL)
            burner.wait()
        database.stop()
    report(args, facts, results, loads, lanes, time.monotonic() - began)
    if not args.keep and not any(result["problems"] for result in results):
        subprocess.run(["rm", "-rf", str(folder)], check=False)
    else:
        print(f"kept: {folder}")
    if any(result["problems"] for result in results):
        raise SystemExit(1)


def enumerate_forever(kinds: list[str]) -> list[tuple[int, str]]:
    """Numbered, so that names and seeds differ from round to round."""
    return [(round_ * len(kinds) + i + 1, kind) for round_ in range(1000) for i, kind in enumerate(kinds)]


def report(
    args: argparse.Namespace, facts: dict[str, Any], results: list[dict[str, Any]], loads: list[float],
    lanes: list[Lane], seconds: float,
) -> None:  # fmt: skip
    faults: list[Fault] = [fault for lane in lanes for fault in lane.saboteur.faults]
    head = ["study", "results", "controllers", "attempts lost", "faults", "wall s", "training s", "lost s per fault"]
    keys = [
        "study",
        "results",
        "controllers",
        "attempts_lost",
        "faults",
        "wall_seconds",
        "ideal_seconds",
        "lost_seconds_per_fault",
    ]
    result_file.table(head, [[result.get(key) for key in keys] for result in results])
    print()
    result_file.table(["fault", "times", "results held up s, mean", "at most"], by_kind(results))
    for result in results:
        for problem in result["problems"]:
            print(f"{result['study']}: {problem}")
    figures = {
        "minutes": round(seconds / 60, 1),
        "burners": args.load,
        "loads_at_ends": [round(load, 1) for load in loads],
        "faults": len(faults),
        "controllers_started": sum(lane.runs for lane in lanes),
        "studies": [{k: v for k, v in result.items() if k not in ("held_up", "log_tail")} for result in results],
        "held_up_by_kind": by_kind(results),
    }
    name = "soak_hopping" if all(kind.startswith(HOPPING) for kind in args.studies) else "soak"
    result_file.write(f"{name}_loaded" if args.load else name, facts, figures, args.out)


if __name__ == "__main__":
    main()
