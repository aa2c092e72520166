"""Every search method and every cluster of the form: filled in and started in Chromium, in both UIs, run to the end.

``pytest -m browser -n 0 tests/deployed/test_form_starts.py``
"""

from __future__ import annotations

import contextlib
import json
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import pytest

from hpo_core.spec import load_spec
from hpo_flows.deployed.form import Sampler
from tests.dask_processes import DaskProcesses
from tests.deployed.deployment_server import Deployed, deployed
from tests.deployed.test_browser import PATIENCE, address, choose, field, newer_field, page, page_inside, pictures
from tests.hopping.hopping_objectives import write_partitions

__all__ = ["deployed", "page", "page_inside", "pictures"]

pytestmark = [pytest.mark.browser, pytest.mark.timeout(1800)]
OBJECTIVE = "tests.flows.objectives:good"
METHODS: dict[str, tuple[str, dict[str, int]]] = {
    "ASHA": ("asha", {"Configs": 4, "Max Resource": 4}),
    "Successive halving": ("sha", {"Configs": 4, "Max Resource": 4}),
    "Hyperband": ("hyperband", {"Max Resource": 4}),
    "PASHA": ("pasha", {"Configs": 4, "Max Resource": 3}),
    "Population": ("pbt", {"Population": 2, "Generations": 2}),
    "Random": ("random", {"Configs": 2, "Max Resource": 3}),
    "Grid": ("grid", {"Max Resource": 2}),
}


