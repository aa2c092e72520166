"""The processes that follow a study: CPU microseconds of an entry, by the number of jobs that run.

``replay``: the study alone. ``mlflow``: with what decides which runs change, and no MLflow.
"""

from __future__ import annotations

import sys
import time
from typing import Any

import result_file

sys.path.insert(0, str(result_file.ROOT / "decide"))

RESULTS = 10_000
CASES = [{"what": what, "slots": slots} for what in ("replay", "mlflow") for slots in (10, 1_000, 10_000)]


def measure(*, what: str, slots: int) -> dict[str, Any]:
    import ours

    from hpo_core.journal.memory import MemoryJournal
    from hpo_core.study import Study
    from hpo_core.tracking.tracked_study import TrackedStudy

    ours.SLOTS = slots
    journal = MemoryJournal()
    ours.with_study(RESULTS, journal)
    entries = list(journal.entries("decisions"))
    study = Study.open("decisions", journal, at=0)
    tracked = TrackedStudy()
    began = time.process_time()
    for number, entry in enumerate(entries):
        if what == "mlflow":
            tracked.add(entry)
            if not number % 500:
                tracked.clear_changes()
        elif number:
            study.replay(entry)
    return {"cpu_us": round((time.process_time() - began) / len(entries) * 1e6, 2)}
