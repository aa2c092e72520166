"""A study of about 1,000 jobs in the Prefect UI: seconds until its pages are drawn, and what they load.

ASHA (r 1, R 9, eta 3, 694 configurations: some 1,000 jobs of 10 ms) on two workers, with a task run per rung and with
one per job; and one of 170 configurations with a task run per job, which is what a study of that size gets by default.
A Prefect server of its own on 127.0.0.1. In headless Chromium, with the older UI and the newer one (``/v2``):

- ``page``: from the address to the page of the flow run as it stays (timeline, log): screenshots are taken one after
  the other, and the time of the first of those that are equal for a second counts; empty cache, the median of
  ``--repeats``;
- ``list``: the same from the click on *Task Runs* to its list;
- ``blocked``: time in tasks of the page's main thread beyond 50 ms each, in which it answers to nothing;
- ``CPU``: seconds of processor time of that main thread: what hardly depends on other work on the machine;
- ``API``: bytes that come from the API, without the UI's own files;
- ``running``: from the address to the first line of the log, and from the click to the first task run, while the study
  runs (one reading, of looks that ended before the study did; 30 s at most).

Headless Chromium draws the timeline (WebGL) in software, so with a graphics card its seconds should be fewer.

Then what the API itself needs for the list of task runs (200, as many as it gives at once), the timeline and the log.

    pip install playwright            # or the extra `browser`; it needs a Chromium of the machine
    python benchmarks/ui_thousand.py [--pictures FOLDER]
"""

from __future__ import annotations

import argparse
import base64
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import Any

import result_file

sys.path.insert(0, str(result_file.ROOT.parent))

from hpo_flows.prefect_api.shared_server import SharedServer

CASES = {"rung-1000": ("rung", 694), "job-1000": ("job", 694), "job-250": ("job", 170)}
SIGHTS = {"older UI": "", "newer UI": "/v2"}
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
QUIET = [
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
]  # fmt: skip
CLIENT = "ui_thousand"
STILL = 1.0
"""Seconds without a change after which a page counts as drawn."""
PATIENCE = 90.0
RUNNING = 30.0
_BLOCKED = """() => { window.blocked = 0; new PerformanceObserver(seen => { for (const task of seen.getEntries())
    window.blocked += task.duration - 50 }).observe({type: "longtask", buffered: true}) }"""


def start_study(name: str, grain: str, configs: int, folder: Path) -> subprocess.Popen[bytes]:
    study = {
        "study": name,
        "objective": "objective:train_saving",
        "pythonpath": [str(result_file.ROOT / "jobs")],
        "metric": {"name": "loss"},
        "space": {"x": {"type": "float", "low": 0.0, "high": 1.0}},
        "search": {"method": "asha", "configs": configs, "min_resource": 1, "max_resource": 9, "reduction_factor": 3},
        "cluster": {"kind": "local", "workers": 2},
        "tracking": {"mlflow": "off"},
        "prefect": f"{grain}s",
    }
    file = folder / f"{name}.yaml"
    file.write_text(json.dumps(study))  # JSON is YAML
    command = [sys.executable, "-m", "hpo_flows", "tune", str(file), "--home", str(folder / "home"), "--json"]
    path = os.pathsep.join(filter(None, [str(result_file.ROOT.parent), os.environ.get("PYTHONPATH")]))
    with (folder / f"{name}.out").open("wb") as out, (folder / f"{name}.err").open("wb") as err:
        return subprocess.Popen(command, stdout=out, stderr=err, cwd=folder, env=os.environ | {"PYTHONPATH": path})


