"""Errors in the user's code show the user's own frames: none of Python's import, of libraries, or of this package."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from hpo_core.model.errors import HpoError, ObjectiveError, SpecError
from hpo_core.model.trial import Job, Outcome, Report, Rung
from hpo_core.training.child.trainer import Trainer
from hpo_core.training.objective import load_objective, refuse_missing
from hpo_core.training.user_code import own_frames
from tests.job_requests import changed, make_request

LIBRARY = """
def fit(callback, depth=12):
    return callback() if not depth else fit(callback, depth - 1)
"""
OBJECTIVE = """
import loops_of_a_library
from hpo_core.integrations import refuse

def refused(trial):
    loops_of_a_library.fit(lambda: refuse((True, "EarlyStopping: it ends the training. Drop it.")))

def raises(trial):
    loops_of_a_library.fit(lambda: 1 / 0)
"""


@pytest.fixture
def folders(tmp_path: Path) -> Iterator[list[str]]:
    before = {*sys.modules}, [*sys.path]
    (tmp_path / "site-packages").mkdir()
    (tmp_path / "site-packages/loops_of_a_library.py").write_text(LIBRARY)
    (tmp_path / "own_objective.py").write_text(OBJECTIVE)
    yield [str(tmp_path), str(tmp_path / "site-packages")]
    for name in sys.modules.keys() - before[0]:
        del sys.modules[name]
    sys.path[:] = before[1]


def import_error(folders: list[str], **modules: str) -> str:
    for name, text in modules.items():
        Path(folders[0], f"{name}.py").write_text(text)
    with pytest.raises(ObjectiveError) as found:
        load_objective(f"{next(iter(modules))}:train", folders)
    return str(found.value)


def test_an_error_at_import_shows_the_modules_that_led_there(folders: list[str]) -> None:
    said = import_error(
        folders, own_first="x = 1\nimport own_second\n", own_second="import json\nCONFIG = json.loads('{bad')\n"
    )
    lines = [line.strip() for line in said.splitlines()]
    assert lines[0].startswith("objective = 'own_first:train' cannot be imported: JSONDecodeError: ")
    assert [line for line in lines if line.startswith("File ")] == [
        f'File "{folders[0]}/own_first.py", line 2, in <module>',
        f'File "{folders[0]}/own_second.py", line 2, in <module>',
    ]
    assert "(raised 3 calls deeper, in json/decoder.py, line " in said
    assert "importlib" not in said and "hpo_core" not in said and "Traceback" not in said


def test_the_cause_of_an_error_is_a_line() -> None:
    try:
        try:
            {}["width"]
        except KeyError as error:
            raise ValueError("no width") from error
    except ValueError as error:
        shown = own_frames(error)
    assert __file__ in shown and shown.endswith("  caused by KeyError: 'width'\n")


def attempt(folder: Path, folders: list[str], function: str) -> tuple[Report, str]:
    objective = f"own_objective:{function}"
    job = Job(3, 0, Rung(0, 0), 1, {}, None)
    trainer = Trainer(objective, folders)
    try:
        request = make_request(job=job, objective=objective, folder=str(folder))
        report = trainer.run(changed(request, pythonpath=tuple(folders)))
    finally:
        trainer.close()
    return report, (folder / "logs/trial-00003-attempt-0.log").read_text()


def test_a_refusal_shows_where_it_was_and_the_log_has_the_whole_traceback(tmp_path: Path, folders: list[str]) -> None:
    report, log = attempt(tmp_path, folders, "refused")
    assert report.outcome is Outcome.ERROR
    assert report.message == "ObjectiveError: EarlyStopping: it ends the training. Drop it."
    assert "own_objective.py" in report.detail
    assert "loops_of_a_library.py" not in report.detail and len(report.detail.splitlines()) <= 5
    assert log.count("loops_of_a_library.py") == 3 and "in refuse" in log


def test_an_error_of_training_keeps_its_whole_traceback(tmp_path: Path, folders: list[str]) -> None:
    report, log = attempt(tmp_path, folders, "raises")
    assert report.outcome is Outcome.ERROR and report.detail.startswith("Traceback")
    assert report.detail.count("loops_of_a_library.py") == 3 and report.detail in log


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("lab_a.py:train", "", "names a file; name the module: lab_a:train"),
        ("nowhere:train", "", "there is no module 'nowhere' in .*pythonpath"),
        ("lab_aa:train", "", "there is no module 'lab_aa' .*Did you mean 'lab_a'"),
        ("lab_b:trian", "def train(trial): ...", "module 'lab_b' has no function 'trian'; did you mean 'train'"),
        ("lab_c:fit", "def train(trial):\n    loss = 1", "module 'lab_c' has no function 'fit'; it has train"),
        ("lab_d:train", "def train(): ...", r"called with one argument, the trial, and its signature is \(\)"),
        ("lab_e:train", "def train(trial, data): ...", r"its signature is \(trial, data\)"),
        ("lab_f:train", "def train(trial)\n    pass", "cannot be imported: SyntaxError: expected ':' .*lab_f.py"),
    ],
)
def test_what_is_wrong_with_a_function_is_said(tmp_path: Path, name: str, text: str, says: str) -> None:
    (tmp_path / f"{'lab_a' if 'aa' in name else name.partition(':')[0]}.py").write_text(text)
    (tmp_path / "nowhere.py").unlink(missing_ok=True)
    with pytest.raises(HpoError, match=says) as found:
        load_objective(name, [str(tmp_path)])
    assert str(found.value).startswith(f"objective = {name!r}")
    if "there is no module" in says or "no function" in says:
        with pytest.raises(SpecError) as without_import:
            refuse_missing("objective", name, [str(tmp_path)])
        assert str(without_import.value) == str(found.value)


@pytest.mark.parametrize(
    "text",
    [
        "from json import *",
        "import json as fit",
        "if True:\n    fit = print",
        "globals()['fit'] = print",
        "def __getattr__(name): return print",
        "def train(trial)",
    ],
)
def test_a_function_that_may_be_there_is_not_refused_by_its_source(tmp_path: Path, text: str) -> None:
    (tmp_path / "lab_made.py").write_text(text)
    refuse_missing("objective", "lab_made:fit", [str(tmp_path)])


@pytest.mark.parametrize(("setting", "argument"), [("build", "the parameters, a dict"), ("data.load", "the path of")])
def test_other_settings_are_named(tmp_path: Path, setting: str, argument: str) -> None:
    (tmp_path / "lab_made.py").write_text("def make(): ...")
    with pytest.raises(HpoError, match=f"^{re.escape(setting)} = 'lab_made:make': .* one argument, {argument}"):
        load_objective("lab_made:make", [str(tmp_path)], setting=setting)


def test_arguments_of_a_decorated_function_are_seen_by_the_import(tmp_path: Path) -> None:
    (tmp_path / "lab_wrapped.py").write_text(
        "import functools\ndef same(f):\n    @functools.wraps(f)\n    def run(*a): return f(*a)\n    return run\n"
        "@same\ndef train(trial, data): ...\nclass Objective:\n    def __call__(self, trial): ...\n"
        "called = Objective()\npart = functools.partial(train, data=1)\n"
    )
    with pytest.raises(HpoError, match=r"one argument, the trial, and its signature is \(trial, data\)"):
        load_objective("lab_wrapped:train", [str(tmp_path)])
    for name in ("Objective", "called", "part"):
        assert callable(load_objective(f"lab_wrapped:{name}", [str(tmp_path)]))
