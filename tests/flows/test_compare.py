"""The compare flow with a real Prefect API and MLflow: page, artifacts, a run with links."""

from __future__ import annotations

import json
import re
import subprocess
import sys

import pytest

from hpo_core.home import Home
from tests.conftest import World, fresh, make_spec
from tests.flows.conftest import LIMIT, ROOT, Runner
from tests.flows.test_study_flow import task_runs
from tests.flows.test_tune import api

CODE = "import json, sys; from hpo_flows.compare import compare; print(json.dumps(compare(sys.argv[1:])))"


@pytest.mark.slow
def test_compare_shows_studies_everywhere(hpo: Runner) -> None:
    journal = Home(hpo.home).open_journal()
    for seed, name in ((1, "cmp-1"), (2, "cmp-2"), (1, "full")):
        search = {"method": "random", "configs": 6, "max_resource": 9}
        world = World(seed)
        changes = {"search": search} if name == "full" else {}
        world.play(fresh(make_spec(study=name, seed=seed, **changes), journal, world))
    journal.close()
    for name in ("cmp-1", "full"):
        hpo("project", name)
    done = subprocess.run(
        [sys.executable, "-c", CODE, "cmp-1", "cmp-2", "full"],
        env=hpo.environment | {"PYTHONPATH": str(ROOT)}, cwd=hpo.folder, capture_output=True, text=True, timeout=LIMIT,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    facts = json.loads(done.stdout.splitlines()[-1])
    assert [row["studies"] for row in facts["groups"] if row["group"] == "cmp"] == [2]

    names = {item["key"] for item in api(hpo, "artifacts/filter", {"limit": 200})}
    assert "cmp-1-cmp-2-full-compared" in names
    runs = api(hpo, "flow_runs/filter", {"flow_runs": {"name": {"any_": ["compare-cmp-1-cmp-2-full"]}}})
    assert [run["state_name"] for run in runs] == ["Completed"]
    assert re.match(r"3 studies by loss; best: \S+, \S+$", runs[0]["state"]["message"]), "its log ends with this"
    steps = {one["name"]: one for one in task_runs(hpo, runs[0])}
    assert list(steps) and {one["state_type"] for one in steps.values()} == {"COMPLETED"}
    read = {f"read study {name}" for name in ("cmp-1", "cmp-2", "full")}
    assert set(steps) == read | {"put side by side"}
    assert re.match(r"best loss = \S+, \d+ jobs, finished$", steps["read study full"]["state"]["message"])
    inputs = [one["id"] for ones in steps["put side by side"]["task_inputs"].values() for one in ones]
    assert set(inputs) == {steps[name]["id"] for name in read}, "the graph has an edge from each study"
    assert all(one["tags"] == [] for one in steps.values()), "a task with a tag asks the API before it begins"
