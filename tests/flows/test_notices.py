"""What a user is told before the start: where a search ends that cannot reach its maximum resource."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.flows.conftest import LIMIT, Runner

SHORT: dict[str, Any] = {
    "method": "asha", "configs": 5, "min_resource": 1, "max_resource": 9, "reduction_factor": 3,
}  # fmt: skip
WORDS = "5 configurations bring a trial to 3, and may not bring one to max_resource = 9. Use more configurations"


@pytest.fixture
def alone(tmp_path: Path) -> Runner:
    return Runner(tmp_path, {})


@pytest.mark.slow
def test_tune_says_where_a_search_ends_on_terminal_in_json_log_and_report(hpo: Runner) -> None:
    process = hpo.start("tune", hpo.study(search=SHORT), "--json")
    out, err = process.communicate(timeout=LIMIT)
    assert process.returncode == 0, out + err
    facts = json.loads(out)
    assert len(facts["notices"]) == 1 and WORDS in facts["notices"][0]
    assert WORDS in " ".join(err.split())
    assert WORDS in Path(facts["report"]).read_text()
    facts = hpo.json("extend", "toy", "--configs", 4)
    assert facts["notices"] == [] and facts["status"] == "finished", "nine are enough"


def test_simulate_says_it_too(alone: Runner) -> None:
    options = ("--repeat", "1", "--json")
    found = json.loads(alone.here("simulate", alone.study(search=SHORT), *options))
    assert WORDS in found["limits"][0]
    found = json.loads(alone.here("simulate", alone.study(search=SHORT | {"configs": 9}), *options))
    assert not any("may not bring" in line for line in found["limits"])
