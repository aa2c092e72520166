"""What a user is told before the start: where a search ends that cannot reach its maximum resource."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hpo_core import StudySpec, load_spec
from hpo_core.spec.assembly import notices
from hpo_flows.deployed.permissions import Permissions
from tests.deployed.filled_forms import filled_in
from tests.flows.conftest import LIMIT, Runner

SHORT: dict[str, Any] = {
    "method": "asha", "configs": 5, "min_resource": 1, "max_resource": 9, "reduction_factor": 3,
}  # fmt: skip
WORDS = "5 configurations bring a trial to 3, and may not bring one to max_resource = 9. Use at least 9 configurations"


@pytest.fixture
def alone(tmp_path: Path) -> Runner:
    """Commands that need no Prefect."""
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


def test_simulate_refuses_what_would_take_days(alone: Runner) -> None:
    huge = alone.study(search=SHORT | {"configs": 10**9})
    assert "at most 2,000,000 are simulated" in alone.here("simulate", huge, code=2)


@pytest.mark.parametrize("brackets", [[0], [0, 1, 2], [0, 1, 2, 3, 4]])
def test_brackets_in_a_form_on_the_command_line_and_in_a_file(brackets: list[int], alone: Runner) -> None:
    row = {"name": "x", "low": 0.0, "high": 1.0}
    everything = {"method": "asha", "brackets": brackets, "configs": 400, "max_resource": 256}
    sent = {"configs": 400, "max_resource": 256, "advanced": {"brackets": str(brackets), "variant": "promotion"}}
    fields = {"objective": "a:b", "metric": {"name": "loss"}, "space": {"float": [row]}, "search": {"asha": sent}}
    made = filled_in(Permissions(("a:b",)), **fields)
    assert made.search.brackets == brackets  # type: ignore[union-attr]
    assert StudySpec.from_plain(made.plain()) == made and not notices(made)
    bare = alone.study(search={"method": "asha", "configs": 400, "max_resource": 256})
    options = ("--repeat", "1", "--set", f"search.brackets={brackets}")
    (scenario,) = json.loads(alone.here("simulate", bare, *options, "--json"))["scenarios"]
    assert scenario["rungs"][0]["trained_to"] == 1 and scenario["rungs"][-1]["trained_to"] == 256
    assert load_spec(bare, [f"search.brackets={brackets}"]).search == made.search
    assert load_spec(alone.study(search=everything)).search == made.search
