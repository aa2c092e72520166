"""Functions that a study names are imported by whoever calls them: what is wrong with them is said."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from hpo_core.model.errors import HpoError
from hpo_core.training.objective import load_objective


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("lab_a.py:train", "", "names a file; name the module: lab_a:train"),
        ("nowhere:train", "", "there is no module 'nowhere' in .*pythonpath"),
        ("lab_aa:train", "", "there is no module 'lab_aa' .*Did you mean 'lab_a'"),
        ("lab_b:trian", "def train(trial): ...", "module 'lab_b' has no function 'trian'; did you mean 'train'"),
        ("lab_c:fit", "def train(trial): ...", "module 'lab_c' has no function 'fit'; it has train"),
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