@pytest.fixture(scope="module", autouse=True)
def allowed_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A scheduler with two workers that the deployments offer."""
    dask = DaskProcesses(tmp_path_factory.mktemp("dask"), "one", "two")
    with contextlib.closing(dask), pytest.MonkeyPatch.context() as patch:
        patch.setenv("HPO_ALLOWED_CLUSTERS", dask.address)
        yield dask.address


class Older:
    """The form of the UI at `/`."""

    path = ""

    def __init__(self, page: Any) -> None:
        self.page = page

    def field(self, label: str, nth: int = 0) -> Any:
        return field(self.page, label, nth)

    def row_field(self, label: str) -> Any:
        """Of the first row of numbers; the metric has a name, too."""
        return self.field(label, 1 if label == "Name" else 0)

    def choose(self, label: str, value: str) -> None:
        choose(self.page, label, value)

    def unfold(self, label: str, nth: int = 0, tab: str = "Advanced") -> None:
        """Open the section of this label."""
        self.field(f"{label} (Optional)", nth).get_by_text(tab, exact=True).first.click()
        self.page.wait_for_timeout(300)


OF_ROW, OF_METHOD = 0, 1
"""Folds called Advanced of a form with one row, from its top on."""


class Newer(Older):
    """The form of the UI at `/v2`."""

    path = "/v2"

    def field(self, label: str, nth: int = 0) -> Any:
        return newer_field(self.page, label, nth)

    def choose(self, label: str, value: str) -> None:
        """A list that opens while the form takes what was chosen before closes again: then it is opened once more."""
        from playwright.sync_api import TimeoutError

        option = self.page.get_by_role("option", name=value, exact=True)
        for opened_again_after in (5_000, 20_000, PATIENCE):
            self.field(label).get_by_role("button", name=re.compile("^Select ")).first.click()
            try:
                option.click(timeout=opened_again_after)
                return
            except TimeoutError:
                if opened_again_after == PATIENCE:
                    raise
                self.page.keyboard.press("Escape")  # it is open still where the machine is busy


def open_form(
    kind: type[Older],
    deployed: Deployed,
    page: Any,
    tab: str,
    name: str,
    *,
    objective: str = OBJECTIVE,
    metric: str = "loss",
) -> Older:
    """The form with all that it cannot do without, as quickly as a person who knows what to type."""
    found = deployed.api("deployments/name/tune/tune")["id"]
    page.goto(address(deployed, f"{kind.path}/deployments/deployment/{found}/run"))
    form = kind(page)
    form.field("objective").wait_for()
    form.choose("objective", objective)
    form.field("name (Optional)").locator("textarea, input").first.fill(name)
    if tab != "ASHA":  # which is open
        form.field("method (Optional)").get_by_text(tab, exact=True).first.click()
    form.field("metric").locator("textarea, input").first.fill(metric)
    form.field("numbers").get_by_text("Add item").click()
    for label, value in {"Name": "x", "Low": "-1", "High": "1"}.items():
        form.row_field(label).locator("textarea, input").first.fill(value)
    if tab == "Grid":
        form.unfold("Advanced", OF_ROW)
        form.field("Grid Points (Optional)").locator("input").first.fill("2")
    page.get_by_text("Jobs at once").first.wait_for()
    assert not page.get_by_text('Property is type "None"').count() and not page.get_by_text("`").count()
    return form


def submitted(deployed: Deployed, page: Any, name: str) -> dict[str, Any]:
    """Press Submit and see the run that it made to its end."""
    page.wait_for_timeout(500)  # the forms hand on what was typed a moment later
    button = page.get_by_role("button", name="Submit", exact=True)
    button.click()
    pressed = time.monotonic()
    wanted = {"deployments": {"name": {"any_": ["tune", "rows"]}}, "sort": "EXPECTED_START_TIME_DESC", "limit": 5}
    deadline = time.monotonic() + 300
    while True:
        runs = deployed.api("flow_runs/filter", wanted)
        if made := [run for run in runs if run["parameters"].get("name") == name]:
            break
        assert time.monotonic() < deadline, page.inner_text("body")[:4000]
        if time.monotonic() - pressed > 60 and button.count():  # on a busy machine a press may come to nothing
            button.click()
            pressed = time.monotonic()
        page.wait_for_timeout(1000)
    ended = deployed.ended(made[0]["id"])
    assert ended["state_type"] == "COMPLETED", (ended["state"], ended["parameters"], deployed.logs(ended["id"]))
    assert ended["name"] == f"tune-{name}"
    return ended


def recorded(deployed: Deployed, name: str) -> Any:
    return json.loads(deployed.hpo("export", name).stdout.splitlines()[0])["events"][0]["spec"]


@pytest.mark.parametrize("kind", [Older, Newer], ids=["older", "newer"])
@pytest.mark.parametrize("tab", METHODS)
def test_every_method_is_filled_in_and_runs(
    tab: str, kind: type[Older], deployed: Deployed, page_inside: Any, pictures: Path
) -> None:
    method, budget = METHODS[tab]
    name = f"{method}-{kind.__name__.lower()}"
    form = open_form(kind, deployed, page_inside, tab, name)
    for label, value in budget.items():
        form.field(f"{label} (Optional)").locator("input").first.fill(str(value))
    page_inside.screenshot(path=pictures / f"form-{name}.png")
    ended = submitted(deployed, page_inside, name)
    assert method in ended["parameters"]["method"], "a key that no other method has"
    search = recorded(deployed, name)["search"]
    assert search["method"] == method and method in ended["tags"]
    asked = {label.lower().replace(" ", "_"): value for label, value in budget.items()}
    assert {key: search[key] for key in asked} == asked


@pytest.mark.parametrize("kind", [Older, Newer], ids=["older", "newer"])
@pytest.mark.parametrize("brackets", [[], [0, 1]], ids=["default", "listed"])
def test_the_stopping_variant_of_asha_is_chosen(
    brackets: list[int], kind: type[Older], deployed: Deployed, page_inside: Any, pictures: Path
) -> None:
    name = f"stopping-{len(brackets)}-{kind.__name__.lower()}"
    form = open_form(kind, deployed, page_inside, "ASHA", name)
    for budget, number in {"Configs": 6, "Max Resource": 16}.items():
        form.field(f"{budget} (Optional)").locator("input").first.fill(str(number))
    form.unfold("Advanced", OF_METHOD)
    form.choose("Variant (Optional)", "stopping")
    for nth, bracket in enumerate(brackets):
        form.field("Brackets (Optional)").get_by_text("Add item").click()
        form.field("Brackets (Optional)").locator("input").nth(nth).fill(str(bracket))
    page_inside.screenshot(path=pictures / f"form-{name}.png")
    submitted(deployed, page_inside, name)
    search = recorded(deployed, name)["search"]
    assert search["variant"] == "stopping"
    assert search["brackets"] == (brackets or [0])


ROWS: dict[str, Any] = {
    "study": "rows",
    "objective": OBJECTIVE,
    "metric": {"name": "loss", "mode": "min"},
    "space": {
        "x": {"type": "float", "low": -1, "high": 1},
        "lr": {"type": "float", "low": 0.001, "high": 1, "log": True},
        "net.width": {"type": "int", "low": 8, "high": 32, "step": 8},
        "net.kind": {"type": "categorical", "choices": ["a", "16", 16, True, None, 0.5]},
        "size": {"type": "ordinal", "choices": [1, 2, 4]},
        "momentum": {"type": "float", "low": 0, "high": 0.9, "when": {"net.kind": ["a", 16]}},
    },
    "start_with": [{"x": 0.25}],
    "constants": {"data": "a.npz"},
    "search": {"method": "random", "configs": 3, "max_resource": 2},
    "training": {"threads": 2},
}


@pytest.mark.parametrize("kind", [Older, Newer], ids=["older", "newer"])
def test_a_form_that_begins_with_a_study_is_started_as_it_stands(
    kind: type[Older], deployed: Deployed, page_inside: Any, pictures: Path
) -> None:
    """A parameter of each kind that the form knows, and fields that hold YAML; on the cluster of a study file."""
    name = f"prefilled-{kind.__name__.lower()}"
    file = deployed.folder / "rows.yaml"
    file.write_text(json.dumps(ROWS))
    done = deployed.hpo("deploy", "--prefill", str(file))
    assert done.returncode == 0, done.stdout + done.stderr
    found = deployed.api("deployments/name/tune/rows")["id"]
    page_inside.goto(address(deployed, f"{kind.path}/deployments/deployment/{found}/run"))
    form = kind(page_inside)
    form.field("name (Optional)").locator("textarea, input").first.fill(name)
    form.field("cluster (Optional)").get_by_text("Of a study file", exact=True).first.click()
    form.choose("File", "toy.yaml")
    page_inside.screenshot(path=pictures / f"form-{name}.png")
    form.field("choices").scroll_into_view_if_needed()
    page_inside.screenshot(path=pictures / f"form-{name}-rows.png")
    run = submitted(deployed, page_inside, name)["id"]
    spec, wanted = recorded(deployed, name), load_spec(file).plain()
    changed = [key for key in wanted if key not in ("study", "pythonpath") and spec[key] != wanted[key]]
    assert not changed, {key: (spec[key], wanted[key]) for key in changed}
    page_inside.goto(address(deployed, f"{kind.path}/runs/flow-run/{run}"))
    page_inside.get_by_text("best loss").first.wait_for()
    page_inside.wait_for_timeout(10_000)  # a busy machine draws the timeline of the newer UI late
    page_inside.screenshot(path=pictures / f"run-{name}.png")
    wanted = {"artifacts": {"flow_run_id": {"any_": [run]}, "key": {"any_": [f"{name}-study"]}}, "limit": 1}
    (artifact,) = deployed.api("artifacts/filter", wanted)
    page_inside.goto(address(deployed, f"{kind.path}/artifacts/artifact/{artifact['id']}"))
    page_inside.get_by_text("units of training").first.wait_for()
    page_inside.wait_for_timeout(3000)
    page_inside.screenshot(path=pictures / f"artifact-{name}.png")


@pytest.mark.parametrize("kind", [Older, Newer], ids=["older", "newer"])
def test_a_dask_cluster_is_chosen_and_sections_unfold(
    kind: type[Older], deployed: Deployed, page_inside: Any, allowed_cluster: str, pictures: Path
) -> None:
    name = f"cluster-{kind.__name__.lower()}"
    form = open_form(kind, deployed, page_inside, "Random", name)
    assert not page_inside.get_by_text("Stall Timeout").count(), "folded"
    form.field("cluster (Optional)").get_by_text("Dask scheduler", exact=True).click()
    form.field("Configs (Optional)").locator("input").first.fill("2")
    form.field("Max Resource (Optional)").locator("input").first.fill("2")
    form.unfold("advanced")
    form.unfold("Limits", tab="Limits")
    form.field("Seconds (Optional)").locator("input").first.fill("500")
    form.unfold("Training", tab="Attempts")
    form.field("Max Lost (Optional)").locator("input").first.fill("0")
    form.choose("Process (Optional)", "kept")
    form.unfold("Further", tab="Further settings")
    form.field("Checkpoints (Optional)").locator("textarea, input").first.fill("{max_count: 5}")
    page_inside.wait_for_timeout(500)
    form.field("Limits (Optional)").scroll_into_view_if_needed()
    page_inside.screenshot(path=pictures / f"form-{name}.png")
    submitted(deployed, page_inside, name)
    spec = recorded(deployed, name)
    assert spec["cluster"]["address"] == allowed_cluster
    assert spec["training"]["process"] == "kept"
    assert spec["stop"]["seconds"] == 500 and spec["training"]["max_lost"] is None
    assert spec["checkpoints"]["max_count"] == 5


@pytest.mark.parametrize("kind", [Older, Newer], ids=["older", "newer"])
def test_jobs_that_share_a_device_are_asked_for_and_tagged(
    kind: type[Older], deployed: Deployed, page_inside: Any, pictures: Path
) -> None:
    name = f"packed-{kind.__name__.lower()}"
    form = open_form(kind, deployed, page_inside, "Random", name)
    assert not page_inside.get_by_text("Job Memory").count(), "folded"
    form.field("Configs (Optional)").locator("input").first.fill("4")
    form.field("Max Resource (Optional)").locator("input").first.fill("2")
    form.unfold("advanced")
    form.unfold("Packing", tab="Packing")
    form.choose("Policy (Optional)", "worst_fit")
    form.choose("Devices (Optional)", "cpu")
    for label, text in {"Memory": "1GB", "Job Memory": "200MB", "Job Cores": "0.1"}.items():
        form.field(f"{label} (Optional)").locator("textarea, input").first.fill(text)
    form.unfold("Further", tab="Further settings")
    form.field("Share (Optional)").locator("textarea, input").first.fill("{pool: cpu, weight: 2}")
    page_inside.wait_for_timeout(500)
    form.field("Packing (Optional)").scroll_into_view_if_needed()
    page_inside.screenshot(path=pictures / f"form-{name}.png")
    run = submitted(deployed, page_inside, name)["id"]
    packing, share = (recorded(deployed, name)[part] for part in ("packing", "share"))
    assert (share["pool"], share["weight"]) == ("cpu", 2.0)
    assert packing["policy"] == "worst_fit" and packing["devices"] == "cpu" and packing["memory"] == {"default": "1GB"}
    assert packing["demand"] == {"memory": "200MB", "compute": None, "cores": 0.1, "unit_seconds": None}
    shown = deployed.api("task_runs/filter", {"task_runs": {"flow_run_id": {"any_": [run]}}})
    assert len(shown) == 4 and all(sum(tag.startswith("device-cpu-") for tag in one["tags"]) == 1 for one in shown)
    assert all(" on cpu:" in one["state"]["message"] for one in shown)


@pytest.mark.parametrize("kind", [Older, Newer], ids=["older", "newer"])
@pytest.mark.parametrize("sampler", [name for name in get_args(Sampler) if name != "random"])
def test_every_sampler_is_chosen_and_proposes(
    sampler: str, kind: type[Older], deployed: Deployed, page_inside: Any, pictures: Path
) -> None:
    """Beyond the configurations that each draws at random first, and with a copy for Optuna's own tools."""
    name = f"{sampler}-{kind.__name__.lower()}"
    form = open_form(kind, deployed, page_inside, "ASHA", name)
    for budget, number in {"Configs": 14, "Max Resource": 4}.items():
        form.field(f"{budget} (Optional)").locator("input").first.fill(str(number))
    form.choose("sampler (Optional)", sampler)
    form.unfold("advanced")
    form.choose("Optuna (Optional)", "on")
    page_inside.wait_for_timeout(500)
    page_inside.screenshot(path=pictures / f"form-{name}.png")
    submitted(deployed, page_inside, name)
    spec = recorded(deployed, name)
    assert spec["sampler"]["name"] == sampler and spec["tracking"]["optuna"] == "on"
    assert "clean" in deployed.hpo("audit", name).stdout
    facts = json.loads(deployed.hpo("status", name, "--json").stdout)
    assert facts["status"] == "finished" and facts["trials"] == 14


