"""The form in a real browser: filled in, started, watched to its end, artifacts opened.

Slow, so not part of a plain run: ``pytest -m browser -n 0``. ``HPO_PICTURES=deployments/pictures`` keeps the
screenshots there.
"""

from __future__ import annotations

import base64
import json
import os
import re
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.deployed.deployment_server import Deployed, deployed
from tests.deployed.test_home_ui import status_of
from tests.flows.conftest import LIMIT, Runner, server_file, wait_for_entries

__all__ = ["deployed"]

pytestmark = [pytest.mark.browser, pytest.mark.timeout(1800)]
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
QUIET = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
PATIENCE = 180_000


@pytest.fixture
def page() -> Iterator[Any]:
    playwright = pytest.importorskip("playwright.sync_api", reason="needs the extra `browser`")
    if CHROMIUM is None:
        pytest.skip("no Chromium on this machine")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=QUIET)
        opened = browser.new_page(viewport={"width": 1440, "height": 900})
        opened.set_default_timeout(PATIENCE)
        yield opened
        browser.close()


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    folder = Path(os.environ.get("HPO_PICTURES", tmp_path))
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def address(deployed: Deployed, path: str) -> str:
    return deployed.environment["PREFECT_API_URL"].removesuffix("/api") + path


@pytest.fixture
def page_inside(page: Any, deployments_api: dict[str, str]) -> Any:
    """A page of the server whose password was given before, as the UI keeps it."""
    word = base64.b64encode(deployments_api["PREFECT_API_AUTH_STRING"].encode()).decode()
    page.add_init_script(f"localStorage.setItem('prefect-password', '{word}')")
    return page


def test_log_in_at_the_server_that_a_study_started(page: Any, pictures: Path, tmp_path: Path) -> None:
    """Logging in, the run's page, and its tables, which the UI asks for with POST and so with a CSRF token."""
    hpo = Runner(tmp_path, {}, prefect="auto")
    process = hpo.start("tune", hpo.study("slow", search={"method": "random", "configs": 4000, "max_resource": 2}))
    try:
        wait_for_entries(hpo, "toy", 4, process)
        known = json.loads(server_file(hpo, process).read_text())
        assert status_of(f"{known['url']}/api/health") == 200
        refused: list[str] = []

        def note(answer: Any) -> None:
            """The UI asks for settings and version without credentials when a page loads: that is no fault."""
            if answer.status == 403 or (answer.status == 401 and "authorization" in answer.request.headers):
                refused.append(answer.url)

        page.on("response", note)
        page.goto(f"{known['url']}/v2/runs")
        password = page.locator("input[type=password]")
        password.fill("hpo:wrong")
        password.press("Enter")
        page.get_by_text(re.compile("Authentication failed|Invalid credentials")).first.wait_for()
        page.screenshot(path=pictures / "login.png")
        refused.clear()
        password.fill(known["auth"])
        password.press("Enter")
        password.wait_for(state="detached")
        page.goto(f"{known['url']}/v2/runs")
        page.get_by_text("tune-toy").first.click()
        page.get_by_text("new trial").first.wait_for()
        page.wait_for_timeout(2000)
        page.screenshot(path=pictures / "logged-in.png")
        assert refused == []
    finally:
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=LIMIT)


def form_of(deployed: Deployed, flow: str, deployment: str = "") -> str:
    found = deployed.api(f"deployments/name/{flow}/{deployment or flow}")["id"]
    return address(deployed, f"/v2/deployments/deployment/{found}/run")


def field(within: Any, label: str, nth: int = 0) -> Any:
    """A property of the form, or of one of its properties, by its label."""
    inner = "ancestor::div[contains(concat(' ', @class, ' '), ' group ')][1]"
    return within.locator(f"xpath=.//label[normalize-space(.)='{label}']/{inner}").nth(nth)


def fill(within: Any, label: str, value: str, nth: int = 0) -> None:
    field(within, label, nth).locator("input, textarea").first.fill(value)


def add_float(page: Any, name: str, low: str, high: str) -> None:
    rows = field(page, "Float (Optional)")
    rows.get_by_text("Add item", exact=True).click()
    for label, value in {"Name": name, "Low": low, "High": high}.items():
        if value:
            fill(rows, label, value)


def runs_of(deployed: Deployed, name: str) -> list[str]:
    wanted = {"deployments": {"name": {"any_": [name]}}, "sort": "EXPECTED_START_TIME_DESC", "limit": 200}
    return [run["id"] for run in deployed.api("flow_runs/filter", wanted)]


