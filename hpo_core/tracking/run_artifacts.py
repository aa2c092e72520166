"""Files of the study's run: promotions, front, report, best checkpoint and model."""

from __future__ import annotations

import inspect
import json
import logging
import shutil
import tempfile
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import msgspec

from hpo_core.checkpoints import files as checkpoints
from hpo_core.checkpoints.files import refuse_other_content, write_weights
from hpo_core.checkpoints.storage import local_path
from hpo_core.home import Home
from hpo_core.model.errors import CheckpointError, ObjectiveError
from hpo_core.model.trial import Checkpoint, Params
from hpo_core.spec.module_source import code_files
from hpo_core.spec.sent_functions import placed, short_name
from hpo_core.tracking.mlflow_client import KnownRun, RunStore
from hpo_core.tracking.mlflow_runs import promotions_csv
from hpo_core.tracking.tracked_study import TrackedStudy
from hpo_core.training.objective import load_objective
from hpo_core.training.user_code import answer_request, ask_process
from hpo_core.views.summary import front_members

log = logging.getLogger(__name__)

WEIGHTS = "weights.safetensors"
PARAMS = "params.json"
BEST_FOLDER = "best_checkpoint"
BEST_DIGEST = "hpo.best_checkpoint_digest"
WEIGHTS_TAG = "hpo.best_weights"
MODEL_TAG = "hpo.best_model"
MODEL_FOLDER = "model"
BUILD_SECONDS = 600.0
_NEEDED = ("mlflow", "torch", "numpy", "cloudpickle")


class Trained(msgspec.Struct, frozen=True):
    """A trained model: its parameters and its verified checkpoint on this machine."""

    params: Params
    checkpoint: Checkpoint
    folder: str
    """The checkpoint's URI is relative to it."""
    base: str = ""


class BuildRequest(msgspec.Struct, frozen=True):
    """Request to make a trained model again and save it."""

    build: str
    pythonpath: tuple[str, ...]
    model: Trained
    tracked: str
    """Name that the model was tracked under."""
    target: str
    """Folder to be made."""


def build_model(request: BuildRequest) -> None:
    """Save the model to ``request.target``.

    Raises:
        ObjectiveError: the function raised, returned no module, or one that the weights do not fit.
    """
    function = load_objective(request.build, request.pythonpath, setting="build")
    import torch

    module = function(dict(request.model.params))
    if not isinstance(module, torch.nn.Module):
        raise ObjectiveError(
            f"build = {request.build!r} returned a {type(module).__name__}; given the parameters it must return the "
            "torch.nn.Module that was trained with them."
        )
    model = request.model
    state = checkpoints.load(model.folder, model.checkpoint, model.base)["tracked"][request.tracked]
    try:
        module.load_state_dict(state)
    except RuntimeError as error:
        raise ObjectiveError(
            f"build = {request.build!r} made a module that {request.tracked!r} of the checkpoint does not fit "
            f"({error}). Build it from the parameters alone, as training does."
        ) from error
    with tempfile.TemporaryDirectory() as side:
        code = _copied_code(request, Path(side))
        _save(module.cpu().eval(), request.target, code)


def _copied_code(request: BuildRequest, side: Path) -> list[str]:
    # The user's modules that are not installed, to go with the model: whoever loads it needs its class.
    for file in code_files([request.build], request.pythonpath):
        copy = side / file.name
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes(file.path.read_bytes())
    return sorted(str(path) for path in side.iterdir())


def _save(module: Any, target: str, code: list[str]) -> None:
    import mlflow.pytorch

    known = inspect.signature(mlflow.pytorch.save_model).parameters
    # The other format of newer versions is a traced graph, which needs an example of the input and is no module.
    pickled = {"serialization_format": "pickle"} if "serialization_format" in known else {}
    mlflow.pytorch.save_model(module, target, code_paths=code or None, pip_requirements=_requirements(), **pickled)


def _requirements() -> list[str]:
    # Given, for MLflow would find them by loading the model in a further process.
    found = []
    for name in _NEEDED:
        try:
            found.append(f"{name}=={version(name).partition('+')[0]}")
        except PackageNotFoundError:
            continue
    return found


def write_plain(model: Trained, file: Path, target: Path) -> str:
    """Write :data:`WEIGHTS` and :data:`PARAMS` into ``target``; returns the name that the model was tracked under.

    Raises:
        CheckpointError: the checkpoint is corrupt, or holds no weights alone.
    """
    with file.open("rb") as opened:
        refuse_other_content(opened, model.checkpoint, f"Checkpoint {file}", "No model is made of it.")
    (target / PARAMS).write_text(json.dumps(model.params, indent=1))
    return write_weights(file, target / WEIGHTS)


