"""The documentation's pictures of the report: ``make pictures``, or this file with the HTML file of a report.

Without one the demo is trained in a home of its own, and Chromium shows its report.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
PICTURES = ROOT / "docs" / "pictures"
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
    """Write the three pictures of a report."""
    from playwright.sync_api import sync_playwright

    if CHROMIUM is None:
        raise SystemExit("There is no Chromium on this machine; install the package chromium.")
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])

        def opened(width: int, height: int, colors: Any) -> Any:
            page = browser.new_page(viewport={"width": width, "height": height}, color_scheme=colors)
            page.set_default_timeout(LOADING_SECONDS * 1000)
            page.goto(report.resolve().as_uri())
            page.locator(".js-plotly-plot .main-svg").first.wait_for()
            home = str(report.resolve().parents[2])  # a reader's home is called .hpo
            page.evaluate(
                "home => document.querySelectorAll('.links code').forEach("
                "code => code.textContent = code.textContent.replace(home, '.hpo').replace('////', '///'))",
                home,
            )
            return page

        opened(1240, 1300, "light").screenshot(path=ROOT / "examples" / "digits" / "report.png")
        opened(400, 1300, "light").screenshot(path=PICTURES / "report-400.png")
        page = opened(1200, 830, "dark")
        page.locator("section.card", has_text="Climbing the rungs").first.evaluate(
            "card => window.scrollTo(0, card.getBoundingClientRect().top + window.scrollY - 10)"
        )
        page.locator("section.card", has_text="Climbing the rungs").locator(".main-svg").first.wait_for()
        page.screenshot(path=PICTURES / "report-dark.png")
        browser.close()


if __name__ == "__main__":
    if len(sys.argv) > 1:
        take(Path(sys.argv[1]))
    else:
        with tempfile.TemporaryDirectory() as name:
            take(demo(Path(name)))
