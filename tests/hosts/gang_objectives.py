from __future__ import annotations

import os
import socket
import time
from pathlib import Path
from typing import Any

import torch
from torch import distributed, nn


def gang(trial: Any) -> None:
    """Each rank writes down when it trains; the sum over the ranks goes over the network at each step."""
    model: nn.Module = nn.Linear(200, 200)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    trial.track(model=model, optimizer=optimizer)
    wrapped = trial.data_parallel(model)
    trace = Path(trial.params["trace"]) / f"{socket.gethostname()}-{os.getpid()}-{trial.number}"
    for _ in trial.steps():
        trace.write_text(str(time.clock_gettime(time.CLOCK_BOOTTIME)))
        time.sleep(trial.params["seconds"])
        optimizer.zero_grad()
        wrapped(torch.ones(4, 200)).pow(2).mean().backward()
        optimizer.step()
        assert trial.world_size == 1 or distributed.is_initialized()
        trial.report(loss=trial.params["x"] ** 2)
