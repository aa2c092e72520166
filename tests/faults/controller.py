"""A controller for the fault tests: real Dask, real children, SQL journal; no Prefect, no MLflow, quick to start.

``python -m tests.faults.controller HOME STUDY.json`` creates the study or goes on with it.
"""

from __future__ import annotations

import json
import signal
import sys
from pathlib import Path


def _interrupt(_number: int, _frame: object) -> None:
    raise KeyboardInterrupt


def main(home_folder: str, study_file: str) -> None:
    from hpo_core.home import Home  # here: every worker imports this module
    from hpo_core.spec import StudySpec
    from hpo_flows.study_run.session import Session

    signal.signal(signal.SIGTERM, _interrupt)  # as `hpo` does
    home = Home(home_folder)
    spec = StudySpec.from_plain(json.loads(Path(study_file).read_text()))
    names = [info.name for info in home.open_journal().studies()]
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as `hpo` does
    session = Session(home, spec.study, spec=None if spec.study in names else spec)
    try:
        study, _ = session.run()
        print(study.status, flush=True)
    finally:
        session.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
