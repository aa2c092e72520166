"""Run as a script: everything of the core that must work without Prefect, Dask, MLflow and torch.

Arguments: a study file, a folder for the home, and the packages whose import is refused.
"""

from __future__ import annotations

import contextlib
import importlib
import pkgutil
import sys
from importlib.abc import MetaPathFinder
from typing import Any

OPTIONAL = {"hpo_core.integrations.lightning", "hpo_core.integrations.huggingface", "hpo_core.samplers.ranked_gp"}
"""They need packages of extras: Lightning, Hugging Face, SciPy."""


class Blocked(MetaPathFinder):
    """Refuses to import packages, as if they were not installed."""

    def __init__(self, packages: set[str]) -> None:
        self._packages = packages

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> None:
        if name.partition(".")[0] in self._packages:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


def main(study_file: str, home: str, *blocked: str) -> None:
    sys.meta_path.insert(0, Blocked(set(blocked)))
    import hpo_core

    for module in pkgutil.walk_packages(hpo_core.__path__, "hpo_core."):
        if module.name not in OPTIONAL and not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    search(study_file, home)
    command("list", "--home", home)
    command("report", "alone", "--home", home)
    command("audit", "alone", "--home", home)
    command("simulate", study_file, "--repeat", "2", "--home", home)
    with contextlib.suppress(SystemExit):
        command("tune", study_file, "--home", f"{home}/not-made")
    print("loaded:", sorted(name for name in blocked if name in sys.modules))


def search(study_file: str, home: str) -> None:
    """A study of the journal, trained in this process by hand."""
    from hpo_core import Outcome, Report, Study, load_spec
    from hpo_core.home import Home

    study = Study.create(load_spec(study_file), Home(home).open_journal())
    study.set_capacity(1)
    while study.state.running:
        (job,) = study.state.wanted()
        loss = (job.params["x"] - 0.3) ** 2 + 1 / job.target
        study.tell_report(
            Report(trial=job.trial, attempt=job.attempt, outcome=Outcome.COMPLETED, metrics={"loss": loss})
        )
    print("status:", study.status, "jobs:", study.state.completed_jobs)


def command(*arguments: str) -> None:
    from hpo_core.cli.app import run
    from hpo_flows.command import app

    sys.argv = ["hpo", *arguments]
    with contextlib.suppress(SystemExit) if arguments[0] != "tune" else contextlib.nullcontext():
        run(app)


if __name__ == "__main__":
    main(*sys.argv[1:])
