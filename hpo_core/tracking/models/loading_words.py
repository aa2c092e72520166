"""Says on a page of MLflow how the model there is loaded, in lines that run as they are."""

from __future__ import annotations

from hpo_core.tracking.models.model_folder import PARAMS, WEIGHTS

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
