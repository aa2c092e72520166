"""The picture of the report in README and docs: ``make pictures``, or this file with the HTML file of a report.

Without one the demo is trained in a home of its own, and Chromium shows its report.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
PICTURE = ROOT / "examples" / "digits" / "report.png"
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
TRAINING_SECONDS = 1800
LOADING_SECONDS = 300


def demo(folder: Path) -> Path:
    """Train the demo; returns its report."""
    command = [sys.executable, "-m", "hpo_flows", "tune", str(ROOT / "examples" / "digits" / "study.yaml")]
    environment = os.environ | {"PREFECT_HOME": str(folder / "prefect")}
    command += ["--home", str(folder / "home")]
    subprocess.run(command, env=environment, cwd=folder, check=True, timeout=TRAINING_SECONDS)
    return folder / "home" / "studies" / "digits" / "report.html"


def take(report: Path) -> None:
    """Write the picture of a report."""
    from playwright.sync_api import sync_playwright

    if CHROMIUM is None:
        raise SystemExit("There is no Chromium on this machine; install the package chromium.")
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])

        page = browser.new_page(viewport={"width": 1240, "height": 1300}, color_scheme="light")
        page.set_default_timeout(LOADING_SECONDS * 1000)
        page.goto(report.resolve().as_uri())
        page.locator(".js-plotly-plot .main-svg").first.wait_for()
        home = str(report.resolve().parents[2])  # a reader's home is called .hpo
        page.evaluate(
            "home => document.querySelectorAll('.links code').forEach("
            "code => code.textContent = code.textContent.replace(home, '.hpo').replace('////', '///'))",
            home,
        )
        page.screenshot(path=PICTURE)
        browser.close()


if __name__ == "__main__":
    if len(sys.argv) > 1:
        take(Path(sys.argv[1]))
    else:
        with tempfile.TemporaryDirectory() as name:
            take(demo(Path(name)))
