import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.flows.conftest import hpo, make_hpo

__all__ = ["hpo", "make_hpo", "open_folder"]


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that other users may enter; pytest's own ones are closed again whenever a second run begins."""
    with tempfile.TemporaryDirectory(prefix="hpo-test-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        yield folder
