"""A training function that imports torch itself and changes its settings; no tests in here."""

from __future__ import annotations

from typing import Any


def train(trial: Any) -> None:
    import torch

    print(torch.get_default_dtype(), torch.get_num_threads(), torch.is_grad_enabled(), torch.rand(2).tolist())
    for _ in trial.steps():
        trial.report(loss=1.0)
    torch.set_default_dtype(torch.float64)
    torch.set_num_threads(3)
    torch.set_grad_enabled(False)
