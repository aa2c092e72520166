"""A study whose jobs shared devices, played by hand."""

from __future__ import annotations

import heapq
import random
from typing import Any

from hpo_core import MemoryJournal, Outcome, Report, Study
from hpo_core.model.devices.measurement import Usage
from hpo_core.model.events import Entry, JobPlaced
from hpo_core.model.trial import Job

SPACE: dict[str, Any] = {
    "width": {"type": "ordinal", "choices": [64, 128, 256, 512]},
    "batch": {"type": "ordinal", "choices": [16, 32, 64]},
}


def packed_study(
    search: dict[str, Any],
    *,
    devices: tuple[str, ...] = ("A100", "A100", "H100"),
    space: dict[str, Any] = SPACE,
    reports: int = 10_000,
    failures: float = 0.08,
    waiting: int = 0,
) -> list[Entry]:
    """Its journal after so many reports; four jobs run on each device, and so many more wait for one in the end."""
    now, journal, draws = [1_760_000_000.0], MemoryJournal(), random.Random(3)
    plain = {"study": "packed-gpus", "metric": {"name": "val_loss"}, "space": space, "search": search}
    study = Study.create(plain | {"packing": {"oversubscribe": {"A100": 1.5}}}, journal, clock=lambda: now[0])
    names = [f"GPU-{k}a1b2c3d4-9f3e-77aa" for k in range(len(devices))]
    loads = [0] * len(devices)
    running: list[tuple[float, int, float, Job, int]] = []
    for number in range(reports):
        while len(running) < 4 * len(devices) and (job := study.ask()) is not None:
            place = loads.index(min(loads))
            loads[place] += 1
            share = (250, 15_000_000 * int(job.params.get("width", 64)), 2000)
            study.note_placements([JobPlaced(*job.key, names[place], devices[place], share=share, began=now[0])])
            heapq.heappush(running, (now[0] + draws.uniform(20, 60), number * 1000 + job.trial, now[0], job, place))
        if not running:
            break
        end, _, begin, job, place = heapq.heappop(running)
        now[0] = end
        loads[place] -= 1
        memory = 15_000_000 * int(job.params.get("width", 64))
        usage = Usage(
            memory=10**9,
            device_memory=int(memory * draws.uniform(0.7, 0.98)),
            architecture=devices[place],
            device=names[place],
            share=(250, memory, 2000),
        )
        fails = draws.random() < failures
        loss = draws.random() + int(job.params.get("width", 64)) / 1000
        study.tell_report(
            Report(
                trial=job.trial,
                attempt=job.attempt,
                outcome=Outcome.ERROR if fails else Outcome.COMPLETED,
                metrics={} if fails else {"val_loss": loss},
                message="no" if fails else "",
                started=begin,
                ended=end,
                worker=f"tcp://10.0.0.{5 + place // 2}:40001",
                usage=usage,
            )
        )
    for _ in range(waiting):
        study.ask()
    return list(journal.entries("packed-gpus"))
