"""Files of the study's run: promotions, best parameters, front, visits, report, best checkpoint and model."""

from __future__ import annotations

import csv
import io
import json
import logging
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from hpo_core.checkpoints.files import refuse_other_content, write_weights
from hpo_core.checkpoints.storage import local_path
from hpo_core.model.errors import CheckpointError, ObjectiveError
from hpo_core.model.trial import Checkpoint, Params
from hpo_core.tracking.mlflow_client import KnownRun, RunStore
from hpo_core.tracking.model_build import BuildRequest
from hpo_core.tracking.tracked_study import TrackedStudy
from hpo_core.training.user_code import ask_process
from hpo_core.views.hop_views import plain_visits
from hpo_core.views.summary import best_result, front_members

WEIGHTS = "weights.safetensors"
PARAMS = "params.json"
BUILD_SECONDS = 600.0


class Trained(msgspec.Struct, frozen=True):
    """A trained model: its parameters and its verified checkpoint on this machine."""

    params: Params
    checkpoint: Checkpoint
    folder: str
    """The checkpoint's URI is relative to it."""
    base: str = ""


def write_plain(model: Trained, file: Path, target: Path) -> str:
    """Write :data:`WEIGHTS` and :data:`PARAMS` into ``target``; returns the name that the model was tracked under.

    Raises:
        CheckpointError: the checkpoint is corrupt, or holds no weights alone.
    """
    with file.open("rb") as opened:
        refuse_other_content(opened, model.checkpoint, f"Checkpoint {file}", "No model is made of it.")
    (target / PARAMS).write_text(json.dumps(model.params, indent=1))
    return write_weights(file, target / WEIGHTS)


def write_mlflow_model(model: Trained, build: str, pythonpath: Sequence[str], *, tracked: str, target: Path) -> None:
    """Make ``target`` a model of MLflow's flavour ``pytorch``, in a process of its own.

    Raises:
        ObjectiveError: the function raised or made a module that the weights do not fit; its process died.
    """
    request = BuildRequest(
        build=build,
        pythonpath=tuple(pythonpath),
        params=model.params,
        folder=model.folder,
        checkpoint=model.checkpoint,
        base=model.base,
        tracked=tracked,
        target=str(target),
    )
    what, module = f"Building the model with {build} for MLflow", "hpo_core.tracking.model_build"
    ask_process(module, request, None, timeout=BUILD_SECONDS, what=what)


BEST_FOLDER = "best_checkpoint"
BEST_DIGEST = "hpo.best_checkpoint_digest"
WEIGHTS_TAG = "hpo.best_weights"
MODEL_TAG = "hpo.best_model"
MODEL_FOLDER = "model"

log = logging.getLogger(__name__)


def promotions_table(fold: TrackedStudy) -> dict[str, Any]:
    """The promotion sequence, and how it is to be read."""
    return {
        "study": fold.spec.study,
        "about": "loss and rank are those at the rung below at the moment of promotion; rank 1 is best",
        "promotions": [msgspec.to_builtins(promotion) for promotion in fold.promotions],
    }


def best_table(fold: TrackedStudy) -> dict[str, Any]:
    """The incumbent and its parameters (empty where there is none)."""
    best = best_result(fold.study)
    if best is None:
        return {}
    plain: dict[str, Any] = msgspec.to_builtins(best)
    return {"study": fold.spec.study, "metric": fold.spec.metric.name} | plain


def lineage_table(fold: TrackedStudy) -> dict[str, Any]:
    """Who went on from whom (PBT): every trial with its parent, its parameters and what it reached."""
    state = fold.state
    rows = []
    for trial in state.trials:
        born = state.reproduced.get(trial.number)
        rows.append(
            {
                "trial": trial.number,
                "generation": born.generation if born is not None else 0,
                "member": born.member if born is not None else trial.number,
                "parent": trial.parent,
                "initiator": born.initiator if born is not None else None,
                "opponent": born.opponent if born is not None else None,
                "params": trial.params,
                "resource": trial.resource if trial.results else None,
                fold.spec.metric.name: None if trial.loss is None else trial.loss * fold.spec.metric.sign,
            }
        )
    return {"study": fold.spec.study, "about": "parent: whose weights it went on from", "trials": rows}


