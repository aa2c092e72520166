"""The jobs of packing_gpu.py: a small network, trained on the GPU where there is one; a loader that takes its time."""

import time

import torch

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
SAMPLES = 2048


def train(trial):
    """One unit is an epoch. ``loader_ms`` is spent on the processor for each batch, as by decoding and augmentation."""
    width, batch = trial.params["width"], trial.params["batch"]
    data = torch.randn(SAMPLES, 256)
    model = torch.nn.Sequential(
        torch.nn.Linear(256, width), torch.nn.ReLU(), torch.nn.Linear(width, width), torch.nn.ReLU(),
        torch.nn.Linear(width, 256),
    ).to(DEVICE)  # fmt: skip
    optimizer = torch.optim.Adam(model.parameters(), lr=trial.params["lr"])
    for _ in trial.steps():
        for start in range(0, SAMPLES, batch):
            time.sleep(trial.params["loader_ms"] / 1000)
            x = data[start : start + batch].to(DEVICE)
            optimizer.zero_grad()
            loss = (model(x) - x).pow(2).mean()
            loss.backward()
            optimizer.step()
            trial.iteration()
        trial.report(loss=float(loss))