@pytest.mark.parametrize("kind", [Older, Newer], ids=["older", "newer"])
def test_models_that_hop_over_partitions_are_asked_for(
    kind: type[Older], deployed: Deployed, page_inside: Any, pictures: Path
) -> None:
    name = f"hopping-{kind.__name__.lower()}"
    if not (deployed.data / "part-0.npz").exists():
        write_partitions(deployed.data, [0, 1, 2], validation=1)
    form = open_form(
        kind,
        deployed,
        page_inside,
        "Random",
        name,
        objective="tests.hopping.hopping_objectives:train",
        metric="val_loss",
    )
    for label, value in {"Name": "lr", "Low": "0.01", "High": "0.1"}.items():
        form.row_field(label).locator("textarea, input").first.fill(value)
    assert not page_inside.get_by_text("Concurrent").count(), "folded"
    form.field("Configs (Optional)").locator("input").first.fill("3")
    form.field("Max Resource (Optional)").locator("input").first.fill("2")
    form.unfold("advanced")
    form.unfold("Data", tab="Data")
    filled = {"Partitions": "part-*.npz", "Validation": "val-*.npz", "Load": "tests.hopping.hopping_objectives:load"}
    for label, text in filled.items():
        form.field(f"{label} (Optional)").locator("textarea, input").first.fill(text)
    form.unfold("Training", tab="Attempts")
    form.field("Gang (Optional)").locator("textarea, input").first.fill("auto")
    form.field("Workers (Optional)").locator("input").first.fill("3")
    page_inside.wait_for_timeout(500)
    form.field("Data (Optional)").scroll_into_view_if_needed()
    page_inside.screenshot(path=pictures / f"form-{name}.png")
    submitted(deployed, page_inside, name)
    data, training = (recorded(deployed, name)[part] for part in ("data", "training"))
    assert training["gang"] == "auto"
    assert len(data["partitions"]) == 3 and len(data["validation"]) == 1 and data["load"] == filled["Load"]
    assert "clean" in deployed.hpo("audit", name).stdout


@pytest.mark.parametrize("kind", [Older, Newer], ids=["older", "newer"])
def test_a_number_that_was_typed_and_removed_again_is_not_sent(
    kind: type[Older], deployed: Deployed, page_inside: Any
) -> None:
    name = f"emptied-{kind.__name__.lower()}"
    form = open_form(kind, deployed, page_inside, "Random", name)
    form.field("Configs (Optional)").locator("input").first.fill("2")
    form.field("Max Resource (Optional)").locator("input").first.fill("2")
    form.unfold("advanced")
    form.unfold("Limits", tab="Limits")
    form.field("Seconds (Optional)").locator("input").first.fill("500")
    page_inside.wait_for_timeout(500)
    form.field("Seconds (Optional)").locator("input").first.fill("")
    page_inside.wait_for_timeout(500)
    submitted(deployed, page_inside, name)
    assert recorded(deployed, name)["stop"]["seconds"] is None
