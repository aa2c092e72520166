"""Handwritten digits as they arrive period by period: later ones are turned further, as from another scanner.

``python -m examples.retrain.periods data`` writes ``data/period-0.npz`` to ``data/period-2.npz``.
"""

import sys
from pathlib import Path
from typing import Any

import numpy as np
from scipy.ndimage import rotate
from sklearn.datasets import load_digits

DEGREES = (0, 0, 45)  # period 1 is like period 0; then the scanner is replaced
EXAMPLES = 599
ORDER = 1  # an ordinary draw: in some orders 349 digits to train with happen to teach more than the next 349


def digits_of(period: int) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Images and labels of one period: its own part of the 1,797 real digits, turned, with a little noise."""
    draws = np.random.default_rng(period)
    digits = load_digits()
    chosen = np.random.default_rng(ORDER).permutation(len(digits.images))  # the same for all periods
    part = chosen[period * EXAMPLES : (period + 1) * EXAMPLES]
    images = rotate(digits.images[part], DEGREES[period], axes=(1, 2), reshape=False, order=1)
    images = np.clip(images + draws.normal(0, 0.5, images.shape), 0, 16) / 16
    return images.reshape(EXAMPLES, 64).astype("float32"), digits.target[part]


def write(folder: str | Path) -> None:
    """One file per period."""
    Path(folder).mkdir(parents=True, exist_ok=True)
    for period in range(len(DEGREES)):
        images, labels = digits_of(period)
        np.savez(Path(folder) / f"period-{period}.npz", images=images, labels=labels)


if __name__ == "__main__":
    write(sys.argv[1])
