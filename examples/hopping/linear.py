"""Recognize digits with a linear classifier of scikit-learn that learns by ``partial_fit``, and hops.

Split the data as for ``network.py``, then run the study with ``hpo tune examples/hopping/linear.yaml``.
"""

from typing import Any

import numpy as np
from sklearn.linear_model import SGDClassifier
from sklearn.metrics import log_loss

from hpo_core import Trial

CLASSES = np.arange(10)
LEARNED = ("classes_", "coef_", "intercept_", "t_")
"""What partial_fit goes on from; ``t_`` counts examples, for the learning rate."""


class TravellingClassifier(SGDClassifier):  # type: ignore[misc]  # scikit-learn has no types
    """An SGDClassifier that ``trial.track`` can save: scikit-learn's models have no ``state_dict`` of their own."""

    def state_dict(self) -> dict[str, Any]:
        """What it has learned so far: nothing before the first ``partial_fit``."""
        return {name: getattr(self, name) for name in LEARNED if hasattr(self, name)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from there."""
        for name, value in state.items():
            setattr(self, name, value)


def evaluate(model: TravellingClassifier, partition: dict[str, Any]) -> dict[str, float]:
    """Metrics on one partition; the study gets their means over all of them."""
    return {
        "val_loss": log_loss(partition["labels"], model.predict_proba(partition["images"]), labels=CLASSES),
        "val_accuracy": model.score(partition["images"], partition["labels"]),
    }


def train(trial: Trial) -> None:
    """One ``partial_fit`` for each partition."""
    model = TravellingClassifier(
        loss="log_loss",
        penalty=trial.params["penalty"],
        alpha=trial.params["alpha"],
        learning_rate="constant",
        eta0=trial.params["learning_rate"],
    )
    trial.track(model=model)
    trial.evaluate_with(lambda partition: evaluate(model, partition))

    for _ in trial.steps():
        model.partial_fit(trial.partition["images"], trial.partition["labels"], classes=CLASSES)