def write_model(
    what: str, model: Trained, file: Path, *, build: str | None, code: Sequence[str], side: Path
) -> tuple[Path, Path | None]:
    """Write what loads a trained model, below ``side``; what cannot be made is logged: it is worth less than the rest.

    Args:
        what: whose model it is, for the log.
        file: its checkpoint.
        build: function that makes the untrained model; None: no model of MLflow's is made.
        code: folders that ``build`` is imported from.

    Returns:
        A folder with the parameters and, where the checkpoint holds those of a model, the weights; and one with a
        model of MLflow's flavour ``pytorch``, which a process of its own makes, or None.
    """
    plain, built = side / "plain", side / MODEL_FOLDER
    plain.mkdir()
    try:
        tracked = write_plain(model, file, plain)
    except CheckpointError as error:
        log.warning("%s: its weights are not there as a file of their own: %s", what, error)
        return plain, None
    if build is None:
        return plain, None
    request = BuildRequest(placed(build, model.folder), tuple(code), model, tracked=tracked, target=str(built))
    module, asked = "hpo_core.tracking.run_artifacts", f"Building the model with {short_name(build)} for MLflow"
    try:
        ask_process(module, request, None, timeout=BUILD_SECONDS, what=asked)
    except ObjectiveError as error:  # a night's training is worth more than its wrapping
        shutil.rmtree(built, ignore_errors=True)
        log.warning("%s: MLflow cannot load it by itself: %s", what, error)
        return plain, None
    return plain, built


def write_tables(store: RunStore, run: KnownRun, fold: TrackedStudy) -> None:
    """Promotions; with several objectives the front."""
    spec = fold.spec
    if len(spec.objectives) > 1:
        front = {"study": spec.study, "front": msgspec.to_builtins(front_members(spec, fold.state))}
        store.write_text(run, json.dumps(front, indent=1), "front.json")
    store.write_text(run, promotions_csv(fold), "promotions.csv")


def write_files(store: RunStore, run: KnownRun, fold: TrackedStudy, folder: Path) -> None:
    report = folder / "report.html"
    if report.is_file():
        store.upload(run, report)
    best = fold.state.best_checkpoint()
    if best is None or run.tags.get(BEST_DIGEST) == best.digest:
        return
    try:
        path = local_path(folder, best.uri, fold.spec.checkpoint_base)
    except CheckpointError as error:
        log.warning("study %r: the best checkpoint was not copied to MLflow: %s", fold.spec.study, error)
        return
    if path is None or not path.exists():
        log.warning(
            "study %r: the best checkpoint %s is no file in %s and was not copied to MLflow.",
            fold.spec.study,
            best.uri,
            folder,
        )
        return
    store.upload(run, path, BEST_FOLDER)
    tags = {"hpo.best_checkpoint": f"{BEST_FOLDER}/{path.name}"} | _upload_model(store, run, fold, folder, path)
    tags[BEST_DIGEST] = best.digest
    store.log(run, tags=tags)


def _upload_model(store: RunStore, run: KnownRun, fold: TrackedStudy, folder: Path, file: Path) -> dict[str, str]:
    # Upload the best model's weights, and the model itself where the study says how to build it; returns tags.
    spec, state = fold.spec, fold.state
    best, incumbent = state.best_checkpoint(), state.incumbent
    assert best is not None and incumbent is not None
    model = Trained(spec.constants | state.trials[incumbent.trial].params, best, str(folder), spec.checkpoint_base)
    studies = folder.resolve().parent  # what lies in a home is not imported from there: others write to it
    code = Home(studies.parent).import_folders(spec) if studies.name == "studies" else spec.pythonpath
    what = f"best model of study {spec.study!r}"
    with tempfile.TemporaryDirectory(prefix="hpo-model-") as side:
        plain, built = write_model(what, model, file, build=spec.build, code=code, side=Path(side))
        store.upload(run, plain, BEST_FOLDER)
        if built is not None:
            store.upload(run, built, MODEL_FOLDER)
        return {
            WEIGHTS_TAG: f"{BEST_FOLDER}/{WEIGHTS}" if (plain / WEIGHTS).exists() else "",
            MODEL_TAG: "" if built is None else f"runs:/{run.run_id}/{MODEL_FOLDER}",
        }


_BUILT = """Load it with MLflow (that runs the code that came with it):

```python
import mlflow

model = mlflow.pytorch.load_model("{model}")
```"""
_PLAIN = """Load its weights (`build` is yours: it makes the untrained module from the parameters):

```python
import json
from pathlib import Path

from mlflow.artifacts import download_artifacts
from safetensors.torch import load_file

folder = Path(download_artifacts("{folder}"))
model = build(json.loads((folder / "{params}").read_text()))
model.load_state_dict(load_file(folder / "{weights}"))
```"""


def loading_words(*, model: str = "", folder: str = "") -> str:
    """Markdown with the lines that load a model; empty where there is neither.

    Args:
        model: URI of a model of MLflow's, if there is one.
        folder: URI of the folder with its weights and parameters, if there are.
    """
    if model:
        return _BUILT.format(model=model)
    return _PLAIN.format(folder=folder, params=PARAMS, weights=WEIGHTS) if folder else ""


if __name__ == "__main__":
    answer_request(BuildRequest, build_model)
