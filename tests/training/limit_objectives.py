"""Training functions that exceed a limit: each moves the clock of the process that watches it; no tests in here."""

from __future__ import annotations

import time

import fsspec
from fsspec.implementations.local import LocalFileSystem

from hpo_core import State
from tests.training import zygote_watch
from tests.training.zygote_watch import move_clock, stand_still

zygote_watch.install()


class SlowFileSystem(LocalFileSystem):
    """``slow:///folder``: local files, and an hour for each that is opened or fetched."""

    protocol = "slow"
    seconds = 3600.0

    @classmethod
    def _strip_protocol(cls, path):
        return LocalFileSystem._strip_protocol(str(path).removeprefix("slow://"))

    def _open(self, path, mode="rb", block_size=None, **more):
        move_clock(self.seconds)
        return super()._open(path, mode=mode, block_size=block_size, **more)

    def get_file(self, *paths, **more):
        move_clock(self.seconds)
        return super().get_file(*paths, **more)


fsspec.register_implementation("slow", SlowFileSystem, clobber=True)


def train(trial):
    """Saves a little; after the step that ``at`` names, it prints and ``lasts`` seconds pass."""
    trial.track(counter=State(value=0))
    for step in trial.steps():
        trial.report(loss=0.5)
        if step == trial.params.get("stands_still_at"):
            stand_still(trial.params["lasts"])
        if step == trial.params.get("at"):
            sleeps(trial.params["lasts"], trial.params.get("lines", 0))


def sleeps(seconds, lines):
    for number in range(lines):
        print(f"{number:099d}")
    print("the last line")
    move_clock(seconds)
    time.sleep(600)
