"""Every search method and every cluster of the form: filled in and started in Chromium, run to the end.

``pytest -m browser -n 0 tests/deployed/test_form_starts.py``
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.deployed.deployment_server import Deployed, deployed
from tests.deployed.test_browser import add_float, field, fill, form_of, page, page_inside, pictures, started_run
from tests.hopping.hopping_objectives import write_partitions

__all__ = ["deployed", "page", "page_inside", "pictures"]

pytestmark = [pytest.mark.browser, pytest.mark.timeout(1800)]
OBJECTIVE = "tests.flows.objectives:good"
CONFIGS, RESOURCE = "Configs (Optional)", "Max Resource (Optional)"
METHODS: dict[str, tuple[str, dict[str, int]]] = {
    "ASHA": ("asha", {CONFIGS: 4, RESOURCE: 4}),
    "Successive halving": ("sha", {"Configs": 4, "Max Resource": 4}),
    "Hyperband": ("hyperband", {"Max Resource": 4}),
    "PASHA": ("pasha", {CONFIGS: 4, "Max Resource": 3}),
    "Population": ("pbt", {"Population (Optional)": 2, "Generations (Optional)": 2}),
    "Random": ("random", {CONFIGS: 2, RESOURCE: 3}),
    "Grid": ("grid", {RESOURCE: 2}),
}
"""By tab: its method, and numbers by label; what a study file has to say is not optional."""


def open_form(
    deployed: Deployed, page: Any, tab: str, name: str, *, objective: str = OBJECTIVE, row: str = "x -1 1"
) -> None:
    """The form with all that it cannot do without, as quickly as a person who knows what to type."""
    page.goto(form_of(deployed, "tune"))
    field(page, "Objective").wait_for()
    fill(page, "Objective", objective)
    fill(page, "Name (Optional)", name)
    if tab != "ASHA":  # which is open
        field(page, "Search").get_by_text(tab, exact=True).first.click()
    fill(field(page, "Metric"), "Name", "loss" if objective == OBJECTIVE else "val_loss")
    add_float(page, *row.split())
    page.get_by_text("Jobs at once").first.wait_for()


def submitted(deployed: Deployed, page: Any, name: str) -> dict[str, Any]:
    page.wait_for_timeout(500)  # the forms hand on what was typed a moment later
    ended = deployed.ended(started_run(deployed, page, "tune"))
    assert ended["state_type"] == "COMPLETED", (ended["state"], ended["parameters"], deployed.logs(ended["id"]))
    assert ended["name"] == f"tune-{name}"
    return ended


def recorded(deployed: Deployed, name: str) -> Any:
    return json.loads(deployed.hpo("export", name).stdout.splitlines()[0])["events"][0]["spec"]


@pytest.mark.parametrize("tab", METHODS)
def test_every_method_is_filled_in_and_runs(tab: str, deployed: Deployed, page_inside: Any, pictures: Path) -> None:
    method, budget = METHODS[tab]
    open_form(deployed, page_inside, tab, method)
    for label, value in budget.items():
        fill(page_inside, label, str(value))
    if tab == "Grid":
        fill(page_inside, "Points (Optional)", "{x: 2}")
    page_inside.screenshot(path=pictures / f"form-{method}.png")
    ended = submitted(deployed, page_inside, method)
    assert list(ended["parameters"]["search"]) == [method], "the tab that was opened last, and nothing of the first"
    search = recorded(deployed, method)["search"]
    assert search["method"] == method and method in ended["tags"]
    asked = {label.removesuffix(" (Optional)").lower().replace(" ", "_"): value for label, value in budget.items()}
    assert {key: search[key] for key in asked} == asked


ADVANCED: dict[str, Any] = {
    "packing": {"policy": "worst_fit", "memory": "1GB", "demand": {"memory": "200MB", "cores": 0.1}},
    "stop": {"seconds": 600},
}
HOPPING: dict[str, Any] = {
    "data": {"partitions": "part-*.npz", "validation": "val-*.npz", "load": "tests.hopping.hopping_objectives:load"}
}


@pytest.mark.parametrize("name", ["packed", "hopping"])
def test_packing_and_hopping_are_asked_for_as_in_a_study_file(
    name: str, deployed: Deployed, page_inside: Any, pictures: Path
) -> None:
    page, asked = page_inside, ADVANCED if name == "packed" else HOPPING
    if name == "packed":
        open_form(deployed, page, "Random", name)
    else:
        write_partitions(deployed.data, [0, 1, 2], validation=1)
        objective = "tests.hopping.hopping_objectives:train"
        open_form(deployed, page, "Random", name, objective=objective, row="lr 0.01 0.1")
    for label, value in {CONFIGS: "3", RESOURCE: "2", "Workers (Optional)": "3"}.items():
        fill(page, label, value)
    fill(page, "Advanced (Optional)", json.dumps(asked))
    page.wait_for_timeout(500)
    page.screenshot(path=pictures / f"form-{name}.png")
    run = submitted(deployed, page, name)["id"]
    spec = recorded(deployed, name)
    assert "clean" in deployed.hpo("audit", name).stdout
    if name == "packed":
        assert spec["packing"]["policy"] == "worst_fit" and spec["stop"]["seconds"] == 600
        shown = deployed.api("task_runs/filter", {"task_runs": {"flow_run_id": {"any_": [run]}}})
        jobs = [one for one in shown if one["name"].startswith("trial ")]
        assert len(jobs) == 3 and all(" on cpu:" in one["state"]["message"] for one in jobs)
    else:
        assert len(spec["data"]["partitions"]) == 3 and len(spec["data"]["validation"]) == 1
