from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

import pytest

from tests.hosts.lab import Lab, missing


class MakeLab(Protocol):
    def __call__(self, hosts: int, **options: Any) -> Lab: ...


@pytest.fixture(scope="session")
def _can_be_made() -> None:
    if why := missing():
        pytest.skip(why)


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    (tmp_path / "shared").mkdir()
    return tmp_path / "shared"


@pytest.fixture
def make_lab(_can_be_made: None, tmp_path: Path, shared: Path) -> Iterator[MakeLab]:
    """Makes a lab with the folder ``shared``."""
    made: list[Lab] = []

    def make(hosts: int, **options: Any) -> Lab:
        made.append(Lab(tmp_path / f"lab-{len(made)}", hosts=hosts, shared=[shared], **options))
        return made[-1]

    yield make
    for lab in made:
        lab.close()
