"""Writes what goes with a trained model: its weights, its parameters, and MLflow's own format where it can be built."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from pathlib import Path

import msgspec

from hpo_core.checkpoints.files import refuse_other_content, write_weights
from hpo_core.model.errors import ObjectiveError
from hpo_core.model.trial import Checkpoint, Params
from hpo_core.tracking.models.build_process import BuildAnswer, BuildRequest
from hpo_core.training.user_process import run_in_process

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
    with tempfile.TemporaryDirectory(prefix="hpo-build-", ignore_cleanup_errors=True) as side:
        module = "hpo_core.tracking.models.build_process"
        code, answer, log = run_in_process(module, msgspec.msgpack.encode(request), Path(side), BUILD_SECONDS)
    if not answer:
        ended = f"took longer than {BUILD_SECONDS:g} s" if code is None else f"ended with code {code} and no answer"
        raise ObjectiveError(f"The process that builds with {build} {ended}. Its output ended:\n{log}")
    if error := msgspec.msgpack.decode(answer, type=BuildAnswer).error:
        raise ObjectiveError(f"The model was not saved in MLflow's format: {error}")
