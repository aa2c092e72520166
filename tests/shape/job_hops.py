"""The way of one job through the code: which functions it passes from `hpo tune` to its row in the report.

A small plain ASHA study runs for real, and every process of it notes the functions that are entered with the job of
trial 0 (a value that has its trial and attempt, one that has such a job, its encoded bytes, or a collection of such
values), and the functions that are on the stack then. Each function counts once; one that hands the job back to its
caller is a return as well. The trials are of bracket 1, so that (0, 0) is no rung but the attempt alone.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

from tests.shape.imports import ROOT

STUDY = """
study: hops
objective: hops_objective:train
metric: {name: loss, mode: min}
space: {x: {type: float, low: 0.0, high: 1.0}}
search: {method: asha, configs: 4, min_resource: 1, max_resource: 9, brackets: [1]}
cluster: {kind: local, workers: 1}
tracking: {mlflow: "off"}
"""
OBJECTIVE = """
def train(trial):
    for step in trial.steps():
        trial.report(loss=trial.params["x"] / (step + 1))
"""
NOTER = r"""
import atexit, os, sys, threading
FOLDER = os.environ.get("HPO_HOPS")
if FOLDER:
    ROOTS = tuple(os.environ["HPO_HOPS_ROOTS"].split(":"))
    known, file = {}, {}
    def name_of(code):
        found = known.get(code)
        if found is None:
            path = code.co_filename
            ours = path.startswith(ROOTS)
            found = known[code] = f"{path}:{code.co_qualname}" if ours and code.co_name[0] != "<" else ""
        return found
    ENCODED = b"\xa5trial\x00\xa7attempt\x00"  # as MessagePack has it in a request or a report
    def is_job(value):
        if type(value) is tuple and value == (0, 0):
            return True
        if type(value) in (bytes, bytearray):
            return ENCODED in value
        for job_of in (lambda one: one, lambda one: one.job, lambda one: one.request.job):
            try:
                job = job_of(value)
                if job.trial == 0 and job.attempt == 0:
                    return True
            except Exception:
                pass
        return False
    def holds(value):
        if is_job(value):
            return True
        if isinstance(value, (list, tuple)) and len(value) < 100:
            return any(is_job(one) or isinstance(one, tuple) and any(is_job(each) for each in one) for one in value)
        return False
    said = set()
    def say(kind, name):
        if (os.getpid(), kind, name) in said:
            return
        said.add((os.getpid(), kind, name))
        line = f"{kind} {name}\n".encode()
        number = os.open(f"{FOLDER}/{os.getpid()}", os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o600)
        os.write(number, line)
        os.close(number)
    def profile(frame, event, value):
        if event == "call":
            name = name_of(frame.f_code)
            if not name:
                return
            code = frame.f_code
            names = code.co_varnames[:code.co_argcount + code.co_kwonlyargcount]
            if any(holds(frame.f_locals.get(one)) for one in names):
                while frame is not None:
                    if name := name_of(frame.f_code):
                        say("hop", name)
                    frame = frame.f_back
        elif event == "return" and value is not None:
            name = name_of(frame.f_code)
            if name and holds(value):
                say("return", name)
    threading.setprofile(profile)
    sys.setprofile(profile)
"""


class Way(NamedTuple):
    """What one job passed."""

    hops: frozenset[str]
    """Functions, as ``path:qualified name``."""
    returns: frozenset[str]
    """Those that gave the job to their caller."""

    @property
    def modules(self) -> set[str]:
        """Files of the functions."""
        return {name.partition(":")[0] for name in self.hops}


def way_of_a_job(root: Path = ROOT) -> Way:
    """Run the study with the packages in ``root``, and read what its processes noted."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        for name, text in (("study.yaml", STUDY), ("hops_objective.py", OBJECTIVE), ("sitecustomize.py", NOTER)):
            (folder / name).write_text(text)
        (folder / "noted").mkdir()
        packages = f"{root}:{root / 'flows'}"
        environment = os.environ | {
            "PYTHONPATH": f"{folder}:{packages}",
            "HPO_HOPS": str(folder / "noted"),
            "HPO_HOPS_ROOTS": f"{root / 'hpo_core'}:{root / 'flows'}",
            "HPO_HOME": str(folder / "home"),
            "HOME": str(folder),
        }
        done = subprocess.run(
            [sys.executable, "-P", "-m", "hpo_flows", "tune", "study.yaml", "--no-prefect"],
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
            timeout=600,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        lines = {line for path in (folder / "noted").iterdir() for line in path.read_text().splitlines()}
    prefix = f"{root}/"
    named = {
        kind: frozenset(line.split(" ", 1)[1].removeprefix(prefix) for line in lines if line.startswith(kind))
        for kind in ("hop", "return")
    }
    return Way(named["hop"], named["return"])


if __name__ == "__main__":
    found = way_of_a_job(Path(sys.argv[1]).resolve() if sys.argv[1:] else ROOT)
    print(json.dumps(sorted(found.hops), indent=0))
    print(len(found.hops), "hops", len(found.modules), "modules", len(found.returns), "returns")