def visits_csv(fold: TrackedStudy) -> str:
    """Every visit of a model to a partition behind a result, trial by trial; empty where models do not hop."""
    rows = [{"trial": trial.number, **visit} for trial in fold.state.trials for visit in plain_visits(fold.spec, trial)]
    if not rows:
        return ""
    written = io.StringIO()
    writer = csv.DictWriter(written, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return written.getvalue()


def write_tables(store: RunStore, run: KnownRun, fold: TrackedStudy) -> None:
    """``promotions.json``, ``best_params.json``; with several objectives ``front.json``, in PBT ``lineage.json``."""
    if not store.takes_files(run):
        return
    tables = {"promotions.json": promotions_table(fold), "best_params.json": best_table(fold)}
    if len(fold.spec.objectives) > 1:
        tables["front.json"] = {
            "study": fold.spec.study,
            "front": msgspec.to_builtins(front_members(fold.spec, fold.state)),
        }
    if fold.state.has_members:
        tables["lineage.json"] = lineage_table(fold)
    for name, table in tables.items():
        store.write_text(run, json.dumps(table, indent=1), name)


def write_files(store: RunStore, run: KnownRun, fold: TrackedStudy, folder: Path) -> None:
    """Upload visits, the report and the best checkpoint, where they exist and are not there yet."""
    if not store.takes_files(run):
        return
    if visits := visits_csv(fold):
        store.client.log_text(run.run_id, visits, "visits.csv")
    report = folder / "report.html"
    if report.is_file():
        store.files(run).log_artifact(str(report))
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
    files = store.files(run)
    upload = files.log_artifacts if path.is_dir() else files.log_artifact
    upload(str(path), BEST_FOLDER)
    tags = {"hpo.best_checkpoint": f"{BEST_FOLDER}/{path.name}"} | _write_model(store, run, fold, folder, path)
    _drop_others(store, run, path)
    tags[BEST_DIGEST] = best.digest
    store.log(run, tags=tags)
    run.tags.update(tags)


def _write_model(store: RunStore, run: KnownRun, fold: TrackedStudy, folder: Path, file: Path) -> dict[str, str]:
    """Upload the best model's weights, and the model itself where the study says how to build it; returns tags."""
    spec, state = fold.spec, fold.state
    best, incumbent = state.best_checkpoint(), state.incumbent
    assert best is not None and incumbent is not None
    params = spec.constants | state.trials[incumbent.trial].params
    model = Trained(params, best, str(folder), spec.checkpoint_base)
    places = _import_folders(spec.pythonpath, folder)
    tags = {WEIGHTS_TAG: "", MODEL_TAG: ""}
    with tempfile.TemporaryDirectory(prefix="hpo-model-") as side:
        plain, built = Path(side) / "plain", Path(side) / MODEL_FOLDER
        plain.mkdir()
        try:
            tracked = write_plain(model, file, plain)
            store.files(run).log_artifacts(str(plain), BEST_FOLDER)
            tags[WEIGHTS_TAG] = f"{BEST_FOLDER}/{WEIGHTS}"
            if spec.build is not None:
                write_mlflow_model(model, spec.build, places, tracked=tracked, target=built)
                _remove(store, run, [MODEL_FOLDER] if run.tags.get(MODEL_TAG) else [])
                store.files(run).log_artifacts(str(built), MODEL_FOLDER)
                tags[MODEL_TAG] = f"runs:/{run.run_id}/{MODEL_FOLDER}"
        except (CheckpointError, ObjectiveError) as error:
            log.warning("study %r: its best model is not in MLflow as weights or model: %s", spec.study, error)
    return tags


def _import_folders(pythonpath: list[str], study_folder: Path) -> list[str]:
    """Folders of code outside a home (see :meth:`hpo_core.home.Home.import_folders`): in a home others write."""
    folder = study_folder.resolve()
    if folder.parent.name != "studies":
        return pythonpath
    return [place for place in pythonpath if not Path(place).resolve().is_relative_to(folder.parents[1])]


def _drop_others(store: RunStore, run: KnownRun, kept: Path) -> None:
    """Remove the best checkpoint of an earlier end of the same study; harmless where that cannot be done."""
    others = [
        item.path
        for item in store.client.list_artifacts(run.run_id, BEST_FOLDER)
        if kept.is_file() and not item.is_dir and Path(item.path).name not in (kept.name, WEIGHTS, PARAMS)
    ]
    _remove(store, run, others)


def _remove(store: RunStore, run: KnownRun, paths: list[str]) -> None:
    """Remove files or folders of a run; harmless where that cannot be done."""
    for path in paths:
        try:
            store.files(run).delete_artifacts(path)
        except Exception as error:
            log.warning("study's run %s: old artifact %s stays (%s).", run.run_id, path, error)


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
