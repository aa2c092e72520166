"""Workers that do not see the study's folder or the objective's file say so, with the cure."""

from __future__ import annotations

import subprocess
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from hpo_core.execution.loop import Loop
from hpo_core.model.errors import SpecError
from hpo_core.study import Study
from hpo_flows.dask.executor import DaskExecutor
from tests.conftest import make_spec
from tests.dask_processes import DaskProcesses

CURE = "shared file system.* package"


@pytest.fixture
def hidden(tmp_path: Path) -> Path:
    folder = tmp_path / "hidden"
    folder.mkdir(mode=0o700)
    if subprocess.run(["unshare", "-m", "mount", "-t", "tmpfs", "none", folder], capture_output=True).returncode:
        pytest.skip("this machine forbids mounts")
    return folder


def executor(dask_processes: DaskProcesses, folder: Path, **changes: Any) -> DaskExecutor:
    search = {"method": "random", "configs": 2, "max_resource": 1}
    settings = {"objective": "absent_elsewhere:train", "cluster": dask_processes.cluster, "search": search} | changes
    return DaskExecutor(make_spec(**settings), str(folder))


def write_objective(folder: Path) -> dict[str, list[str]]:
    code = "def train(trial):\n    for _ in trial.steps():\n        trial.report(loss=trial.params['x'])\n"
    folder.mkdir(exist_ok=True)
    (folder / "absent_elsewhere.py").write_text(code)
    return {"pythonpath": [str(folder)]}


def test_an_objective_whose_file_a_worker_lacks_is_refused(
    tmp_path: Path, dask_processes: DaskProcesses, hidden: Path
) -> None:
    dask_processes.add_worker("one", hidden=hidden)
    one = executor(dask_processes, tmp_path / "study", **write_objective(hidden))
    with closing(one), pytest.raises(SpecError, match=f"Dask worker tcp.*no module 'absent_elsewhere'.*{CURE}"):
        one.start()


@pytest.mark.slow
def test_a_study_halts_with_the_cure_where_a_later_worker_does_not_see_the_folder(
    tmp_path: Path, dask_processes: DaskProcesses, hidden: Path
) -> None:
    dask_processes.add_worker("seeing")
    with closing(executor(dask_processes, hidden / "study", **write_objective(tmp_path / "code"))) as one:
        one.start()
        dask_processes.add_worker("later", hidden=hidden)
        dask_processes.kill("seeing")
        study = Study.create(one._spec)
        assert Loop(study, one).run() == "halted"
        assert study.state.halted is not None
        assert f"does not see the study's folder {hidden}" in study.state.halted.reason
        study.check()
