"""The full run fails for a skip that nobody stated, in a test and in a whole module."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from tests import stated_skips

ROOT = Path(__file__).parents[2]


def full_run(folder: Path, processes: str, files: dict[str, str]) -> subprocess.CompletedProcess[str]:
    for name, body in (files | {"test_passes.py": "def test_two():\n    pass\n"}).items():
        (folder / name).write_text(body)
    return subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-p",
            "no:cacheprovider",
            "-c",
            ROOT / "pyproject.toml",
            "--rootdir",
            ROOT,
            "-p",
            "tests.conftest",
            "--stated-skips",
            "-n",
            processes,
            folder,
        ],  # fmt: skip
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=600,
    )


def test_skips_that_nobody_stated_fail_the_full_run(tmp_path: Path) -> None:
    test = "import pytest\ndef test_one():\n    pytest.skip('needs a rainy day')\n"
    module = "import pytest\npytest.importorskip('no_such_package')\n"
    stated = "import pytest\ndef test_one():\n    pytest.skip('needs an NVIDIA GPU that this torch can use')\n"
    done = full_run(tmp_path, "0", {"test_skips.py": test, "test_stated.py": stated, "test_module.py": module})
    assert done.returncode == 1, done.stdout + done.stderr
    assert "not stated in stated_skips.txt: needs a rainy day" in done.stdout
    assert "not stated in stated_skips.txt: could not import 'no_such_package'" in done.stdout
    assert "an NVIDIA GPU" not in done.stdout


def test_every_line_of_the_list_is_a_reason_with_a_comment() -> None:
    lines = stated_skips.STATED.read_text().splitlines()
    assert all("#" in line for line in lines if line)
    assert all(isinstance(pattern, re.Pattern) for pattern in stated_skips.patterns())
