"""Retrains a toy on several data files and prints what came of each, for ``test_retrain.py``."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from flows.retrain import Rules, retrain
from hpo_core.home import Home
from hpo_core.tracking.registry import ModelRegistry


def studies() -> list[str]:
    return [info.name for info in Home().read_journal().studies()]


def attempt(**parameters: Any) -> dict[str, Any]:
    rules = Rules(repeats=3)
    try:
        return retrain(model="line", rules=rules, **parameters) | {"studies": studies()}
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}", "studies": studies()}


def main(folder: Path) -> None:
    def write(name: str, **plain: Any) -> str:
        path = folder / f"{name}.json"
        path.write_text(json.dumps(plain))
        return str(path)

    function = "tests.flows.retrain_objectives:evaluate"
    found: dict[str, Any] = {}
    found["nobody"] = attempt(data=write("similar", offset=0.2, seed=1))
    found["similar"] = attempt(data=write("similar", offset=0.2, seed=1), evaluate=function, study="line")
    found["broken"] = attempt(data=write("broken", broken=True))
    found["fragile"] = attempt(data=write("fragile", offset=0.2, seed=3))

    promote = ModelRegistry.promote

    def crash(self: ModelRegistry, version: int) -> None:
        raise ConnectionError("MLflow went away")

    ModelRegistry.promote = crash  # type: ignore[method-assign]
    drifted = write("drifted", offset=0.9, seed=2)
    found["crashed"] = attempt(data=drifted)
    ModelRegistry.promote = promote  # type: ignore[method-assign]
    found["drifted"] = attempt(data=drifted)
    found["again"] = attempt(data=write("the-same-by-another-name", offset=0.9, seed=2))
    print(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
