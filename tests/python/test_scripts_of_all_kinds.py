"""``hpo.tune`` from scripts of all kinds: one study each, however the script was started, and no process left."""

from __future__ import annotations

import os
import subprocess
import sys
import uuid
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.waiting import eventually, living

IMPORTS = "import hpo_core as hpo\n"
TRAIN = """
from pathlib import Path
with open(FOLDER + "/begun", "a") as file:
    file.write("begun\\n")
FACTOR = 2.0
def scaled(x):
    return x * FACTOR
def train(trial):
    for step in trial.steps():
        trial.report(loss=scaled(trial.params["x"]) + step)

"""
CALL = """{name} = hpo.tune(
    train, {{"x": hpo.Float(0, 1)}}, metric="loss", max_trials=2, {place}, home=None, progress=False
)
print("ENDED", {name}.status, len({name}.trials), {name}.best.value)
"""
TUNE = CALL.format(name="result", place="workers=1")
GUARD = 'if __name__ == "__main__":\n'


def guarded(text: str) -> str:
    return GUARD + "".join(f"    {line}\n" for line in text.splitlines())


@dataclass
class Script:
    """A kind of script: its files, the command that runs it, what it reads."""

    files: dict[str, str]
    command: list[str]
    folder: str = "."
    typed: str = ""
    ends: str = "ENDED finished 2"
    begun: int = 1
    tag: str = field(default_factory=lambda: uuid.uuid4().hex)

    def start(self, home: Path) -> subprocess.Popen[str]:
        """Write the files and run it; FOLDER stands for its folder."""
        for name, text in self.files.items():
            file = home / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text.replace("FOLDER", repr(str(home))))
        (home / self.folder).mkdir(exist_ok=True)
        process = subprocess.Popen(
            [sys.executable, *(part.replace("FOLDER", repr(str(home))) for part in self.command)],
            cwd=home / self.folder,
            env={**os.environ, "OF_THIS_TEST": self.tag},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        process.stdin.write(self.typed.replace("FOLDER", repr(str(home))))
        process.stdin.close()
        return process

    def check(self, process: subprocess.Popen[str], home: Path) -> str:
        """It ran once, said how it ended, and left no process; returns what it printed."""
        printed = process.stdout.read()
        process.wait()
        assert self.ends in printed, printed
        assert (home / "begun").read_text().count("begun") == self.begun, printed
        eventually(lambda: not living("OF_THIS_TEST", self.tag), said=lambda: living("OF_THIS_TEST", self.tag))
        return printed


WHOLE = IMPORTS + TRAIN + TUNE
PACKAGE = {
    "package/__init__.py": "",
    "package/beside.py": "VALUE = 0\n",
    "package/tool.py": IMPORTS
    + "from . import beside\n"
    + TRAIN.replace("+ step", "+ step + beside.VALUE")
    + guarded(TUNE),
    # were the package's own folder searched first, this would be Python's
    "package/random.py": "raise RuntimeError('imported from inside the package')\n",
}
SPAWNS = """
import multiprocessing
def work(): pass
if __name__ == "__main__":
    process = multiprocessing.get_context("spawn").Process(target=work)
    process.start()
    process.join()
    raise SystemExit(f"ENDED with {process.exitcode}")
"""

BEGUN = """
with open(FOLDER + "/begun", "a") as file:
    file.write("begun\\n")
"""
ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "how-to" / "tune-in-a-notebook.md").read_text()
EXAMPLE = PAGE.partition("```python\n")[2].partition("```")[0]

KINDS = {
    "the example of the documentation": Script(
        {"train.py": EXAMPLE + 'print("ENDED", result.status, len(result.trials))' + BEGUN},
        ["train.py"],
        ends="ENDED finished 4",
    ),
    "a script without a guard, from another folder": Script({"train.py": WHOLE}, ["../train.py"], folder="else"),
    "standard input": Script({}, ["-"], typed=WHOLE),
    "a module of a package": Script(PACKAGE, ["-m", "package.tool"]),
    "a script that a process of its own imports again": Script(
        {"train.py": IMPORTS + SPAWNS + TRAIN + TUNE},
        ["train.py"],
        ends="hpo.tune is called while a process that the script started imports it again",
    ),
}


@pytest.mark.slow
def test_each_runs_one_study_and_leaves_no_process(tmp_path: Path) -> None:
    """They run side by side: each waits for processes most of the time."""
    running = {}
    for number, (kind, script) in enumerate(KINDS.items()):
        (home := tmp_path / str(number)).mkdir()
        running[kind] = script, script.start(home), home
    for script, process, home in running.values():
        script.check(process, home)
