"""A study whose models hop, on real Dask workers with its SQL journal, without Prefect and MLflow.

``python driven.py FOLDER`` runs ``FOLDER/study.json``; :func:`run_study` does so in a process of its own and reads what
came of it. The workers are started from that process, so that they hold nothing of a benchmark's own imports.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec

from hpo_core.home import Home
from hpo_core.model.trial import Job, Report
from hpo_core.study import Study

HERE = str(Path(__file__).resolve().parent)


class Ended(msgspec.Struct):
    """A job, and what it came to: with the curve, which the journal holds for few methods alone."""

    params: dict[str, Any]
    report: Report


class Noting:
    """Observer that keeps what jobs came to."""

    def __init__(self, study: Study) -> None:
        self._study = study
        self.ended: list[Ended] = []

    def on_report(self, report: Report, granted: list[Job]) -> None:
        self.ended.append(Ended(self._study.state.trials[report.trial].params, report))

    def on_tick(self) -> None: ...

    def close(self) -> None: ...


def run_study(folder: Path, plain: dict[str, Any], *, seconds: float) -> list[Ended]:
    """Run it to its end; returns its results.

    Args:
        folder: new; for the study file and the home of the study.
        plain: the study file.
        seconds: that it may take.
    """
    folder.mkdir(parents=True)
    more = {"pythonpath": [HERE], "tracking": {"mlflow": "off"}}
    (folder / "study.json").write_text(json.dumps(more | plain))
    done = subprocess.run([sys.executable, __file__, str(folder)], capture_output=True, text=True, timeout=seconds)
    if done.returncode or done.stdout.split()[-1:] != ["finished"]:
        raise SystemExit(f"the study did not finish: {done.stdout[-500:]}\n{done.stderr[-2000:]}")
    return msgspec.msgpack.decode((folder / "ended.msgpack").read_bytes(), type=list[Ended])


def main(folder: Path) -> None:
    from hpo_core.spec import StudySpec
    from hpo_flows.study_run.session import Session

    spec = StudySpec.from_plain(json.loads((folder / "study.json").read_text()))
    session = Session(Home(folder / "home"), spec.study, spec=spec)
    made: list[Noting] = []

    def noting(study: Study) -> Noting:
        made.append(Noting(study))
        return made[-1]

    session.add_observer(noting)
    try:
        study, _ = session.run()
    finally:
        session.close()
    (folder / "ended.msgpack").write_bytes(msgspec.msgpack.encode(made[-1].ended))
    print(study.status, flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
