"""A process that rebuilds a trained model with the user's ``build`` function and saves it in MLflow's format.

``python -m hpo_core.tracking.model_build FILE`` reads one :class:`BuildRequest` from standard input and writes
to the file whether it went well: user code runs in a process of its own, without credentials, as in training.
"""

from __future__ import annotations

import inspect
import tempfile
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import msgspec

from hpo_core.checkpoints import files as checkpoints
from hpo_core.model.errors import ObjectiveError
from hpo_core.model.trial import Checkpoint, Params
from hpo_core.spec.module_source import code_files
from hpo_core.training.objective import load_objective
from hpo_core.training.user_code import answer_request

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


if __name__ == "__main__":
    answer_request(BuildRequest, build_model)