def started_run(deployed: Deployed, page: Any, name: str) -> str:
    """Press Submit; returns the run that the form makes."""
    known = runs_of(deployed, name)
    submit = page.get_by_role("button", name="Submit", exact=True)
    submit.click()
    for second in range(180):
        if made := [run for run in runs_of(deployed, name) if run not in known]:
            return str(made[0])
        page.wait_for_timeout(1000)
        if second % 60 == 59 and submit.is_visible():  # a busy form, or server, takes a press that comes to nothing
            submit.click()
    raise AssertionError(f"the form made no run of {name}: {page.inner_text('body')[:3000]}")


def test_fill_in_start_watch_and_open_artifacts(deployed: Deployed, page_inside: Any, pictures: Path) -> None:
    page = page_inside
    page.goto(form_of(deployed, "tune"))
    field(page, "Objective").wait_for()
    fill(page, "Objective", "tests.flows.objectives:good")
    fill(field(page, "Metric"), "Name", "loss")
    add_float(page, "x", "-1", "1")
    page.screenshot(path=pictures / "form.png")
    field(page, "Space").evaluate("found => found.scrollIntoView()")
    page.screenshot(path=pictures / "form-parameters.png")
    fill(page, "Configs (Optional)", "9")
    fill(page, "Max Resource (Optional)", "9")
    field(page, "Search").evaluate("found => found.scrollIntoView()")
    page.screenshot(path=pictures / "form-method.png")
    run = started_run(deployed, page, "tune")

    deployed.wait(run, lambda found: found["state_type"] in ("RUNNING", "COMPLETED", "FAILED"))
    ended = deployed.ended(run)
    assert ended["state_type"] == "COMPLETED", deployed.logs(run)
    page.goto(address(deployed, f"/runs/flow-run/{run}"))
    page.get_by_text("best loss").first.wait_for()
    page.get_by_text("promoted to rung").first.wait_for()
    page.wait_for_timeout(2000)
    page.screenshot(path=pictures / "run.png")

    page.get_by_text("Artifacts", exact=True).first.click()
    study = ended["name"].removeprefix("tune-")
    page.get_by_text(f"{study}-study").first.wait_for()
    page.wait_for_timeout(1000)
    page.screenshot(path=pictures / "artifacts.png")
    page.get_by_text(f"{study}-study").first.click()
    page.get_by_text("units of training").first.wait_for()
    page.set_viewport_size({"width": 1440, "height": 1500})
    page.wait_for_timeout(1500)
    page.screenshot(path=pictures / "study-artifact.png")


def test_what_is_missing_is_said_beside_its_field(deployed: Deployed, page_inside: Any, pictures: Path) -> None:
    page = page_inside
    page.goto(form_of(deployed, "tune"))
    field(page, "Objective").wait_for()
    page.get_by_role("button", name="Submit", exact=True).click()
    page.get_by_text("'space' is a required property").first.wait_for()
    add_float(page, "", "0", "")
    low = page.get_by_text("'low' is a required property")
    for _ in range(20):
        page.get_by_role("button", name="Submit", exact=True).click()
        page.get_by_text("'high' is a required property").first.wait_for()
        if not low.count():
            break
        page.wait_for_timeout(1000)  # a busy form hands on what was typed a moment after the press
    assert not low.count()
    field(page, "High").scroll_into_view_if_needed()
    page.screenshot(path=pictures / "form-refused.png")


def test_nothing_has_to_be_typed_as_json(deployed: Deployed, page_inside: Any, pictures: Path) -> None:
    page = page_inside
    page.goto(form_of(deployed, "tune"))
    for tab in ("ASHA", "Successive halving", "Hyperband", "PASHA", "Population", "Random", "Grid"):
        page.get_by_text(tab, exact=True).first.wait_for()
    page.get_by_text("Population", exact=True).first.click()
    page.get_by_text("Units of training of one session.", exact=True).wait_for()
    for kind in ("Float", "Int", "Categorical"):
        field(page, f"{kind} (Optional)").get_by_text("Add item").first.click()
    page.get_by_text("Largest value.").first.wait_for()
    assert not page.locator(".cm-editor").count()
    assert not page.get_by_text('Property is type "None"').count() and not page.get_by_text("`").count()
    page.set_viewport_size({"width": 1200, "height": 2400})
    page.wait_for_timeout(1000)
    page.screenshot(path=pictures / "form-of-population.png")
