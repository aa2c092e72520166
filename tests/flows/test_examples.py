"""The examples run as they are committed, and a rerun repeats them bit for bit."""

from __future__ import annotations

import yaml

from tests.flows.conftest import ROOT, Runner
from tests.flows.test_tune import metrics


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


def test_the_demo_is_what_the_readme_says() -> None:
    plain = yaml.safe_load((ROOT / "examples/digits/study.yaml").read_text())
    assert plain["search"] == {
        "method": "asha", "configs": 60, "min_resource": 1, "max_resource": 27, "reduction_factor": 3,
    }  # fmt: skip
    assert len(plain["space"]) in (6, 7)
