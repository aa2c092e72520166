"""A loader that takes an hour, by the clock of the process that watches training; for tests alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.hopping import hopping_objectives
from tests.training import zygote_watch

zygote_watch.install()


def load(path: Path) -> dict[str, Any]:
    zygote_watch.move_clock(3600.0)
    return hopping_objectives.load(path)


train = hopping_objectives.train
