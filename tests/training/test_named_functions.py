"""Functions that a study names are looked for by reading their modules: what is wrong is found, what may be is not."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from hpo_core.model.errors import SpecError
from hpo_core.training.objective import check_function, load_objective

GOOD = "def train(trial): ..."


def looked_for(folder: Path, name: str, files: dict[str, str], setting: str = "objective") -> None:
    for file, text in files.items():
        path = folder / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    check_function(setting, name, [str(folder)])


@pytest.mark.parametrize(
    ("name", "files", "says"),
    [
        ("lab_nowhere:train", {}, "there is no module 'lab_nowhere' in .*pythonpath"),
        ("lab_dgits:train", {"lab_digits.py": GOOD}, "there is no module 'lab_dgits' .*Did you mean 'lab_digits'"),
        ("lab.nowhere:train", {"lab/__init__.py": ""}, "there is no module 'lab.nowhere'"),
        ("lab:trian", {"lab.py": GOOD}, "module 'lab' has no function 'trian'; did you mean 'train'"),
        ("lab:fit", {"lab.py": GOOD}, "module 'lab' has no function 'fit'; it has train"),
        ("lab:fit", {"lab.py": "class A:\n    def inner(trial): ..."}, "has no function 'fit'; it has none at all"),
        ("lab:train", {"lab.py": "import os\ndef train(): ..."}, r"called with one argument, the trial, and takes none \(.*lab.py, line 2\)"),  # noqa: E501
        ("lab:train", {"lab.py": "def train(trial, data): ..."}, "and needs trial, data"),
        ("lab:train", {"lab.py": "def train(trial, *, data): ..."}, "and needs trial, data"),
        ("lab:train", {"lab.py": "def train(trial)\n    pass"}, "cannot be imported: expected ':' .*lab.py, line 1"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_found_without_an_import(tmp_path: Path, name: str, files: dict[str, str], says: str) -> None:
    with pytest.raises(SpecError, match=says) as found:
        looked_for(tmp_path, name, files)
    assert str(found.value).startswith(f"objective = {name!r}") and "lab" not in sys.modules


@pytest.mark.parametrize(
    "text",
    [
        GOOD,
        "raise RuntimeError('never imported')\n" + GOOD,
        "def train(trial, data=1, *more, key=2, **others): ...",
        "def train(*arguments): ...",
        "train = make()",
        "train: object = make()",
        "from other import train",
        "import train",
        "from other import fit as train",
        "from other import *",
        "if fast:\n    def train(trial): ...\nelse:\n    def train(trial, x): ...",
        "try:\n    from other import train\nexcept ImportError:\n    pass",
        "@decorated\ndef train(): ...",
        "class train:\n    def __call__(self, trial): ...",
        "a, train = make()",
        "for train in make(): pass",
        "with make() as train: pass",
        "(train := make())",
        "def __getattr__(name): ...",
        "globals()['train'] = make()",
        "import sys\nsys.modules[__name__].train = make()",
        "def make():\n    global train\n    train = 1",
    ],
)
def test_what_may_be_right_is_left_to_the_import(tmp_path: Path, text: str) -> None:
    looked_for(tmp_path, "lab:train", {"lab.py": text})


@pytest.mark.parametrize(
    ("name", "files"),
    [
        ("json:dumps", {}),  # of Python or an installed package
        ("lab.digits:train", {"lab/digits.py": GOOD}),  # a package without __init__
        ("lab.digits:train", {"lab/__init__.py": "__path__.append('elsewhere')"}),
        ("lab.digits:train", {"lab/__init__.py": "", "lab/digits.cpython-311-x86_64-linux-gnu.so": ""}),
        ("numpy.linalg:norm", {"numpy/notes.py": ""}),  # a folder of that name, and an installed package
    ],
)
def test_modules_that_cannot_be_read_here_are_left_to_the_import(
    tmp_path: Path, name: str, files: dict[str, str]
) -> None:
    looked_for(tmp_path, name, files)


@pytest.mark.parametrize(("setting", "argument"), [("build", "the parameters, a dict"), ("data.load", "the path of")])
def test_other_settings_are_named(tmp_path: Path, setting: str, argument: str) -> None:
    with pytest.raises(SpecError, match=f"^{re.escape(setting)} = 'lab:make': .* one argument, {argument}"):
        looked_for(tmp_path, "lab:make", {"lab.py": "def make(): ..."}, setting)


def test_arguments_of_a_decorated_function_are_seen_by_the_import(tmp_path: Path) -> None:
    (tmp_path / "lab_wrapped.py").write_text(
        "import functools\ndef same(f):\n    @functools.wraps(f)\n    def run(*a): return f(*a)\n    return run\n"
        "@same\ndef train(trial, data): ...\nclass Objective:\n    def __call__(self, trial): ...\n"
        "called = Objective()\npart = functools.partial(train, data=1)\n"
    )
    with pytest.raises(SpecError, match=r"one argument, the trial, and its signature is \(trial, data\)"):
        load_objective("lab_wrapped:train", [str(tmp_path)])
    for name in ("Objective", "called", "part"):
        assert callable(load_objective(f"lab_wrapped:{name}", [str(tmp_path)]))
