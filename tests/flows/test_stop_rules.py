"""Stop rules in real studies: what runs is ended where the study says so, and ``hpo resume`` goes on."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.flows.conftest import Runner


def events(hpo: Runner, kind: str) -> list[dict[str, Any]]:
    entries = [json.loads(line) for line in hpo("export", "toy").splitlines()]
    return [event for entry in entries for event in entry["events"] if event["is"] == kind]


@pytest.mark.slow
def test_seconds_cancel_what_runs_and_a_resume_trains_it_again(hpo: Runner) -> None:
    search = {"method": "random", "max_resource": 2000}  # five minutes each, twice what the runner waits for
    file = hpo.study("slow", search=search, stop={"seconds": 3, "running": "cancel"})
    facts = hpo.json("tune", file, code=7)
    assert (facts["status"], facts["rule"], facts["reason"]) == ("halted", "seconds", "3 seconds are over")
    failed = sorted((e["trial"], e["outcome"]) for e in events(hpo, "AttemptFailed"))
    assert failed == [(0, "preempted"), (1, "preempted")]
    assert sorted(hpo.json("status", "toy")["waiting"]) == [0, 1]
    text = hpo("resume", "toy", code=7)
    assert "stop rule met: 3 seconds are over" in text and "next        hpo resume toy" in text
    granted = [(e["trial"], e["attempt"]) for e in events(hpo, "JobGranted")]
    assert granted[:2] == [(0, 0), (1, 0)] and sorted(granted[2:]) == [(0, 1), (1, 1)]
    assert [e["rule"] for e in events(hpo, "StudyHalted")] == ["seconds", "seconds"]
    assert "clean" in hpo("audit", "toy")
