"""Training functions that share a card (or, where there is none, the processors); no tests in here."""

import time

import torch

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
"""Asked at import, as most scripts do; it must not initialize CUDA."""
MIB = 1 << 20


def holds(trial):
    """Holds so many MiB, and ``more`` from its second unit on where it is ``greedy``; trains a small network."""
    held = [torch.ones(trial.params["mib"] * MIB, dtype=torch.uint8, device=DEVICE)]
    model = torch.nn.Linear(64, 64, device=DEVICE)
    optimizer = torch.optim.SGD(model.parameters(), lr=trial.params["lr"])
    for step in trial.steps():
        until = time.monotonic() + 0.5
        while time.monotonic() < until:
            optimizer.zero_grad()
            loss = model(torch.randn(32, 64, device=DEVICE)).pow(2).mean()
            loss.backward()
            optimizer.step()
            trial.iteration()
            time.sleep(0.02)  # as for the next batch
        if step == 1 and trial.params["greedy"]:
            held.append(torch.ones(trial.params["more"] * MIB, dtype=torch.uint8, device=DEVICE))
        trial.report(loss=float(loss) + 0 * float(held[-1][0]))
