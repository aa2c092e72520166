"""Studies in a notebook: in a real Jupyter kernel, and what the cells show."""

from __future__ import annotations

import json
import os
import re
import sys
import time
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import nbformat
import psutil
import pytest
from jupyter_client.manager import KernelManager

import hpo_core as hpo
from docs.hooks.notebooks import NOTEBOOKS, ROOT, cleaned, executed
from hpo_core.model.trial import Outcome, Report
from hpo_flows import python_progress
from hpo_flows.python_progress import Cell
from tests.conftest import make_spec

LIMIT = 600.0
"""Seconds that a kernel may take for a cell on a busy machine."""
TRAIN = """
import time
from pathlib import Path
import hpo_core as hpo

gate = Path("gate").resolve()
scale = 1.0

def train(trial):
    for step in trial.steps():
        trial.report(loss=scale * (trial.params["x"] - 0.3) ** 2 + 1 / (step + 1))

def slow(trial):
    for step in trial.steps():
        while not gate.exists():
            time.sleep(0.05)
        trial.report(loss=trial.params["x"])

space = {"x": hpo.Float(0, 1), "<script>alert(1)</script>": hpo.Choice("<b>bold</b>", "plain")}
random = {"metric": "loss", "method": hpo.Random(configs=4), "workers": 1, "seed": 1}
"""


class Kernel:
    """A kernel of a notebook in a folder, and what its cells leave."""

    def __init__(self, folder: Path) -> None:
        self.manager = KernelManager(kernel_name="python3")
        self.manager.start_kernel(cwd=str(folder), env=os.environ | {"PYTHONPATH": str(ROOT)})
        self.client = self.manager.client()
        self.client.start_channels()
        self.client.wait_for_ready(timeout=LIMIT)

    @property
    def process(self) -> psutil.Process:
        pid: Any = getattr(self.manager.provisioner, "pid", None)
        return psutil.Process(pid)

    def begin(self, code: str) -> str:
        identity: str = self.client.execute(code, store_history=True)
        return identity

    def wait_for(self, words: str) -> Outputs:
        """Read outputs until one of them says ``words``; returns all of them."""
        outputs, deadline = Outputs(), time.monotonic() + LIMIT
        while time.monotonic() < deadline:
            message = self.client.get_iopub_msg(timeout=LIMIT)
            outputs.take(message)
            if words in json.dumps(message["content"]):
                return outputs
        raise AssertionError(words)

    def finish(self, identity: str, outputs: Outputs | None = None) -> Outputs:
        """Outputs of a cell to its end, after those that were read before."""
        outputs = outputs or Outputs()
        while True:
            message = self.client.get_iopub_msg(timeout=LIMIT)
            outputs.take(message)
            idle = message["msg_type"] == "status" and message["content"]["execution_state"] == "idle"
            if idle and message["parent_header"].get("msg_id") == identity:
                return outputs

    def run(self, code: str) -> Outputs:
        return self.finish(self.begin(code))

    def close(self) -> None:
        self.client.stop_channels()
        if self.manager.has_kernel:
            self.manager.shutdown_kernel(now=True)
        self.manager.cleanup_resources()


class Outputs:
    """Outputs of a cell as a front end keeps them: an update replaces the display of its id."""

    def __init__(self) -> None:
        self.shown: list[dict[str, str]] = []
        self.drawn: list[dict[str, str]] = []
        self.streams = ""
        self.error = ""
        self.traceback = ""
        self._places: dict[str, int] = {}

    def take(self, message: dict[str, Any]) -> None:
        content = message["content"]
        match message["msg_type"]:
            case "stream":
                self.streams += content["text"]
            case "error":
                self.error = f"{content['ename']}: {content['evalue']}"
                self.traceback = "\n".join(content["traceback"])
            case "display_data":
                if "display_id" in content["transient"]:
                    self._places[content["transient"]["display_id"]] = len(self.shown)
                self.shown.append(content["data"])
                self.drawn.append(content["data"])
            case "update_display_data":
                self.shown[self._places[content["transient"]["display_id"]]] = content["data"]
                self.drawn.append(content["data"])
            case "execute_result":
                self.shown.append(content["data"])


