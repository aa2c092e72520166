"""The searches that were played, one a line: what is there is not played again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from .comparison import Regrets, Run

WAYS = {"trained": "the incumbent, fully trained", "checkpoint": "the incumbent's checkpoint as it is"}


class Key(NamedTuple):
    """Names one search, as a line of the file does."""

    space: str
    problem: str
    system: str
    seed: int


class RunFile:
    """Appended to after each search, so a benchmark that was stopped goes on where it was."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.lines: dict[Key, dict[str, Any]] = {}
        if path.exists():
            for text in path.read_text().splitlines():
                line = json.loads(text)
                self.lines[Key(line["space"], line["problem"], line["system"], line["seed"])] = line

    def forget(self, systems: list[str]) -> None:
        """Drop the searches of systems that have changed."""
        self.lines = {key: line for key, line in self.lines.items() if key.system not in systems}
        partial = self._path.with_suffix(".partial")
        partial.write_text("".join(json.dumps(line) + "\n" for line in self.lines.values()))
        partial.replace(self._path)

    def add(self, key: Key, found: dict[str, Any]) -> None:
        line = self.lines[key] = key._asdict() | found
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("a") as file:
            file.write(json.dumps(line) + "\n")

    def runs(self, space: str, way: str) -> dict[Run, Regrets]:
        """Regrets of the searches that were played to the end, by one way of counting."""
        return {
            Run(key.problem, key.system, key.seed): np.array(line[way])
            for key, line in self.lines.items()
            if key.space == space and way in line
        }
