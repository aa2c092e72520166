"""Training functions the tests of training run in real child processes; no tests in here."""

import ctypes
import os
import random
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import torch
from torch.utils.data import DataLoader, TensorDataset

from hpo_core import State


def dispatch(trial):
    globals()[trial.params["do"]](trial)


def network(trial):
    """Everything whose state must survive: shuffling, dropout, Adam, a schedule, three more generators."""
    draws = torch.Generator().manual_seed(7)
    data = TensorDataset(torch.randn(96, 8, generator=draws), torch.randn(96, 1, generator=draws))
    own = torch.Generator().manual_seed(trial.seed)
    batches = DataLoader(data, batch_size=16, shuffle=True, generator=own, num_workers=0)
    globally = DataLoader(data, batch_size=32, shuffle=True)
    model = torch.nn.Sequential(
        torch.nn.Linear(8, 16), torch.nn.BatchNorm1d(16), torch.nn.Dropout(0.3), torch.nn.Linear(16, 1)
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    trial.track(model=model, optimizer=optimizer)
    # built after the optimizer was tracked: it resets the learning rate
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda epoch: 0.95**epoch)
    python, generator = random.Random(trial.seed), np.random.default_rng(trial.seed)
    trial.track(schedule=schedule, own=own, python=python, numpy=generator)
    for _ in trial.steps():
        for loader in (batches, globally):
            for x, y in loader:
                noise = random.random() + np.random.rand() + python.random() + generator.random()
                optimizer.zero_grad()
                loss = (model(x + 0.01 * noise) - y).pow(2).mean()
                loss.backward()
                optimizer.step()
        schedule.step()
        trial.report(loss=loss, rate=optimizer.param_groups[0]["lr"])


def simple(trial):
    print("hello from", trial.number)
    trial.report(loss=trial.params.get("loss", 0.5))


def counting(trial):
    counter = State(value=0)
    trial.track(counter=counter)
    for step in trial.steps():
        counter.value += 1
        trial.report(loss=float(trial.params.get("loss", 1.0)), step=step)


def raises(trial):
    print("before the fall")
    raise KeyError("no such layer")


def exits(trial):
    sys.exit(3)


def quits(trial):
    print("about to quit")
    os._exit(7)


def segfault(trial):
    ctypes.string_at(0)


def killed(trial):
    os.kill(os.getpid(), signal.SIGKILL)


def kills_its_session(trial):
    os.killpg(os.getsid(0), signal.SIGKILL)


def memory_error(trial):
    raise MemoryError("no room")


def cuda_memory(trial):
    raise torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")


def old_cuda_memory(trial):
    raise RuntimeError("CUDA out of memory.")


def cublas_memory(trial):
    raise RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`")


def deaf(trial):
    """Ignores SIGTERM, and has a child that does, too."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    (trial.folder / "pids").write_text(f"{os.getpid()} {_grandchild()}")
    time.sleep(3600)


def litter(trial):
    """Ends well but leaves a process behind."""
    (trial.folder / "pids").write_text(str(_grandchild()))
    trial.report(loss=1.0)


def lingering_thread(trial):
    threading.Thread(target=time.sleep, args=(3600,)).start()
    trial.report(loss=1.0)


def _grandchild():
    code = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(3600)"
    return subprocess.Popen([sys.executable, "-c", code]).pid
