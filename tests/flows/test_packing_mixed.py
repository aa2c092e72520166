"""Two stand-in GPUs of different size and one computer without any, in one study: sooner, within limits, unharmed."""

from __future__ import annotations

import signal
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any

import psutil
import pytest

from hpo_core import Study
from hpo_core.model.events import AttemptFailed, ControllerStarted, Entry, JobCompleted, JobPlaced
from hpo_core.model.trial import Outcome
from hpo_core.samplers.sampler import RecordedSampler
from hpo_core.views.device_use import running_lines
from tests.dask_processes import DaskProcesses
from tests.flows.packed_runs import LIMIT, MB, Judge, Packed, check_shares, most_at_once, resident, until, usage
from tests.nvml_stub.cards import GIB, Cards

pytestmark = pytest.mark.slow

PROCESSORS = 400 * MB
MEMORY = {"GPU-large": 80 * GIB, "GPU-small": 32 * GIB, "GPU-new": 80 * GIB}
STUDY: dict[str, Any] = {
    "objective": "tests.flows.packing_objectives:on_either",
    "space": {"gb": {"type": "categorical", "choices": [2, 4, 8]}, "x": {"type": "float", "low": 0.0, "high": 1.0}},
}
PACKING: dict[str, Any] = {
    "memory": {"CPU": PROCESSORS},
    "by": ["gb"],
    "demand": {"compute": 33, "cores": 0.05},  # three at once on a device; how much memory is measured
    "oversubscribe": 1,
}
SEARCHES: dict[str, dict[str, Any]] = {
    "grid": {"method": "grid", "max_resource": 2, "points": {"x": 16}},
    "asha": {"method": "asha", "configs": 60, "min_resource": 1, "max_resource": 3, "reduction_factor": 3},
}


@pytest.fixture
def cluster(dask_processes: DaskProcesses, library: Path, cards: Cards) -> DaskProcesses:
    """Workers that see the cards, and one that sees none."""
    for name in ("one", "two"):
        dask_processes.add_worker(name, environment=cards.variables(library))
    dask_processes.add_worker("processors", environment={"CUDA_VISIBLE_DEVICES": ""})
    return dask_processes


def study_in(folder: Path, cluster: DaskProcesses, search: str, **packing: Any) -> Packed:
    folder.mkdir()
    given = STUDY | {"search": SEARCHES[search], "packing": PACKING | packing, "cluster": cluster.cluster}
    return Packed(folder, **given)


def held(cards: Cards, cluster: DaskProcesses) -> dict[str, int]:
    """Bytes of each card that living processes hold, and of this computer's memory those without a card."""
    found: Counter[str] = Counter()
    for path in (cards.folder / "processes").iterdir():
        if path.name.isdigit() and psutil.pid_exists(int(path.name)):
            uuid, memory, _ = path.read_text().split("\t")
            found[uuid] += int(memory)
    return {**found, "processors": resident(cluster.workers["processors"].pid)}


def check_most(judge: Judge, looks: int) -> None:
    assert judge.looks >= looks
    limits = MEMORY | {"processors": PROCESSORS}
    assert {"GPU-large", "GPU-small", "processors"} <= {name for name, most in judge.most.items() if most}
    assert all(most <= limits[name] for name, most in judge.most.items()), judge.most


def check_placements(entries: list[Entry]) -> list[JobPlaced]:
    """At no entry do the placements of running jobs exceed a device, and a new controller begins with none."""
    study, found = Study.from_entries(entries[:1]), list[JobPlaced]()
    for entry in entries[1:]:
        study.replay(entry)
        found += [event for event in entry.events if isinstance(event, JobPlaced)]
        placed = study.state.placed.values()
        for name in {one.device for one in placed}:
            here = [one for one in placed if one.device == name]
            assert sum(one.share[0] for one in here) <= 1000
            assert sum(one.share[1] for one in here) <= MEMORY.get(name, PROCESSORS)
        assert not placed or not isinstance(entry.stimulus, ControllerStarted)
    return found


def entries_of(packed: Packed) -> list[Entry]:
    journal = packed.home.read_journal()
    try:
        return list(journal.entries("packed"))
    finally:
        journal.close()


