"""A system that answers for ``searches.play_peer``: one line of JSON in, one out. Standard library only.

- ``start``: method, space (as in a study file), resource (of a full training), workers, seed.
- ``ask``: a worker is free. Answer: trial, its params, start (the resource it resumes from) and target (where it
  reports next); or wait, where the system wants a result first.
- ``tell``: trial, resource, loss (null: not finite). Answer: target, where the worker trains on; or nothing.
- ``end``: answer: cpu_seconds that asking and telling took.

An answer begins with ``ANSWER``: systems print when they are imported.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import time
import warnings
from typing import Any, Protocol

ANSWER = "answer: "


class System(Protocol):
    def ask(self) -> dict[str, Any]: ...

    def tell(self, trial: str, resource: int, loss: float) -> dict[str, Any]: ...


class Worst:
    """What a result that is not finite is told as: the worst finite one so far."""

    def __init__(self) -> None:
        self._worst = 0.0
        self._any = False

    def __call__(self, loss: float | None) -> float:
        if loss is None:
            return self._worst
        self._worst = max(self._worst, loss) if self._any else loss
        self._any = True
        return loss


def serve(create: Any) -> None:
    """Answer until the input ends. ``create(start)`` makes the system."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what a system prints from here on
    warnings.filterwarnings("ignore")
    logging.disable(logging.CRITICAL)
    system: System | None = None
    for line in sys.stdin:
        message = json.loads(line)
        began = time.process_time()
        if message["do"] == "start":
            system, found = create(message), {}
            worst, spent, began = Worst(), 0.0, time.process_time()
        elif message["do"] == "ask":
            found = system.ask()
        elif message["do"] == "tell":
            found = system.tell(message["trial"], message["resource"], worst(message["loss"]))
        else:
            found = {"cpu_seconds": round(spent, 3)}
        spent += time.process_time() - began
        answers.write(ANSWER + json.dumps(found) + "\n")
        answers.flush()
