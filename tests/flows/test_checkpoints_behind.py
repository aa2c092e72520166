"""A study whose processes stay: a slot's next job begins while the checkpoint of the one before is written."""

from __future__ import annotations

from pathlib import Path

from hpo_core import MemoryJournal, Study
from hpo_core.checkpoints import files
from hpo_core.execution.loop import Loop
from hpo_core.model.events import JobCompleted, JobGranted, SlotFreed
from hpo_core.replay.audit import audit
from hpo_flows.dask.executor import DaskExecutor
from tests.conftest import make_spec

TRAINING = Path(__file__).parents[1] / "training"


def test_the_next_job_begins_before_the_checkpoint_is_written(tmp_path: Path) -> None:
    spec = make_spec(
        objective="large_state_objectives:train",
        pythonpath=[str(TRAINING)],
        space={"megabytes": {"type": "float", "low": 9.0, "high": 9.1}},
        search={"method": "asha", "configs": 4, "max_resource": 3},
        training={"process": "kept"},
        cluster={"kind": "local", "workers": 1},
    )
    for part in ("checkpoints", "logs"):
        (tmp_path / part).mkdir()
    study = Study.create(spec, MemoryJournal())
    executor = DaskExecutor(spec, str(tmp_path))
    try:
        executor.start()
        assert Loop(study, executor).run() == "finished"
    finally:
        executor.close()
    entries = list(study.journal.entries(study.name))
    assert audit(entries).clean
    facts = [event for entry in entries for event in entry.events]
    done = [event for event in facts if isinstance(event, JobCompleted)]
    assert len([event for event in facts if isinstance(event, SlotFreed)]) == len(done) > 4
    granted = [
        event
        for entry in entries
        if any(isinstance(each, SlotFreed) for each in entry.events)
        for event in entry.events
        if isinstance(event, JobGranted)
    ]
    assert granted, "the slot goes to another job although nothing is reported"
    logs = [path.read_text() for path in (tmp_path / "logs").glob("*.log")]
    assert len(logs) == len(done) and len(set(logs)) == 1, "one process trains all"
    for event in done:
        assert event.checkpoint is not None
        path = tmp_path / event.checkpoint.uri
        if path.exists():  # those that nothing needs are removed
            files.verify(path, event.checkpoint, tmp_path)
