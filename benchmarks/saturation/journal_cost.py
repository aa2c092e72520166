"""The journal: durable entries per second, bytes per entry, seconds to open and to audit a study of n entries.

``append``: so many processes, each with a study of its own, write for some seconds: to one SQLite file, to one each, to
one PostgreSQL server (whose ``fsync`` is on). ``fsync`` is a page appended and made durable by nothing else.
``length``: a study of n results is written at once, opened (replayed) and audited; CPU seconds of that process.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import result_file

sys.path.insert(0, str(result_file.ROOT / "decide"))

SECONDS = 6.0
STORES = ("sqlite, one file", "sqlite, a file each", "postgresql")
CASES: list[dict[str, Any]] = [{"store": store, "writers": writers} for store in STORES for writers in (1, 4)]
CASES.remove({"store": "sqlite, a file each", "writers": 1})
CASES += [{"entries": n, "store": "sqlite"} for n in (10_000, 100_000)]
CASES += [{"entries": 100_000, "store": "postgresql"}, {"entries": 1_000_000, "store": "sqlite"}]


def measure(*, store: str, writers: int = 0, entries: int = 0) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="hpo-bench-") as name:
        folder = Path(name)
        with _urls(store, max(1, writers), folder) as urls:
            return _append(urls, folder) if writers else _length(urls[0], entries)


@contextlib.contextmanager
def _urls(store: str, writers: int, folder: Path) -> Iterator[list[str]]:
    """The journal of each writer."""
    if store == "postgresql":
        from soak.services import PostgreSQL

        place = Path(tempfile.mkdtemp(prefix="hpo-bench-"))  # one that its own user can reach
        place.chmod(0o755)
        server = PostgreSQL(place / "postgresql")
        server.start()
        try:
            yield [server.url] * writers
        finally:
            server.stop()
            import shutil

            shutil.rmtree(place, ignore_errors=True)
    elif store.endswith("each"):
        yield [f"sqlite:///{folder}/journal-{number}.db" for number in range(writers)]
    else:
        yield [f"sqlite:///{folder}/journal.db"] * writers


def _study_in_memory(results: int) -> Any:
    import ours

    from hpo_core.journal.memory import MemoryJournal

    journal = MemoryJournal()
    ours.with_study(results, journal)
    return journal


def _append(urls: list[str], folder: Path) -> dict[str, Any]:
    from hpo_core.journal.sql import open_journal

    entries = list(_study_in_memory(4_000).entries("decisions"))
    for number, url in enumerate(urls):
        journal = open_journal(url)
        journal.create(f"study-{number}", entries[0])
        journal.close()
    context = multiprocessing.get_context("fork")
    ready, counts = context.Barrier(len(urls)), context.SimpleQueue()

    def write(number: int, url: str) -> None:
        journal = open_journal(url)
        journal.info(f"study-{number}")
        ready.wait(60)
        began, cpu, count = time.perf_counter(), time.process_time(), 0
        for entry in entries[1:] * 50:
            moved = _at(entry, count + 1)
            journal.append(f"study-{number}", moved)
            count += 1
            if time.perf_counter() - began > SECONDS:
                break
        counts.put((count, time.perf_counter() - began, time.process_time() - cpu))

    before = _fsync(folder / "floor")
    processes = [context.Process(target=write, args=pair) for pair in enumerate(urls)]
    for process in processes:
        process.start()
    found = [counts.get() for _ in processes]
    for process in processes:
        process.join(60)
    written = sum(count for count, _, _ in found)
    return {
        "per_second": round(sum(count / wall for count, wall, _ in found), 1),
        "cpu_us": round(sum(cpu for _, _, cpu in found) / written * 1e6, 1),
        "fsync_us": [round(before * 1e6, 1), round(_fsync(folder / "floor") * 1e6, 1)],
    }


def _at(entry: Any, seq: int) -> Any:
    import msgspec

    return msgspec.structs.replace(entry, seq=seq)


def _fsync(path: Path, times: int = 200) -> float:
    """Seconds for a page appended and made durable."""
    page = b"0" * 4096
    with path.open("wb", buffering=0) as file:
        began = time.perf_counter()
        for _ in range(times):
            file.write(page)
            os.fdatasync(file.fileno())
        return (time.perf_counter() - began) / times


def _length(url: str, results: int) -> dict[str, Any]:
    from hpo_core.journal.sql import open_journal

    memory = _study_in_memory(results)
    journal = open_journal(url)
    journal.restore("decisions", memory.entries("decisions"))
    size = _size(url, journal)
    del memory
    count = journal.info("decisions").entries
    journal.close()
    found = {"entries": count, "bytes_per_entry": round(size / count)}
    context = multiprocessing.get_context("spawn")
    for what in ("open", "audit"):
        answer = context.SimpleQueue()
        process = context.Process(target=_read, args=(what, url, answer))
        process.start()
        cpu, wall, memory_bytes = answer.get()
        process.join(60)
        found |= {
            f"{what}_cpu_s": round(cpu, 2),
            f"{what}_wall_s": round(wall, 2),
            f"{what}_us_per_entry": round(cpu / count * 1e6, 1),
        }
        if what == "open":  # an audit keeps its state no longer
            found["state_bytes_per_entry"] = round(memory_bytes / count)
    return found


def _read(what: str, url: str, answer: Any) -> None:
    from workload import resident

    from hpo_core.journal.sql import open_journal
    from hpo_core.replay.audit import audit
    from hpo_core.study import Study

    journal = open_journal(url)
    before = resident()
    began, cpu = time.perf_counter(), time.process_time()
    if what == "open":
        kept = Study.open("decisions", journal)
        assert kept.seq
    else:
        assert audit(journal.entries("decisions"), check_invariants=False).clean
    spent = time.process_time() - cpu, time.perf_counter() - began
    answer.put((*spent, resident() - before))


def _size(url: str, journal: Any) -> int:
    if url.startswith("sqlite"):
        journal.close()  # the write-ahead log becomes part of the file
        return Path(url.removeprefix("sqlite:///")).stat().st_size
    import sqlalchemy as sa

    with sa.create_engine(url).connect() as connection:
        return int(connection.execute(sa.text("SELECT pg_total_relation_size('hpo_entries')")).scalar_one())
