"""Damage to a journal that an audit finds, and to what is folded from it."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from typing import Any

import pytest

from hpo_core.journal.codec import decode_entry, encode_entry
from hpo_core.model.errors import JournalError
from hpo_core.model.events import Entry, JobCompleted
from hpo_core.replay.audit import audit
from hpo_core.state.best_results import BestResults
from tests.checkpoints.test_checkpoints import Disk
from tests.conftest import make_spec, played

Plain = list[dict[str, Any]]


def entries() -> list[Entry]:
    return list(played(make_spec(checkpoints={"max_count": 6}), Disk(3)).journal.entries("world"))


def written() -> Plain:
    return [json.loads(encode_entry(entry)) for entry in entries()]


def changed(kind: str, change: Callable[[dict[str, Any]], Any]) -> Callable[[Plain], None]:
    def damage(entries: Plain) -> None:
        change([event for entry in entries for event in entry["events"] if event["is"] == kind][-1])

    return damage


def swap(entries: Plain) -> None:
    entries[8]["events"], entries[9]["events"] = entries[9]["events"], entries[8]["events"]


def forget(entries: Plain) -> None:
    del entries[9]["events"][-1]


def reseed(entries: Plain) -> None:
    for record in (entries[0]["stimulus"], entries[0]["events"][0]):
        record["spec"]["seed"] += 1


DAMAGES: dict[str, Callable[[Plain], None]] = {
    "loss": changed("JobCompleted", lambda event: event.update(loss=event["loss"] - 9)),
    "metric": changed("JobCompleted", lambda event: event["metrics"].update(loss=9.0)),
    "digest": changed("JobCompleted", lambda event: event["checkpoint"].update(digest="other")),
    "resource": changed("JobCompleted", lambda event: event.update(resource=event["resource"] + 1)),
    "violation": changed("JobCompleted", lambda event: event.update(violation=0.5)),
    "target": changed("JobGranted", lambda event: event.update(target=event["target"] + 1)),
    "trial": changed("JobGranted", lambda event: event.update(trial=event["trial"] - 1)),
    "attempt": changed("JobGranted", lambda event: event.update(attempt=event["attempt"] + 1)),
    "parameters": changed("TrialCreated", lambda event: event["params"].update(x=0.4242)),
    "chance of a removal": changed("CheckpointRemoved", lambda event: event.update(chance=0.123)),
    "swapped decisions": swap,
    "dropped decision": forget,
    "another seed": reseed,
    "another seed in the fact alone": lambda entries: entries[0]["events"][0]["spec"].update(seed=8),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_damage_is_found(name: str) -> None:
    entries = written()
    assert audit([decode_entry(json.dumps(entry)) for entry in entries]).clean
    damaged = copy.deepcopy(entries)
    DAMAGES[name](damaged)
    assert damaged != entries
    report = audit([decode_entry(json.dumps(entry)) for entry in damaged])
    first = next(i for i, (one, other) in enumerate(zip(entries, damaged, strict=True)) if one != other)
    assert report.findings and report.findings[0].seq >= first
    if name != "another seed":  # whose first draw comes later
        assert report.findings[0].seq == first


def test_a_missing_entry_is_named() -> None:
    found = entries()
    with pytest.raises(JournalError, match="Entry 8 stands where 7 belongs"):
        audit(found[:7] + found[8:])


def test_the_audit_asks_for_the_best_result(monkeypatch: pytest.MonkeyPatch) -> None:
    study = played(make_spec(), Disk(3))
    take = BestResults.take

    def take_half(best: BestResults, event: JobCompleted) -> None:
        if event.trial % 2:
            take(best, event)

    monkeypatch.setattr(BestResults, "take", take_half)
    with pytest.raises(JournalError, match="missing among the best"):
        audit(study.journal.entries("world"))