class Tags(HTMLParser):
    """Elements and words of a piece of HTML."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.words = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        assert not any(name.startswith("on") for name, _ in attrs)

    def handle_data(self, data: str) -> None:
        self.words += data


def trained_by(kernel: Kernel) -> list[psutil.Process]:
    """Processes below a kernel, without the one in which Python tracks resources until the kernel ends."""
    found = kernel.process.children(recursive=True)
    return [process for process in found if "resource_tracker" not in " ".join(process.cmdline())]


@pytest.fixture(scope="module")
def kernel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kernel]:
    made = Kernel(tmp_path_factory.mktemp("notebook"))
    yield made
    made.close()


@pytest.fixture(scope="module")
def ready(kernel: Kernel) -> Kernel:
    found = kernel.run(TRAIN)
    assert not found.error and not found.shown
    return kernel


@pytest.fixture(scope="module")
def found(ready: Kernel) -> Outputs:
    """Outputs of a cell that runs a study."""
    return ready.run("result = hpo.tune(train, space, name='first', home=None, **random)")


def only_says_what_starts(found: Outputs) -> bool:
    return found.streams.startswith("starting: ") and found.streams.count("\n") == 1


def test_a_cell_shows_one_board_drawn_in_place_and_keeps_its_last_state(found: Outputs) -> None:
    assert not found.error and only_says_what_starts(found)
    (board,) = found.shown
    assert len(found.drawn) > 2, "it was drawn before the start, while the study ran and at its end"
    assert found.drawn[0]["text/plain"] == "first starts"
    assert any("jobs done, 0 running, 0 s elapsed" in drawn["text/plain"] for drawn in found.drawn)
    for kind in ("text/plain", "text/html"):
        assert "finished: 4 jobs done in" in board[kind] and "ETA" not in board[kind] and "4/4" in board[kind]
    assert "best     loss " in board["text/plain"]


def test_a_result_shows_its_best_trial_and_a_picture_and_no_parameter_becomes_html(
    ready: Kernel, found: Outputs
) -> None:
    assert not found.error
    (shown,) = ready.run("result").shown
    page = Tags(shown["text/html"])
    assert set(page.tags) == {"div", "b", "span", "table", "thead", "tbody", "tr", "th", "td", "img"}
    assert "<script>alert(1)</script>" in page.words and "finished, 4 trials" in page.words
    assert 'src="data:image/svg+xml;base64,' in shown["text/html"] and "http" not in shown["text/html"]
    (best,) = ready.run("result.best").shown
    assert set(Tags(best["text/html"]).tags) == {"div", "table", "thead", "tbody", "tr", "th", "td"}


def test_a_named_study_that_runs_again_is_refused_in_few_lines_with_its_cure(ready: Kernel) -> None:
    """*Restart and run all*: once the cure stood below several screens of frames."""
    kept = "tracking=hpo.Tracking(mlflow='off'), prefect='off', home='kept', progress=False, **random)"
    call = f"twice = hpo.tune(train, space, name='twice', {kept}"
    assert not ready.run(call).error
    refused = ready.run(call)
    assert refused.error.startswith("StudyExistsError")
    lines = refused.traceback.splitlines()
    assert len(lines) < 6 and "hpo.tune(train" in refused.traceback, refused.traceback
    assert "resume=True" in lines[-1] and "twice" in lines[-1]
    assert not ready.run(f"again = hpo.tune(train, space, name='twice', resume=True, {kept}").error


def test_an_error_of_the_first_trial_ends_the_board_with_it(ready: Kernel) -> None:
    code = (
        "def bad(trial):\n    raise ValueError('no such thing')\nhpo.tune(bad, space, name='bad', home=None, **random)"
    )
    found = ready.run(code)
    assert found.error == "ObjectiveError: ValueError: no such thing"
    (board,) = found.shown
    assert "bad  ended by ObjectiveError: 0 jobs done" in board["text/plain"] and "ETA" not in board["text/plain"]
    found = ready.run("hpo.tune(train, space, metric='loss', workers=1, method=hpo.Random(configs=1), journal='x://y')")
    assert found.error and "starts" not in "".join(shown["text/plain"] for shown in found.shown)


def test_interrupt_kernel_halts_a_study_which_goes_on_and_leaves_no_process(ready: Kernel) -> None:
    before = trained_by(ready)  # home=None trains below the kernel itself, and may leave a trainer for the next study
    identity = ready.begin(
        "long = hpo.tune(slow, {'x': hpo.Float(0, 1)}, metric='loss', name='long', home='kept', workers=1, "
        "method=hpo.Random(configs=2), prefect='off', tracking={'mlflow': 'off'})"
    )
    begun = ready.wait_for("1 running")
    assert set(trained_by(ready)) - set(before)
    ready.manager.interrupt_kernel()
    found = ready.finish(identity, begun)
    assert found.error.startswith("KeyboardInterrupt") and only_says_what_starts(found), "no traceback of a worker"
    assert "halted: 0 jobs done" in found.drawn[-1]["text/plain"]
    _, alive = psutil.wait_procs(set(trained_by(ready)) - set(before), timeout=600)
    assert not alive, [process.cmdline() for process in alive]
    (status,) = ready.run("hpo.load('long', home='kept').status").shown
    assert status["text/plain"] == "'halted'"
    found = ready.run("gate.touch()\nhpo.resume('long', home='kept', prefect='off').status")
    assert not found.error and found.shown[-1]["text/plain"] == "'finished'"


# What is shown, without a kernel.


def test_messages_and_warnings_of_training_functions_do_not_become_html_of_the_board() -> None:
    class Seen(Cell):
        def show(self, pictures: dict[str, str]) -> None:
            self.pictures = pictures

    study, cell = hpo.Study.create(make_spec(search={"method": "random", "configs": 50})), Seen()
    board = python_progress.NotebookBoard(study, cell)
    for place, job in enumerate(study.set_capacity(python_progress.MOST_WARNINGS + 5)):
        nasty = f"<img src=x onerror=alert({place})>"
        report = Report(
            trial=job.trial, attempt=job.attempt, outcome=Outcome.ERROR, message=nasty, warnings=(f"{nasty} warned",)
        )
        board.on_report(report, study.tell_report(report))
    board._draw()
    page = Tags(cell.pictures["text/html"])
    assert "img" not in page.tags and page.words.count("> warned") == python_progress.MOST_WARNINGS
    assert f"alert({place})> warned" in page.words and "alert(0)> warned" not in page.words


# The notebooks of the examples.


def kinds(notebook: nbformat.NotebookNode) -> list[list[tuple[str, tuple[str, ...]]]]:
    """Kinds of the outputs of each cell of code."""
    return [
        [(one.output_type, tuple(sorted(one.get("data", {})))) for one in cell.outputs if one.output_type != "stream"]
        for cell in notebook.cells
        if cell.cell_type == "code"
    ]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_committed_notebooks_are_executed_small_and_of_no_machine(path: Path) -> None:
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    written = path.read_text()
    assert len(written) < 200_000
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in code] == list(range(1, len(code) + 1))
    assert not any(output.output_type == "error" for cell in code for output in cell.outputs)
    assert not re.search(r'/(home|root|tmp|work|Users)/|0x[0-9a-f]{6}|"id": "[0-9a-f]{8}"', written)
    again = nbformat.writes(cleaned(nbformat.reads(written, as_version=4), Path("/nowhere")))
    assert json.loads(again) == json.loads(written)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["first_study", "tutorial"])
def test_a_notebook_runs(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = ROOT / "examples" / "notebook" / f"{name}.ipynb"
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    assert kinds(executed(path, tmp_path)) == kinds(nbformat.read(path, as_version=4))
