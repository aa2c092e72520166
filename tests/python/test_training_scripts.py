"""Training scripts as people write them, tuned by ``hpo_core.tune``: killed, started again, and the end is the same.

Each script is one that runs by itself; what a study needs of it is marked with ``# hpo`` in its text.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

import hpo_core as hpo
from hpo_core.model.errors import HpoError

ROOT = Path(__file__).parents[2]
SECONDS = 600.0
"""How long a script may take on a busy machine."""

TORCH = """
import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from tqdm import tqdm


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--lr", type=float, default=0.1)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    x = torch.linspace(-1, 1, 256).unsqueeze(1)
    data = TensorDataset(x, torch.sin(3 * x))
    batches = DataLoader(data, batch_size=args.batch_size, shuffle=True, num_workers=1)
    model = nn.Sequential(nn.Linear(1, 16), nn.Tanh(), nn.Dropout(0.1), nn.Linear(16, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.8)
    lr, best = args.lr, None
    trial.track(model=model, optimizer=optimizer, schedule=schedule, kept=(kept := hpo.State(lr=lr, best=best)))  # hpo
    for epoch in tqdm(trial.steps()):  # hpo
        lr, best = kept.lr, kept.best  # hpo
        for inputs, targets in batches:
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(inputs), targets)
            loss.backward()
            optimizer.step()
        schedule.step()
        with torch.no_grad():
            val_loss = nn.functional.mse_loss(model.eval()(x), data.tensors[1]).item()
        model.train()
        print(f"epoch {epoch}: {val_loss:.4f}, lr {lr}")
        best, lr = val_loss if best is None else min(best, val_loss), lr / 2
        kept.lr, kept.best = lr, best  # hpo
        trial.report(val_loss=val_loss, best=best)  # hpo


if __name__ == "__main__":
    main()
"""

HELD = """
import os
import sys
import time


def hold(trial, loaded=None):  # of the run that is killed: it waits within trial 2 and within what is promoted
    assert loaded is None or loaded in sys.modules, f"each job imports {loaded}"
    while "HOLD" in os.environ and (trial.number >= 2 or getattr(trial, "resource", 0) > 1):
        open("waits", "w").close()
        time.sleep(0.05)
"""

SCRIPTS = ROOT / "docs" / "how-to" / "tune-a-training-script.md"
RECIPE = SCRIPTS.read_text().partition("<!-- file: tune.py -->\n```python\n")[2].partition("```")[0]
"""The script of the documentation that tunes another one."""


def recipe(imports: str, loaded: str) -> str:
    """The documentation's script for a small study that can be held; ``loaded`` is what no job may have to import."""
    changed = {
        "import torch": f"{imports}\nfrom held import hold",
        "def train": f"def train(trial):\n    hold(trial, {loaded!r})",
        "    method=": "    method=hpo.Asha(configs=5, max_resource=4, reduction_factor=2), workers=1, seed=3,",
        "    name=": "    name='script', home=sys.argv[1], prefect='off', tracking={'mlflow': 'off'},",
    }
    lines = RECIPE.splitlines()
    for begin, text in changed.items():
        (at,) = [n for n, line in enumerate(lines) if line.startswith(begin)]
        lines[at] = text
    return "\n".join(lines)


def start(folder: Path, home: str, **environment: str) -> subprocess.Popen[bytes]:
    log = (folder / f"{home}.log").open("ab")
    command = [sys.executable, "tune.py", home]
    return subprocess.Popen(
        command, cwd=folder, env={**os.environ, **environment}, stdin=subprocess.DEVNULL, stdout=log, stderr=log
    )


def rows(folder: Path, home: str) -> list[dict[str, Any]]:
    try:
        return hpo.load("script", home=folder / home).results.to_dict("records")  # type: ignore[no-any-return]
    except HpoError:
        return []


def ended(process: subprocess.Popen[bytes], folder: Path, home: str) -> None:
    assert process.wait(SECONDS) == 0, (folder / f"{home}.log").read_text()[-4000:]


@pytest.mark.slow
def test_killed_script_that_is_started_again_ends_as_if_nothing_had_happened(tmp_path: Path) -> None:
    for name, text in (("main", TORCH), ("tune", recipe("import torch", "torch")), ("held", HELD)):
        (tmp_path / f"{name}.py").write_text(text)
    killed, whole = start(tmp_path, "killed", HOLD="1"), start(tmp_path, "whole")
    try:
        deadline = time.monotonic() + SECONDS
        while not (tmp_path / "waits").exists() and time.monotonic() < deadline and killed.poll() is None:
            time.sleep(0.1)
        before = rows(tmp_path, "killed")
        assert len(before) >= 2, (tmp_path / "killed.log").read_text()[-4000:]
        below = psutil.Process(killed.pid).children(recursive=True)
        killed.send_signal(signal.SIGKILL)
        killed.wait()
        _, left = psutil.wait_procs(below, timeout=600)
        assert not left, left
        ended(whole, tmp_path, "whole")
        ended(start(tmp_path, "killed"), tmp_path, "killed")
    finally:
        for process in (killed, whole):
            process.kill()
    assert len(before) < len(rows(tmp_path, "killed"))
    assert rows(tmp_path, "killed") == rows(tmp_path, "whole")
    result = hpo.load("script", home=tmp_path / "killed")
    assert result.status == "finished"
    # each epoch was trained once, but for those of the job that was killed
    done = result.jobs[result.jobs["outcome"] == "completed"]
    assert result.results["resource"].max() == 4 and len(done) == len(done.drop_duplicates(["trial", "target"]))
    log = (tmp_path / "killed.log").read_text()
    assert "is not tracked" not in log and "are not tracked" not in log
