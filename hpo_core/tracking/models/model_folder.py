"""Writes what goes with a trained model: its weights, its parameters, and MLflow's own format where it can be built."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import msgspec

from hpo_core.checkpoints.files import refuse_other_content, write_weights
from hpo_core.model.trial import Checkpoint, Params
from hpo_core.tracking.models.build_process import BuildRequest
from hpo_core.training.user_process import ask_process

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
    what, module = f"Building the model with {build} for MLflow", "hpo_core.tracking.models.build_process"
    ask_process(module, request, None, timeout=BUILD_SECONDS, what=what)
