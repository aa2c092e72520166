from __future__ import annotations

import os
import signal
import socket
from typing import Any

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")

import torch
from torch import distributed, nn

draws = torch.Generator().manual_seed(7)
X = torch.randn(210, 64, generator=draws)
Y = (X[:, :3].sum(1) > 0).long() + 2 * (X[:, 3] > 0.5).long()
BATCH = 32


def _a_computer_of_its_own() -> str:
    """Each process says that it is another computer, to us and to NCCL, which refuses two ranks on one GPU."""
    os.environ["NCCL_HOSTID"] = f"computer-{os.getpid()}"
    return os.environ["NCCL_HOSTID"]


if os.environ.get("HPO_TEST_COMPUTERS") == "many":
    socket.gethostname = _a_computer_of_its_own


def train(trial: Any) -> None:
    """On the GPU; where ``culprit`` is given, that rank does what ``how`` says in its second step."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    noisy = trial.params.get("dropout", 0.0)
    if noisy:
        torch.manual_seed(trial.seed + trial.rank)
    model = nn.Sequential(
        nn.Linear(64, 256), nn.BatchNorm1d(256) if noisy else nn.Identity(), nn.ReLU(), nn.Dropout(noisy),
        nn.Linear(256, 4),
    )  # fmt: skip
    if noisy:  # each rank drew weights of its own: all begin with those of one stream
        torch.manual_seed(trial.seed)
        for layer in model:
            if isinstance(layer, nn.Linear):
                layer.reset_parameters()
        torch.manual_seed(trial.seed + trial.rank)
    model.to(device)
    order = torch.Generator().manual_seed(trial.seed)
    optimizer = torch.optim.Adam(model.parameters(), lr=trial.params["lr"])
    trial.track(model=model, optimizer=optimizer, order=order)
    model = trial.data_parallel(model)
    x, y = X.to(device), Y.to(device)
    for step in trial.steps():
        model.train()
        if step == 1 and trial.rank == trial.params.get("culprit"):
            _misbehave(trial.params["how"])
        for batch in torch.randperm(len(X), generator=order).split(BATCH):
            part = trial.shard(batch)
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x[part]), y[part]).backward()
            optimizer.step()
        model.eval()
        with torch.no_grad():
            loss = float(nn.functional.cross_entropy(model(x), y))
        trial.report(loss=loss, nccl=float(_over_nccl()), cuda=float(x.is_cuda))


def _over_nccl() -> bool:
    return distributed.is_initialized() and "nccl" in str(distributed.get_backend_config())


def _misbehave(how: str) -> None:
    if how == "raise":
        raise KeyError("no such layer")
    if how == "memory":
        torch.empty(1 << 44, dtype=torch.uint8, device="cuda")
    if how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if how == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
