"""A retraining as a flow of tasks: what Prefect's engine ran of it, read back over its API."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from typing import Any

from hpo_core.home import Home
from hpo_core.spec import load_spec
from hpo_core.study import Study
from tests.deployed.deployment_server import LINE
from tests.flows.conftest import LIMIT, ROOT, Runner
from tests.flows.prefect_api import ask
from tests.flows.test_study_flow import task_runs

CODE = """
import json, sys
from hpo_flows.retrain import Rules, retrain
print(json.dumps(retrain(model="line", data=sys.argv[1], study="line", rules=Rules(repeats=2),
                         evaluate="tests.retraining.retrain_objectives:evaluate")))
"""


def begun(hpo: Runner, journal_url: str | None = None, **changes: Any) -> None:
    file = hpo.study(
        study="line", objective=LINE["objective"], space=LINE["space"], search=LINE["search"], tracking={},
        **changes,
    )  # fmt: skip
    journal = Home(hpo.home, journal_url).open_journal()
    first = Study.create(load_spec(file), journal)
    while (job := first.ask()) is not None:
        first.tell(job, {"loss": (job.params["offset"] - 0.2) ** 2 + 0.01 / job.target})
    journal.close()


def retrained(hpo: Runner, *, code: int = 0, **data: Any) -> dict[str, Any]:
    """The result of a retraining on these data; of a failed one, its error's last line."""
    path = hpo.folder / "data.json"
    path.write_text(json.dumps(data))
    done = subprocess.run(
        [sys.executable, "-c", CODE, str(path)], env=hpo.environment | {"PYTHONPATH": str(ROOT)},
        cwd=hpo.folder, capture_output=True, text=True, timeout=2 * LIMIT,
    )  # fmt: skip
    assert done.returncode == code, done.stdout + done.stderr
    return {"error": done.stderr.strip().splitlines()[-1]} if code else dict(json.loads(done.stdout.splitlines()[-1]))


def shown(hpo: Runner, state: str) -> list[tuple[str, str, str]]:
    """Name, state and message of each step of the newest retraining, in the order in which they began."""
    wanted = {"flows": {"name": {"any_": ["retrain"]}}, "sort": "START_TIME_DESC", "limit": 50}
    home = {run["name"]: run for run in ask(hpo.environment, "flow_runs/filter", wanted)}
    run = next(iter(home.values()))
    assert run["state_type"] == state
    runs = sorted(task_runs(hpo, run), key=lambda one: one["start_time"])
    assert all(one["tags"] == [] for one in runs if not one["task_key"].startswith("tune")), "a tag asks the API"
    assert all(one["empirical_policy"]["retries"] in (0, None) for one in runs)
    return [(one["name"], one["state_type"], one["state"]["message"] or "") for one in runs]


def test_the_steps_of_a_retraining_are_tasks_that_tell_its_story(hpo: Runner) -> None:
    begun(hpo)
    similar = retrained(hpo, offset=0.2, seed=1)
    assert similar["branches"] == ["trained again"]
    steps = shown(hpo, "COMPLETED")
    assert {state for _, state, _ in steps} == {"COMPLETED"}
    assert [name for name, _, _ in steps if not name.startswith("tune")] == [
        "evaluate the first champion", "promote the first champion", "look at the data",
        "evaluate champion version 1", "check for drift", "evaluate the challenger trained again",
        "compare with the champion", "test the challenger", "promote", "report",
    ]  # fmt: skip
    assert len([name for name, _, _ in steps if name.startswith("tune")]) == 2, (
        "seeds of the first, and of the challenger"
    )
    said = {name: message for name, _, message in steps}
    assert said["promote the first champion"] == "version 1 is the first champion of line: the best of study line"
    assert re.match(r"loss \S+ on the new data, loss \S+ on its own", said["evaluate champion version 1"])
    assert said["check for drift"].startswith("no drift: Kolmogorov")
    assert "mean loss on the new data: challenger" in said["test the challenger"]
    assert said["promote"] == similar["outcome"] and "version 1 stays champion" in said["promote"]
