"""Our cost per decision: ``Study.tell_report`` with a journal, or the bare method, or a bare heap.

Run by decisions.py, each measurement in a fresh process.
"""

from __future__ import annotations

import heapq
import os
import tempfile
import time
from pathlib import Path
from typing import Any

from workload import ETA, LEVELS, SLOTS, Job, answer, arguments, play, resident, summary


def with_study(results: int, journal: Any) -> dict[str, Any]:
    """The whole path: stimulus, decision, parameters of a new trial, entry in the journal, job."""
    from hpo_core.model.trial import Checkpoint, Outcome, Report
    from hpo_core.study import Study

    spec = {
        "study": "decisions",
        "metric": {"name": "loss"},
        "space": {
            "learning_rate": {"type": "float", "low": 1e-4, "high": 1.0, "log": True},
            "width": {"type": "int", "low": 8, "high": 256, "log": True},
            "optimizer": {"type": "categorical", "choices": ["sgd", "adam"]},
        },
        "search": {
            "method": "asha",
            "configs": results + SLOTS,
            "min_resource": LEVELS[0],
            "max_resource": LEVELS[-1],
            "reduction_factor": ETA,
        },
    }
    before = resident()
    study = Study.create(spec, journal)

    def jobs(granted: list[Any]) -> list[Job]:
        return [
            Job(job.trial, job.checkpoint.resource if job.checkpoint else 0, job.target, job.attempt) for job in granted
        ]

    def tell(job: Job, loss: float) -> list[Job]:
        uri = f"checkpoints/trial-{job.trial:05d}/to-{job.target}"
        report = Report(
            trial=job.trial, attempt=job.payload, outcome=Outcome.COMPLETED, metrics={"loss": loss},
            checkpoint=Checkpoint(uri, "", job.target, 0), worker="w", started=0.0, ended=1.0,
        )  # fmt: skip
        return jobs(study.tell_report(report))

    spent = play(lambda: jobs(study.set_capacity(SLOTS)), tell, results)
    return summary(spent, len(study.state.trials), before) | {"entries": study.seq}


def durable(results: int, url: str | None) -> dict[str, Any]:
    """With the SQL journal; then its entries once more by themselves, one transaction each."""
    from hpo_core.journal.memory import MemoryJournal
    from hpo_core.journal.sql import open_journal

    with tempfile.TemporaryDirectory(prefix="hpo-bench-") as folder:
        journal = open_journal(url or str(Path(folder) / "journal.db"))
        found = with_study(results, journal)
        journal.close()
        if url is not None:
            return found
        memory = MemoryJournal()
        with_study(min(results, 3000), memory)
        entries = list(memory.entries("decisions"))
        raw = open_journal(str(Path(folder) / "raw.db"))
        raw.create("raw", entries[0])
        began = time.perf_counter()
        for entry in entries[1:]:
            raw.append("raw", entry)
        took = time.perf_counter() - began
        raw.close()
        found["entries_per_second"] = round((len(entries) - 1) / took, 1)
        found["fsync_us"] = round(_fsync(Path(folder) / "floor") * 1e6, 1)
    return found


def _fsync(path: Path, times: int = 200) -> float:
    """Seconds for a page appended and made durable: the floor under every transaction."""
    page = b"0" * 4096
    with path.open("wb", buffering=0) as file:
        began = time.perf_counter()
        for _ in range(times):
            file.write(page)
            os.fdatasync(file.fileno())
        return (time.perf_counter() - began) / times


def bare(results: int) -> dict[str, Any]:
    """The method alone: one result applied, the next action asked for and applied."""
    from hpo_core.model.events import JobCompleted, JobGranted, TrialCreated
    from hpo_core.model.trial import Rung
    from hpo_core.search.asha import Asha, AshaSearch
    from hpo_core.search.method import Promote, Sample

    before = resident()
    method = Asha(
        AshaSearch(
            configs=results + SLOTS,
            min_resource=LEVELS[0],
            max_resource=LEVELS[-1],
            reduction_factor=ETA,
        ).plan(),
        results + SLOTS,
    )
    created = 0

    def grant() -> list[Job]:
        nonlocal created
        action = method.next_action()
        if isinstance(action, Sample):
            trial, created = created, created + 1
            method.apply(TrialCreated(trial, 0, {}))
            start = 0
        elif isinstance(action, Promote):
            trial, start = action.trial, LEVELS[action.rung - 1]
        else:
            return []
        method.apply(JobGranted(trial, action.rung, Rung(0, action.rung), action.target, None))
        return [Job(trial, start, action.target, action.rung)]

    def tell(job: Job, loss: float) -> list[Job]:
        rung = job.payload
        method.apply(JobCompleted(job.trial, rung, Rung(0, rung), job.target, loss, {}, None, "", 0.0, 0.0))
        return grant()

    spent = play(lambda: [grant()[0] for _ in range(SLOTS)], tell, results)
    return summary(spent, created, before)


def bare_heap(results: int) -> dict[str, Any]:
    """The floor in Python: results pushed on a heap, one in three taken off again as "promoted"."""
    before = resident()
    heap: list[tuple[float, int]] = []
    created = SLOTS

    def tell(job: Job, loss: float) -> list[Job]:
        nonlocal created
        heapq.heappush(heap, (loss, job.trial))
        if not created % ETA:
            heapq.heappop(heap)
        created += 1
        return [Job(created, 0, 1)]

    spent = play(lambda: [Job(k, 0, 1) for k in range(SLOTS)], tell, results)
    return summary(spent, created, before)


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--kind", choices=("memory", "sql", "bare", "heap"), default="memory")
    parser.add_argument("--url", help="SQLAlchemy URL of an empty database instead of SQLite (kind sql)")
    given = parser.parse_args()
    if given.kind == "memory":
        from hpo_core.journal.memory import MemoryJournal

        answer(with_study(given.results, MemoryJournal()))
    elif given.kind == "sql":
        answer(durable(given.results, given.url))
    else:
        answer((bare if given.kind == "bare" else bare_heap)(given.results))


if __name__ == "__main__":
    main()
