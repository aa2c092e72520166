"""Stop rules in real studies: what runs ends, and ``hpo resume`` goes on."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.flows.conftest import Runner


def events(hpo: Runner, kind: str) -> list[dict[str, Any]]:
    entries = [json.loads(line) for line in hpo("export", "toy").splitlines()]
    return [event for entry in entries for event in entry["events"] if event["is"] == kind]


@pytest.mark.slow
def test_after_the_seconds_what_runs_ends_and_a_resume_goes_on(hpo: Runner) -> None:
    search = {"method": "random", "max_resource": 30}  # some five seconds each
    file = hpo.study("slow", search=search, stop={"seconds": 3})
    facts = hpo.json("tune", file, code=7)
    assert (facts["status"], facts["rule"], facts["reason"]) == ("halted", "seconds", "3 seconds are over")
    assert sorted(e["trial"] for e in events(hpo, "JobCompleted")) == [0, 1] and not events(hpo, "AttemptFailed")
    text = hpo("resume", "toy", code=7)
    assert "stop rule met: 3 seconds are over" in text and "next        hpo resume toy" in text
    assert [e["trial"] for e in events(hpo, "JobGranted")][2:] == [2, 3]
    assert [e["rule"] for e in events(hpo, "StudyHalted")] == ["seconds", "seconds"]
    assert "clean" in hpo("audit", "toy")
