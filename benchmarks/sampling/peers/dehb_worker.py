"""DEHB with its defaults, ask and tell. Each evaluation trains from the beginning."""

from __future__ import annotations

import tempfile
from typing import Any

from dehb import DEHB
from protocol import serve
from spaces import config_space, plain


class Dehb:
    def __init__(self, start: dict[str, Any]) -> None:
        self._space = start["space"]
        space = config_space(self._space, start["seed"])
        self._dehb = DEHB(
            cs=space, f=None, dimensions=len(space), min_fidelity=1, max_fidelity=start["resource"], eta=3, n_workers=1,
            seed=start["seed"], save_freq="end", output_path=tempfile.mkdtemp(), log_level="ERROR",
        )  # fmt: skip
        self._jobs: dict[tuple[str, int], list[dict[str, Any]]] = {}

    def ask(self) -> dict[str, Any]:
        job = self._dehb.ask()
        trial, target = str(job["config_id"]), max(1, round(job["fidelity"]))
        self._jobs.setdefault((trial, target), []).append(job)
        return {"trial": trial, "params": plain(self._space, job["config"]), "start": 0, "target": target}

    def tell(self, trial: str, resource: int, loss: float) -> dict[str, Any]:
        self._dehb.tell(self._jobs[trial, resource].pop(), {"fitness": loss, "cost": resource})
        return {}


if __name__ == "__main__":
    serve(Dehb)
