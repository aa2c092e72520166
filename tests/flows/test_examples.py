"""The examples run as they are committed, and a rerun repeats them bit for bit."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
import yaml

from tests.flows.conftest import ROOT, Runner
from tests.flows.test_tune import metrics


@pytest.mark.slow
def test_digits_and_its_rerun(hpo: Runner) -> None:
    plain = yaml.safe_load((ROOT / "examples/digits/study.yaml").read_text())
    plain["search"]["configs"] = 14  # the demo's 60 take a minute; the code is the same
    plain |= {"pythonpath": [str(ROOT)], "tracking": {"mlflow": "off"}}
    file = hpo.study(**plain)
    first = hpo.json("tune", file)
    assert first["status"] == "finished" and first["best"]["value"] < 0.6
    again = hpo.json("rerun", "digits", "--as", "digits-again")
    assert again["status"] == "finished"
    assert metrics(hpo, "digits") == metrics(hpo, "digits-again"), "identical metrics at every rung"
    assert {resource for _, resource in metrics(hpo, "digits")} >= {1, 3, 9}


@pytest.mark.slow
def test_pbt_its_schedule_and_the_replay_of_the_winner(hpo: Runner) -> None:
    plain = yaml.safe_load((ROOT / "examples/pbt/study.yaml").read_text())
    plain["search"] |= {"population": 4, "generations": 4}  # the demo's 8 x 12 take most of a minute
    plain |= {"pythonpath": [str(ROOT)], "tracking": {"mlflow": "off"}}
    first = hpo.json("tune", hpo.study(**plain))
    assert first["status"] == "finished" and first["trials"] == 16
    best = first["best"]
    schedule = json.loads(hpo("schedule", "pbt-digits"))["segments"]
    assert schedule[-1]["end"] == best["resource"] and schedule[0]["params"].keys() == {"learning_rate", "momentum"}
    again = hpo.json("rerun", "pbt-digits", "--trial", str(best["trial"]), "--as", "replay")
    assert again["status"] == "finished" and again["trials"] == len(schedule)
    assert again["best"]["value"] == best["value"], "the winner's training again, to the bit"


@pytest.mark.slow
def test_hopping_network_and_its_rerun(hpo: Runner) -> None:
    plain = split_and_read(hpo, "network")
    plain["search"] |= {"configs": 4, "max_resource": 3}  # the example's 20 to 9 take a minute; the code is the same
    first = hpo.json("tune", hpo.study(**plain))
    assert first["status"] == "finished" and first["best"]["value"] < 2.0
    again = hpo.json("rerun", "hopping-network", "--as", "again")
    assert again["status"] == "finished"
    assert metrics(hpo, "hopping-network") == metrics(hpo, "again"), "the same partitions in the same order"


def split_and_read(hpo: Runner, name: str) -> dict[str, Any]:
    (command,) = set(re.findall(r"\$ hpo (partition .*)", (ROOT / "examples/README.md").read_text()))
    assert f"$ hpo {command}\n" in (ROOT / "docs/explanation/hopping.md").read_text()
    hpo.environment["PYTHONPATH"] = str(ROOT)  # the command of the page runs in the clone
    hpo(*command.replace("examples/hopping/shards", "shards").split())
    plain: dict[str, Any] = yaml.safe_load((ROOT / f"examples/hopping/{name}.yaml").read_text())
    return plain | {"pythonpath": [str(ROOT)], "tracking": {"mlflow": "off"}}
