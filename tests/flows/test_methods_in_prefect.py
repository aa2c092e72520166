"""Every search method as a Prefect flow: its tasks are the journal's jobs, and its decisions those without Prefect."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from hpo_core.home import Home
from hpo_core.model.events import Entry
from hpo_core.replay.audit import audit
from tests.flows.conftest import Runner
from tests.flows.test_study_flow import flow_runs, parents, task_runs
from tests.hopping.hopping_objectives import write_partitions

_LADDER: dict[str, Any] = {"configs": 9, "min_resource": 1, "max_resource": 9, "reduction_factor": 3}
SEARCHES: dict[str, dict[str, Any]] = {
    "random": {"method": "random", "configs": 4, "max_resource": 2},
    "grid": {"method": "grid", "points": {"x": 4}, "max_resource": 2},
    "sha": {"method": "sha", **_LADDER},
    "asha": {"method": "asha", **_LADDER},
    "asha-stopping": {"method": "asha", "variant": "stopping", **_LADDER},
    "asha-brackets": {"method": "asha", **_LADDER, "brackets": [0, 1]},
    "hyperband": {"method": "hyperband", "min_resource": 1, "max_resource": 9, "reduction_factor": 3},
    "pasha": {"method": "pasha", **_LADDER},
    "pbt": {"method": "pbt", "population": 3, "generations": 3, "steps_per_generation": 2},
}
_MOMENTS = {
    "time", "began", "started", "ended", "seconds", "at", "usage", "checkpoint", "controller", "worker", "spec",
    "uri", "size", "digest", "state", "visits", "together", "lease",
}  # fmt: skip
"""Facts of the clock, the machine and the study's name; all others are decisions and results."""


def entries(hpo: Runner, study: str) -> list[Entry]:
    journal = Home(hpo.home).open_journal()
    found = list(journal.entries(study))
    journal.close()
    assert audit(found).clean
    return found


def decided(found: list[Entry]) -> Iterator[str]:
    """What a journal says, entry by entry, without moments."""

    def timeless(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: timeless(each) for name, each in value.items() if name not in _MOMENTS}
        return [timeless(each) for each in value] if isinstance(value, list | tuple) else value

    for entry in found:
        yield json.dumps(timeless(msgspec.to_builtins(entry)), sort_keys=True)


def granted(found: list[Entry]) -> int:
    return sum(type(event).__name__ == "JobGranted" for entry in found for event in entry.events)


def run_study(hpo: Runner, method: str, *, twice: bool, **changes: Any) -> tuple[list[Entry], list[dict[str, Any]]]:
    """The journal of a study in Prefect and its task runs; ``twice``: it equals that of the same one without."""
    changes = {"cluster": {"kind": "local", "workers": 1}} | changes
    journals = []
    for prefect, name in (("jobs", f"in-{method}"), ("off", f"out-{method}"))[: 1 + twice]:
        facts = hpo.json("tune", hpo.study(study=name, prefect=prefect, **changes))
        assert facts["status"] == "finished"
        journals.append(entries(hpo, name))
    inside = journals[0]
    assert list(decided(inside)) == list(decided(journals[-1]))
    flow = flow_runs(hpo, f"tune-in-{method}")[-1]
    assert flow["state_type"] == "COMPLETED" and flow["parameters"]["name"] == f"in-{method}"
    assert {"hpo", f"in-{method}", changes["search"]["method"]} <= set(flow["tags"])
    return inside, task_runs(hpo, flow, count=granted(inside) + 1)


@pytest.mark.parametrize(
    ("method", "twice"), [("pbt", False), *(pytest.param(name, True, marks=pytest.mark.slow) for name in SEARCHES)]
)
def test_a_method_decides_the_same_in_prefect_whose_tasks_are_its_jobs(hpo: Runner, method: str, twice: bool) -> None:
    inside, runs = run_study(hpo, method, twice=twice, search=SEARCHES[method])
    by_kind = Counter(run["task_key"].partition("-")[0] for run in runs)
    holder = "generation" if method == "pbt" else "rung"
    assert set(by_kind) == {holder, "job"}
    assert by_kind["job"] == granted(inside), by_kind
    assert {run["state_type"] for run in runs} == {"COMPLETED"}
    holders = {run["id"]: run["name"] for run in runs if run["task_key"].startswith(holder)}
    jobs = [run for run in runs if run["task_key"].startswith("job")]
    assert all(parents(run)[0] in holders and run["state"]["message"].startswith("loss = ") for run in jobs)
    assert all(run["tags"] == [] for run in jobs), "a task with a tag asks the API before it begins"
    if method == "pbt":
        assert sorted(holders.values()) == ["generation 0", "generation 1", "generation 2"]
        assert Counter(holders[parents(run)[0]] for run in jobs) == dict.fromkeys(holders.values(), 3)
    else:
        assert all(name.startswith("rung ") and " of bracket " in name for name in holders.values())
        for run in jobs:
            assert holders[parents(run)[0]].endswith(f"to {run['name'].rpartition('-> ')[2]}")


@pytest.mark.slow
def test_models_that_hop_decide_the_same_in_prefect(hpo: Runner, tmp_path: Path) -> None:
    write_partitions(tmp_path / "data", [0, 1], validation=1)
    inside, runs = run_study(
        hpo,
        "hopping",
        twice=True,
        objective="tests.hopping.hopping_objectives:train",
        metric={"name": "val_loss", "mode": "min"},
        space={"lr": {"type": "float", "low": 0.001, "high": 0.05, "log": True}},
        search={"method": "sha", "configs": 4, "min_resource": 1, "max_resource": 2, "reduction_factor": 2},
        data={
            "partitions": "part-*.npz", "validation": "val-*.npz", "folder": str(tmp_path / "data"),
            "load": "tests.hopping.hopping_objectives:load", "concurrent": 1,
        },
    )  # fmt: skip
    by_kind = Counter(run["task_key"].partition("-")[0] for run in runs)
    assert by_kind["job"] == granted(inside) == 6 and by_kind["rung"] == 2 and by_kind["epoch"] >= 2
    for epoch, models, rung in ((1, 4, "rung 0 of bracket 0, to 1"), (2, 2, "rung 1 of bracket 0, to 2")):
        shown = [run for run in runs if run["name"] == f"epoch {epoch}"]  # one model at once, so one or more of them
        assert sum(int(run["state"]["message"].split()[0]) for run in shown) == models
        assert {held for run in shown for held in parents(run)} == {run["id"] for run in runs if run["name"] == rung}
