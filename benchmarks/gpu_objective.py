"""The jobs of gpu_overhead.py: a model of a given size trained a few steps on the GPU, every stage timed."""

import time

import torch

WIDTH = 1024


def train(trial):
    """Reports when each stage ended, on the clock that all processes share, and how long the steps took."""
    marks = {"entered": time.monotonic()}

    def mark(name):
        torch.cuda.synchronize()
        marks[name] = time.monotonic()

    torch.zeros(1, device="cuda")
    mark("context")
    layers = round(trial.params["megabytes"] * 1e6 / (WIDTH * WIDTH * 4))
    model = torch.nn.Sequential(*(torch.nn.Linear(WIDTH, WIDTH, bias=False, device="cuda") for _ in range(layers)))
    optimizer = torch.optim.Adam(model.parameters())
    mark("built")
    if trial.params["saved"]:
        trial.track(model=model, optimizer=optimizer)
    took = []
    steps = trial.steps()
    mark("loaded")
    for _ in steps:
        started = time.monotonic()
        optimizer.zero_grad()
        loss = model(torch.randn(64, WIDTH, device="cuda")).pow(2).mean()
        loss.backward()
        optimizer.step()
        mark("trained")
        took.append(marks["trained"] - started)
        trial.report(loss=loss)
    marks["saved"] = time.monotonic()
    trial.report(first_step=took[0], step=min(took), **marks)
