"""Retrains a toy on several data files and prints what came of each, for ``test_retrain.py``."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from mlflow import MlflowClient

from hpo_core import Study
from hpo_core.home import Home
from hpo_core.retraining.model_registry import ModelRegistry
from hpo_core.spec import load_spec
from hpo_flows.retrain import Rules, retrain
from hpo_flows.retraining_run import Retraining

FUNCTION = "tests.retraining.retrain_objectives:evaluate"


def studies() -> list[str]:
    return [info.name for info in Home().read_journal().studies()]


def attempt(**parameters: Any) -> dict[str, Any]:
    rules = Rules(repeats=3)
    try:
        return retrain(model="line", rules=rules, **parameters) | {"studies": studies()}
    except (Exception, KeyboardInterrupt) as error:
        return {"error": f"{type(error).__name__}: {error}", "studies": studies()}


@contextmanager
def changed(owner: type, name: str, replacement: Callable[..., Any]) -> Iterator[None]:
    before = getattr(owner, name)
    setattr(owner, name, replacement)
    try:
        yield
    finally:
        setattr(owner, name, before)


def gone(self: ModelRegistry, *_: Any) -> None:
    raise ConnectionError("MLflow went away")


def stopped(self: Retraining, *_: Any) -> None:
    raise KeyboardInterrupt


def main(folder: Path) -> None:
    def write(name: str, **plain: Any) -> str:
        path = folder / f"{name}.json"
        path.write_text(json.dumps(plain))
        return str(path)

    found: dict[str, Any] = {}
    found["nobody"] = attempt(data=write("similar", offset=0.2, seed=1))
    bare = {"evaluate": "tests.retraining.retrain_objectives:bare", "study": "line"}
    found["bare"] = attempt(data=write("similar", offset=0.2, seed=1), **bare)
    found["optuna"] = attempt(data=str(folder / "similar.json"), evaluate=FUNCTION, study="unchanged")
    found["similar"] = attempt(data=write("similar", offset=0.2, seed=1), evaluate=FUNCTION, study="line")
    found["broken"] = attempt(data=write("broken", broken=True))
    found["fragile"] = attempt(data=write("fragile", offset=0.2, seed=3))

    drifted = write("drifted", offset=0.9, seed=2)
    with changed(ModelRegistry, "promote", gone):
        found["crashed"] = attempt(data=drifted)
    with changed(Retraining, "_upload", stopped):
        found["stopped"] = attempt(data=drifted)
    found["drifted"] = attempt(data=drifted)
    Study.create(load_spec(folder / "aaa.json"), Home().open_journal())  # elsewhere, and first by name
    found["again"] = attempt(data=write("the-same-by-another-name", offset=0.9, seed=2))

    # The data change in the middle of it.
    unstable = write("unstable", offset=0.9, seed=5)
    evaluated = Retraining.evaluated

    def evaluated_and_changed(self: Retraining, *arguments: Any) -> Any:
        write("unstable", offset=0.9, seed=6)
        return evaluated(self, *arguments)

    with changed(Retraining, "evaluated", evaluated_and_changed):
        found["unstable"] = attempt(data=unstable)
    found["stable"] = attempt(data=write("unstable", offset=0.9, seed=5))

    # Another evaluation function; another first champion, from a search that a stop rule ended.
    found["measure"] = attempt(
        data=write("measured", offset=0.9, seed=7), evaluate="tests.retraining.retrain_objectives:absolute"
    )
    client = MlflowClient(Home().default_tracking_uri)
    client.delete_registered_model_alias("line", "champion")
    found["other"] = attempt(data=write("other", offset=0.2, seed=8), evaluate=FUNCTION, study="endless")
    found["ruled"] = attempt(data=write("ruled", offset=-0.6, seed=9))
    print(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
