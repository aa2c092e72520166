"""A flow whose tasks run on prefect-dask's cluster hands that cluster to a search, as its how-to shows."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.flows.conftest import LIMIT, ROOT, Runner
from tests.flows.test_study_flow import flow_runs, task_runs

pytestmark = pytest.mark.slow


def test_a_task_on_prefect_dask_searches_on_its_cluster(hpo: Runner, tmp_path: Path) -> None:
    pytest.importorskip("prefect_dask", reason="tests/requirements-slow.lock has it")
    page = (ROOT / "docs" / "how-to" / "tune-inside-my-own-flow.md").read_text()
    (code,) = [part for part in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if "DaskTaskRunner" in part]
    script = tmp_path / "pipeline.py"
    script.write_text(code + '\n\nif __name__ == "__main__":\n    print("best", pipeline())\n')
    done = subprocess.run(
        [sys.executable, script], cwd=tmp_path, env=hpo.environment, capture_output=True, text=True, timeout=LIMIT
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"^best \d", done.stdout, re.MULTILINE)
    (run,) = flow_runs(hpo, "tune-on-prefect-dask")
    assert run["state_type"] == "COMPLETED" and run["parent_task_run_id"] is not None
    assert [one["state_type"] for one in task_runs(hpo, run, count=10)] == ["COMPLETED"] * 10
