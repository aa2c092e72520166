"""Processor time of a suggestion by the number of trials."""

from __future__ import annotations

import statistics
import time
from typing import Any

from hpo_core.simulation import Simulation, VirtualClock
from hpo_core.spec import StudySpec
from hpo_core.spec.assembly import create_sampler
from hpo_core.study import Study

from .searches import Ours

SIZES = (50, 100, 200, 500, 1000)


def suggestion_times(system: Ours) -> dict[str, float]:
    """Milliseconds of ``propose`` in a study of ASHA over eight numbers, with all that it costs to show the history.

    Median of seven.
    """
    found = {}
    for size in SIZES:
        space = {f"p{k}": {"type": "float", "low": 0.0, "high": 1.0} for k in range(8)}
        search = {"method": "asha", "configs": 10_000, "max_resource": 81, "reduction_factor": 3}
        common = {"study": "time", "metric": {"name": "loss"}, "space": space, "search": search, "seed": 1}
        sampler = system.settings.get("sampler", {"name": "random"})
        asked = create_sampler(StudySpec.from_plain(common | {"sampler": sampler}))
        clock = VirtualClock()
        study = Study.create(StudySpec.from_plain(common | {"sampler": {"name": "random"}}), clock=clock)

        def train(job: Any) -> dict[str, float]:
            return {"loss": sum((x - 0.4) ** 2 for x in job.params.values()) + 1 / job.target}

        executor = Simulation(study, clock, workers=9, train=train, seconds=lambda job: float(job.target))
        while len(study.state.trials) < size:
            executor.run(max_reports=1)
        for entry in study.journal.entries("time"):
            for event in entry.events:
                asked.apply(event)
        took = []
        for again in range(7):
            began = time.process_time()
            asked.propose(len(study.state.trials) + again)
            took.append(1e3 * (time.process_time() - began))
        found[str(size)] = round(statistics.median(took), 2)
    return found