def running_on(packed: Packed) -> set[str]:
    """The devices that `hpo status` shows with running jobs now."""
    lines = running_lines(Study.from_entries(entries_of(packed), sampler=RecordedSampler([])))
    return {line.split(" (")[0] for line in lines if line.startswith("running on ")}


def seconds(packed: Packed) -> float:
    events = packed.ended()
    return max(event.ended for event in events) - min(event.started for event in events)


def check_whole(packed: Packed, search: str, allowed: set[Outcome]) -> list[JobCompleted]:
    """Finished, audited, nothing lost or trained twice."""
    study = packed.study()
    assert study.status == "finished"
    events = packed.ended()
    assert {event.outcome for event in events if isinstance(event, AttemptFailed)} <= allowed
    done = [event for event in events if isinstance(event, JobCompleted)]
    assert len(done) == len({(event.trial, event.resource) for event in done})
    first = {event.trial for event in done if event.resource == (2 if search == "grid" else 1)}
    assert first == {trial.number for trial in study.state.trials} and len(first) == (48 if search == "grid" else 60)
    return done


@pytest.mark.parametrize("search", SEARCHES)
def test_packed_studies_are_done_twice_as_soon_as_with_one_job_on_a_device(
    tmp_path: Path, cluster: DaskProcesses, cards: Cards, search: str
) -> None:
    alone = study_in(tmp_path / "alone", cluster, search, most=1)
    packed = study_in(tmp_path / "packed", cluster, search)
    with Judge(lambda: held(cards, cluster)) as judge:
        alone.run("tune", "study.yaml")
        packed.run("tune", "study.yaml")
    check_most(judge, 1000)
    for study, most in ((alone, 1), (packed, 3)):
        done = check_whole(study, search, set())
        by_device = {name: [e for e in done if usage(e).device == name] for name in {usage(e).device for e in done}}
        assert len(by_device) == 3 and all(most_at_once(here) == most for here in by_device.values())
        check_shares(study.ended(), {name: MEMORY.get(name, PROCESSORS) for name in by_device})
        assert {one.device for one in check_placements(entries_of(study))} == set(by_device)
    ratio = seconds(alone) / seconds(packed)
    print(f"{search}: {seconds(alone):.1f} s alone, {seconds(packed):.1f} s packed, {judge.looks} looks {judge.most}")
    assert ratio >= 2, (seconds(alone), seconds(packed))


@pytest.mark.parametrize("search", SEARCHES)
def test_a_worker_a_card_and_the_controller_go_and_others_come(
    tmp_path: Path, cluster: DaskProcesses, library: Path, cards: Cards, search: str
) -> None:
    packed = study_in(tmp_path / "packed", cluster, search)

    def after(more: int, process: subprocess.Popen[str]) -> None:
        count = len(packed.ended()) + more
        until(lambda: len(packed.ended()) >= count, process)

    with Judge(lambda: held(cards, cluster)) as judge:
        process = packed.start("tune", "study.yaml")
        until(lambda: len(packed.ended()) >= 6, process)
        until(lambda: len(running_on(packed)) == 3, process)
        cluster.kill("one")
        after(5, process)
        cards.put("GPU-small", name="Tesla V100-PCIE-32GB", memory=32 * GIB, state="lost")
        cards.put("GPU-new", memory=80 * GIB)
        after(5, process)
        process.send_signal(signal.SIGKILL)
        process.wait()
        cluster.add_worker("three", environment=cards.variables(library))
        process = packed.start("resume", "packed")
        until(lambda: len(running_on(packed)) == 3, process)
        said, _ = process.communicate(timeout=LIMIT)
    assert process.returncode == 0, said
    check_most(judge, 500)
    done = check_whole(packed, search, {Outcome.LOST, Outcome.PREEMPTED})
    assert {"GPU-large", "GPU-small", "GPU-new"} < {usage(event).device for event in done}
    assert len({event.worker for event in done}) == 4, "the worker that joined has trained as well"
    placements = check_placements(entries_of(packed))
    lost_at = max(usage(event).device == "GPU-small" and event.ended for event in done)
    late = [one for one in placements if one.device == "GPU-small" and one.began > lost_at]
    assert len(late) <= 3, "what was placed as it was lost"
    check_shares([e for e in packed.ended() if e.usage], {**MEMORY})
