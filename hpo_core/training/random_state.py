"""Seeds, captures and restores every global random generator that a training function may use.

torch is used only if it has been imported already.
"""

from __future__ import annotations

import random
import sys
from typing import Any

import numpy as np


def seed_all(seed: int) -> None:
    """Seed python, numpy and, if imported, torch on CPU and every CUDA device."""
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch = sys.modules.get("torch")
    if torch is not None:
        if torch.backends.cuda.is_built():
            torch.manual_seed(seed)  # the CUDA devices too, once they are initialized
        else:
            torch.default_generator.manual_seed(seed)  # the other formats the stack for each absent device


def capture_all() -> dict[str, Any]:
    """The states of all global generators as a tree."""
    states: dict[str, Any] = {"python": random.getstate(), "numpy": np.random.get_state(legacy=False)}
    torch = sys.modules.get("torch")
    if torch is not None:
        states["torch"] = torch.get_rng_state()
        if torch.cuda.is_initialized():
            states["cuda"] = torch.cuda.get_rng_state_all()
    return states


def restore_all(states: dict[str, Any]) -> None:
    """Restore what :func:`capture_all` gave; CUDA states of devices that this machine lacks are ignored."""
    random.setstate(states["python"])
    np.random.set_state(states["numpy"])
    if "torch" in states:
        import torch

        torch.set_rng_state(states["torch"])
        devices = torch.cuda.device_count() if "cuda" in states else 0
        if devices:
            # without it, torch would apply the pending seed on the first use of CUDA and overwrite the state
            torch.cuda.init()  # type: ignore[no-untyped-call]
        for device, state in enumerate(states.get("cuda", ())[:devices]):
            torch.cuda.set_rng_state(state, device)


def state_of(item: Any) -> Any:
    """State of a tracked object or generator; :func:`put_state` loads it."""
    if hasattr(item, "state_dict"):
        return item.state_dict()
    if isinstance(item, random.Random):
        return item.getstate()
    if isinstance(item, np.random.Generator):
        return item.bit_generator.state
    if isinstance(item, np.random.RandomState):
        return item.get_state(legacy=False)
    return item.get_state()


def put_state(item: Any, state: Any) -> None:
    """Load a state that :func:`state_of` gave."""
    if hasattr(item, "load_state_dict"):
        item.load_state_dict(state)
    elif isinstance(item, random.Random):
        item.setstate(state)
    elif isinstance(item, np.random.Generator):
        item.bit_generator.state = state
    else:
        item.set_state(state)


def can_track(item: Any) -> bool:
    """Whether ``state_of`` and ``put_state`` support it."""
    if callable(getattr(item, "state_dict", None)) and callable(getattr(item, "load_state_dict", None)):
        return True
    if isinstance(item, random.Random | np.random.Generator | np.random.RandomState):
        return True
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(item, torch.Generator)
