"""The full run fails for a skip that nobody stated, in a test and in a whole module."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from tests import stated_skips

ROOT = Path(__file__).parents[2]


def test_skips_that_nobody_stated_fail_the_full_run(tmp_path: Path) -> None:
    test = "import pytest\ndef test_one():\n    pytest.skip('needs {}')\n"
    module = "import pytest\npytest.importorskip('no_such_package')\n"
    (tmp_path / "test_skips.py").write_text(test.format("a rainy day"))
    (tmp_path / "test_stated.py").write_text(test.format("an NVIDIA GPU that this torch can use"))
    (tmp_path / "test_module.py").write_text(module)
    options = ["-c", ROOT / "pyproject.toml", "--rootdir", ROOT, "-p", "tests.conftest", "-p", "no:cacheprovider"]
    command = [sys.executable, "-m", "pytest", *options, "--stated-skips", "-n", "0", tmp_path]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "not stated in stated_skips.txt: needs a rainy day" in done.stdout
    assert "not stated in stated_skips.txt: could not import 'no_such_package'" in done.stdout
    assert "an NVIDIA GPU" not in done.stdout


def test_every_line_of_the_list_is_a_reason_with_a_comment() -> None:
    lines = stated_skips.STATED.read_text().splitlines()
    assert all("#" in line for line in lines if line)
    assert all(isinstance(pattern, re.Pattern) for pattern in stated_skips.patterns())