class Api:
    """The server's API, as its UI uses it."""

    def __init__(self, server: SharedServer) -> None:
        self.url = server.url
        self.password = base64.b64encode(server.auth.encode()).decode()
        self._headers = {"content-type": "application/json", "authorization": f"Basic {self.password}"}
        token = json.loads(self.ask(f"csrf-token?client={CLIENT}"))["token"]
        self._headers |= {"prefect-csrf-client": CLIENT, "prefect-csrf-token": token}

    def ask(self, path: str, body: dict[str, Any] | None = None) -> bytes:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"{self.url}/api/{path}", data, self._headers)
        with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
            return bytes(answer.read())

    def run_of(self, name: str) -> dict[str, Any] | None:
        found = json.loads(self.ask("flow_runs/filter", {"flow_runs": {"name": {"any_": [f"tune-{name}"]}}}))
        return found[0] if found else None

    def timed(self, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        """Milliseconds (median and slowest of 20) and size of one answer."""
        spent, size = [], 0
        for _ in range(20):
            began = time.perf_counter()
            size = len(self.ask(path, body))
            spent.append((time.perf_counter() - began) * 1e3)
        return {
            "ms": round(statistics.median(spent), 1),
            "slowest_ms": round(max(spent), 1),
            "kB": round(size / 1e3, 1),
        }

    def figures(self, run: str) -> dict[str, Any]:
        mine = {"flow_runs": {"id": {"any_": [run]}}}
        newest = {"sort": "EXPECTED_START_TIME_DESC", "limit": 200}
        logs = {"logs": {"flow_run_id": {"any_": [run]}}, "limit": 200, "sort": "TIMESTAMP_ASC"}
        return {
            "task runs": self.timed("task_runs/filter", mine | newest),
            "timeline": self.timed(f"flow_runs/{run}/graph-v2"),
            "log": self.timed("logs/filter", logs),
        }


class Sight:
    """One look at a flow run's page, with an empty cache."""

    password = ""
    """Of the server, as its pages keep it once a person has logged in."""

    def __init__(self, browser: Any, address: str) -> None:
        self.context = browser.new_context(viewport={"width": 1200, "height": 900})
        self.page = self.context.new_page()
        self.page.set_default_timeout(PATIENCE * 1e3)
        self.page.add_init_script(f"({_BLOCKED})(); localStorage.setItem('prefect-password', '{self.password}')")
        self._kinds: dict[str, bool] = {}
        self.bytes = {"api": 0, "files": 0}
        wire = self.context.new_cdp_session(self.page)
        wire.send("Network.enable")
        wire.send("Performance.enable", {"timeDomain": "threadTicks"})
        self._wire = wire
        wire.on("Network.requestWillBeSent", lambda sent: self._sent(sent["requestId"], sent["request"]["url"]))
        wire.on("Network.loadingFinished", lambda done: self._loaded(done["requestId"], done["encodedDataLength"]))
        self.began = time.monotonic()
        self.page.goto(address, wait_until="commit")

    def _sent(self, request: str, url: str) -> None:
        self._kinds[request] = "/api/" in url

    def _loaded(self, request: str, size: int) -> None:
        self.bytes["api" if self._kinds.get(request) else "files"] += int(size)

    def still(self) -> float:
        """Seconds since the last click (or the address) until the page's picture no longer changed."""
        last, since = b"", time.monotonic()
        while time.monotonic() - self.began < PATIENCE:
            at = time.monotonic()
            picture = self.page.screenshot(animations="disabled", caret="hide")
            if picture != last:
                last, since = picture, at
            elif at - since >= STILL:
                return since - self.began
            self.page.wait_for_timeout(50)
        raise SystemExit(f"The page still changed after {PATIENCE:g} s: {self.page.url}")

    def see(self, text: str, patience: float = PATIENCE) -> float:
        """The same until a text is there."""
        self.page.get_by_text(text).first.wait_for(timeout=patience * 1e3)
        return time.monotonic() - self.began

    def open_list(self) -> None:
        tab = self.page.get_by_text("Task Runs", exact=True).first
        tab.wait_for()
        self.began = time.monotonic()
        tab.click()

    def blocked(self) -> float:
        return float(self.page.evaluate("window.blocked")) / 1e3

    def cpu(self) -> float:
        found = {item["name"]: item["value"] for item in self._wire.send("Performance.getMetrics")["metrics"]}
        return float(found["TaskDuration"])


def look(browser: Any, address: str, first: str, picture: Path | None) -> dict[str, float]:
    """Figures of one look; ``first`` is in the name of every task run."""
    sight = Sight(browser, address)
    sight.see("trial 0 at 1")
    found = {"page_s": sight.still(), "page_blocked_s": sight.blocked(), "page_cpu_s": sight.cpu()}
    found |= {"api_kB": sight.bytes["api"] / 1e3, "files_kB": sight.bytes["files"] / 1e3}
    if picture is not None:
        sight.page.screenshot(path=picture)
    before, used, loaded = sight.blocked(), sight.cpu(), sight.bytes["api"]
    sight.open_list()
    sight.see(first)
    found |= {"list_s": sight.still(), "list_blocked_s": sight.blocked() - before, "list_cpu_s": sight.cpu() - used}
    found["list_api_kB"] = (sight.bytes["api"] - loaded) / 1e3
    if picture is not None:
        sight.page.screenshot(path=picture.with_stem(f"{picture.stem}-list"))
    sight.context.close()
    return found


def look_while_running(browser: Any, address: str, first: str, process: subprocess.Popen[bytes]) -> dict[str, float]:
    from playwright.sync_api import TimeoutError as NotThereError

    sight = Sight(browser, address)
    found: dict[str, float] = {}
    for key, text in (("running_page_s", "trial 0 at 1"), ("running_list_s", first)):
        try:
            if text == first:
                sight.open_list()
            seconds = sight.see(text, RUNNING)
        except NotThereError:
            seconds = RUNNING
        if process.poll() is None:
            found[key] = seconds
    sight.context.close()
    return found


def measure(browser: Any, api: Api, name: str, folder: Path, given: argparse.Namespace) -> dict[str, Any]:
    grain, configs = CASES[name]
    process = start_study(name, grain, configs, folder)
    first = "/rung-0/to-1"
    try:
        while (run := api.run_of(name)) is None or not run["estimated_run_time"]:
            if process.poll() is not None:
                raise SystemExit(f"{name} did not start:\n{(folder / f'{name}.err').read_text()[-2000:]}")
            time.sleep(0.2)
        pages = {sight: f"{api.url}{prefix}/runs/flow-run/{run['id']}" for sight, prefix in SIGHTS.items()}
        time.sleep(3)
        running = {sight: look_while_running(browser, page, first, process) for sight, page in pages.items()}
        if process.wait(timeout=900):
            raise SystemExit(f"{name} failed:\n{(folder / f'{name}.err').read_text()[-2000:]}")
    finally:
        if process.poll() is None:
            process.terminate()
            process.wait()
    summary = json.loads((folder / f"{name}.out").read_text())
    found: dict[str, Any] = {"grain": grain, "jobs": summary["jobs"], "seconds": summary["seconds"]}
    found["task_runs"] = len(json.loads(api.ask(f"flow_runs/{run['id']}/graph-v2"))["nodes"])
    for sight, page in pages.items():
        picture = None if given.pictures is None else given.pictures / f"{name}-{sight.split()[0]}.png"
        looks = [look(browser, page, first, None if turn else picture) for turn in range(given.repeats)]
        shown = {key: round(statistics.median(one[key] for one in looks), 2) for key in looks[0]}
        shown |= {key: round(value, 2) for key, value in running[sight].items()}
        found[sight] = shown | {"page_s_all": [round(one["page_s"], 2) for one in looks]}
    found["load_after"] = round(os.getloadavg()[0], 1)
    found["api"] = api.figures(str(run["id"]))
    print(f"  {name}: done (load {os.getloadavg()[0]:.1f})", file=sys.stderr, flush=True)
    return found


def tables(figures: dict[str, dict[str, Any]]) -> str:
    """As Markdown."""
    head = ["study", "UI", "page s", "blocked s", "CPU s", "API kB", "list s", "blocked s", "CPU s", "API kB"]
    head.append("running: page, list s")
    keys = ("page_s", "page_blocked_s", "page_cpu_s", "api_kB", "list_s", "list_blocked_s", "list_cpu_s", "list_api_kB")
    rows = []
    for found in figures.values():
        study = f"{found['jobs']:,} jobs, {found['task_runs']:,} task runs"
        for sight in SIGHTS:
            shown = found[sight]
            alive = [_while_running(shown[key]) for key in ("running_page_s", "running_list_s") if key in shown]
            rows.append([study, sight, *(f"{shown[key]:,.1f}" for key in keys), ", ".join(alive) or "-"])
    pages = result_file.markdown(head, rows)
    rows = [
        [f"{found['jobs']:,} jobs, {found['task_runs']:,} task runs"]
        + [f"{one['ms']:g} ({one['slowest_ms']:g}) ms, {one['kB']:,.0f} kB" for one in found["api"].values()]
        for found in figures.values()
    ]
    return (
        pages
        + "\n"
        + result_file.markdown(["API: median (slowest) of 20", "task runs (200)", "timeline", "log (200)"], rows)
    )


def _while_running(seconds: float) -> str:
    return f"more than {RUNNING:g}" if seconds >= RUNNING else f"{seconds:.1f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=3, help="looks at each page; the median counts")
    parser.add_argument("--pictures", type=Path, help="a folder for screenshots")
    parser.add_argument("--out", help="JSON file; default: results/ui_thousand.json")
    given = parser.parse_args()
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        raise SystemExit("No playwright: pip install playwright. Nothing was measured.") from None
    if CHROMIUM is None:
        raise SystemExit("No Chromium on this machine. Nothing was measured.")
    if given.pictures is not None:
        given.pictures.mkdir(parents=True, exist_ok=True)
    facts = result_file.machine()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # ends what was started, too
    for name in ("HPO_HOME", "HPO_JOURNAL", "HPO_DATABASE", "PREFECT_API_URL"):
        os.environ.pop(name, None)
    with tempfile.TemporaryDirectory(prefix="hpo-ui-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        server = SharedServer(folder / "home" / "prefect")
        try:
            server.start()
            server.wait()
            with sync_playwright() as driver:
                browser = driver.chromium.launch(executable_path=CHROMIUM, args=QUIET)
                api = Api(server)
                Sight.password = api.password
                Sight(browser, server.url).context.close()  # the browser's own first use
                figures = {case: measure(browser, api, case, folder, given) for case in CASES}
                browser.close()
        finally:
            server.close()
    loads = ", ".join(f"{found['load_after']:g}" for found in figures.values())
    text = f"{facts['cores']} cores; load {facts['load_at_start']:g} at the start, {loads} after each study.\n\n"
    text += tables(figures)
    print(text)
    result_file.write("ui_thousand", facts, {"figures": figures}, given.out)
    if given.out is None:
        (result_file.RESULTS / "ui_thousand.md").write_text(f"# {(__doc__ or '').splitlines()[0]}\n\n{text}")


if __name__ == "__main__":
    main()
