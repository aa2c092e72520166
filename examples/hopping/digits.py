"""Digits as partitions: 1,797 real 8 x 8 images, split once by ``hpo partition``, read where they lie."""

from typing import Any

import numpy as np
from sklearn.datasets import load_digits


def arrays() -> dict[str, np.ndarray[Any, Any]]:
    """The whole data set; ``hpo partition examples.hopping.digits:arrays`` splits it."""
    digits = load_digits()
    return {"images": (digits.data / 16).astype(np.float32), "labels": digits.target}


def load(path: str) -> dict[str, np.ndarray[Any, Any]]:
    """One partition; ``data.load`` of the study names this function, and a worker calls it once for each file."""
    with np.load(path) as file:
        return {name: file[name] for name in file.files}
