"""Converts what a training function reports into one real number."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from hpo_core.model.errors import ObjectiveError


def real_number(name: str, value: Any) -> float:
    """A metric as a float.

    Args:
        name: of the metric, for the message.
        value: int, float, or numpy scalar, array or tensor without dimensions.

    Raises:
        ObjectiveError: any other type, or an int too large for a float.
    """
    torch = sys.modules.get("torch")
    plain = value
    arrays = (np.ndarray, np.generic) if torch is None else (np.ndarray, np.generic, torch.Tensor)
    if isinstance(value, arrays) and value.ndim == 0:
        plain = value.item()
    if type(plain) in (int, float):
        try:
            return float(plain)
        except OverflowError:
            pass
    shape = f" of shape {tuple(value.shape)}" if hasattr(value, "shape") else ""
    raise ObjectiveError(
        f"trial.report({name}=...) got a {type(value).__module__}.{type(value).__qualname__}{shape}; a metric "
        "is one "
        "real number: int, float, numpy scalar or tensor without dimensions. Reduce it first, for example with "
        "float(x) or x.mean()."
    )
