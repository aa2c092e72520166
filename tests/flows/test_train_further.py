"""``hpo extend --to``: after a search one trial is trained further, for real, and the search stays as it was."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from hpo_core import Study
from hpo_core.home import Home
from hpo_core.model.events import TrialExtended
from hpo_core.model.trial import FURTHER
from hpo_core.replay.audit import audit
from tests.flows.conftest import LIMIT, ROOT, Runner
from tests.methods import facts

pytestmark = pytest.mark.timeout(900)  # several commands each, on a machine that may be busy

SEARCHES: dict[str, dict[str, Any]] = {
    "asha": {"method": "asha", "configs": 6, "min_resource": 1, "max_resource": 9, "reduction_factor": 3},
    "stopping": {
        "method": "asha", "variant": "stopping", "configs": 6, "min_resource": 1, "max_resource": 9,
        "reduction_factor": 3,
    },
    "sha": {"method": "sha", "configs": 9, "min_resource": 1, "max_resource": 9, "reduction_factor": 3},
    "hyperband": {"method": "hyperband", "min_resource": 1, "max_resource": 4, "reduction_factor": 2},
    "pasha": {"method": "pasha", "configs": 6, "min_resource": 1, "max_resource": 9, "reduction_factor": 3},
    "random": {"method": "random", "configs": 3, "max_resource": 4},
    "grid": {"method": "grid", "points": {"x": 3}, "max_resource": 4},
    "pbt": {"method": "pbt", "population": 3, "generations": 3, "steps_per_generation": 2},
}  # fmt: skip


def opened(hpo: Runner, name: str) -> Study:
    """The study as recorded, audited."""
    journal = Home(hpo.home).open_journal()
    entries = list(journal.entries(name))
    journal.close()
    assert audit(entries).clean
    study = Study.from_entries(entries)
    study.check()
    return study


@pytest.mark.slow
@pytest.mark.parametrize("method", ["asha", "stopping", "sha", "hyperband", "pasha", "random", "grid", "pbt"])
def test_the_winner_of_a_search_is_trained_further(hpo: Runner, method: str) -> None:
    hpo("tune", hpo.study(search=SEARCHES[method]))
    before = opened(hpo, "toy")
    best = before.best
    assert best is not None

    found = hpo.json("extend", "toy", "--to", "30")
    after = opened(hpo, "toy")
    trial = after.state.trials[best.trial]
    assert found["trained_further"] == {
        "trial": best.trial, "to": 30, "reached": True, "value": trial.further[-1].metrics["loss"],
        "words": found["trained_further"]["words"],
    }  # fmt: skip
    assert found["status"] == after.status == "finished" and found["jobs"] == before.state.completed_jobs + 1
    (result,) = trial.further
    assert (result.resource, result.rung) == (30, FURTHER)
    assert after.method.rungs() == before.method.rungs() and len(after.state.trials) == len(before.state.trials)
    start = facts(Home(hpo.home).open_journal().entries("toy"), TrialExtended)[0].checkpoint
    assert start is not None and start.resource == before.state.trials[best.trial].resource, "not from its last one"
    assert result.checkpoint is not None and (hpo.home / "studies/toy" / result.checkpoint.uri).exists()

    other = min(t.number for t in after.state.trials if t.number != best.trial)
    hpo("extend", "toy", "--trial", str(other), "--to", "25")
    again = hpo.json("extend", "toy", "--trial", str(best.trial), "--to", "40")
    assert again["trained_further"]["reached"]
    last = opened(hpo, "toy")
    assert [r.resource for r in last.state.trials[best.trial].further] == [30, 40]
    assert [r.resource for r in last.state.trials[other].further] == [25]
    assert last.method.rungs() == before.method.rungs()

    assert f"trained further (30 units) in attempt {result.attempt}" in hpo("show", "toy", "--trial", str(best.trial))
    assert "finished" in hpo("status", "toy") and "to_train_further" in hpo.json("status", "toy")
    assert "clean" in hpo("audit", "toy")
    assert "beyond the search" in Path(again["report"]).read_text()
    hpo("rerun", "toy", "--as", "again")  # the same seeds: the same numbers to the last bit, in other legs
    rerun = opened(hpo, "again")
    assert rerun.finished
    for number in (best.trial, other):
        mine, theirs = rerun.state.trials[number].further, last.state.trials[number].further
        assert [(r.resource, r.metrics) for r in mine] == [(r.resource, r.metrics) for r in theirs]


@pytest.mark.slow
def test_refusals_say_why(hpo: Runner) -> None:
    hpo("tune", hpo.study("nan", search=SEARCHES["asha"]))
    study = opened(hpo, "toy")
    bad = next(t.number for t in study.state.trials if t.loss is None)
    assert "give either --configs" in hpo("extend", "toy", code=2)
    assert "give either --configs" in hpo("extend", "toy", "--configs", "3", "--to", "30", code=2)
    assert "give either --configs" in hpo("extend", "toy", "--configs", "3", "--trial", "1", code=2)
    assert "has no trial 99; its trials are 0 to 5" in hpo("extend", "toy", "--trial", "99", "--to", "30", code=1)
    assert "not finite" in hpo("extend", "toy", "--trial", str(bad), "--to", "30", code=1)
    assert study.best is not None
    reached = study.state.trials[study.best.trial].resource
    assert f"is trained to {reached} already" in hpo("extend", "toy", "--to", str(reached), code=1)
    assert "at most 9,007,199,254,740,992" in hpo("extend", "toy", "--to", str(2**53 + 1), code=1)
    assert opened(hpo, "toy").seq == study.seq, "a refusal was recorded"


@pytest.mark.slow
@pytest.mark.parametrize("rule", [{"total_resource": 8}, {"seconds": 10}])
def test_a_rule_that_halted_the_search_neither_blocks_nor_ends_it(hpo: Runner, rule: dict[str, Any]) -> None:
    """``running: cancel`` ends what the search runs; the person's own job goes on, and the search stays halted."""
    endless = SEARCHES["asha"] | {"configs": 1000}
    hpo("tune", hpo.study("slow", search=endless, stop=rule | {"running": "cancel"}), code=7)
    before = opened(hpo, "toy")
    assert before.status == "halted" and before.best is not None
    found = hpo.json("extend", "toy", "--to", "30")
    assert found["status"] == "halted" and found["rule"] == next(iter(rule)) and found["trained_further"]["reached"]
    after = opened(hpo, "toy")
    assert after.state.halted == before.state.halted and after.method.rungs() == before.method.rungs()
    assert after.state.trials[before.best.trial].resource == 30


def wait_for_attempt(hpo: Runner, process: subprocess.Popen[str], after: int) -> int:
    """The number of the attempt that runs, once there is a later one than ``after``."""
    deadline = time.monotonic() + LIMIT
    while True:
        numbers = [grant.attempt for grant in opened(hpo, "toy").state.running.values()]
        if numbers and numbers[0] > after:
            return numbers[0]
        assert time.monotonic() < deadline and process.poll() is None, process.communicate()
        time.sleep(0.1)


@pytest.mark.slow
def test_killed_on_the_way_the_same_command_goes_on(hpo: Runner) -> None:
    hpo("tune", hpo.study("slow", search=SEARCHES["random"]))
    process = hpo.start("extend", "toy", "--to", "300")
    first = wait_for_attempt(hpo, process, -1)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    process.communicate()
    assert "to be trained further to 300" in hpo("show", "toy", "--trial", str(opened(hpo, "toy").best.trial))  # type: ignore[union-attr]

    process = hpo.start("extend", "toy", "--to", "300", "--force")
    wait_for_attempt(hpo, process, first)
    process.send_signal(signal.SIGINT)
    _, words = process.communicate(timeout=LIMIT)
    assert process.returncode == 130 and "--to 300` goes on" in words
    held = opened(hpo, "toy")
    assert held.status == "halted" and held.state.further_held and held.state.extended

    hpo("extend", "toy", "--to", "30", code=1)  # less than what is asked for
    found = hpo.json("extend", "toy", "--to", "301")
    assert found["trained_further"]["reached"] and opened(hpo, "toy").status == "finished"


@pytest.mark.slow
def test_the_deployed_flow_does_the_same(hpo: Runner) -> None:
    """``resume`` with ``to``, as its form sends it; a run that is started again after its end does nothing."""
    hpo("tune", hpo.study(search=SEARCHES["random"], prefect="auto"))
    allowed = {"HPO_ALLOWED_OBJECTIVES": "tests.flows.objectives", "HPO_IMPORT_FOLDERS": str(ROOT)}
    hpo.environment |= allowed
    script = (
        "import sys, json\n"
        "from hpo_flows.deployed.flows import resume\n"
        "state = resume(study='toy', return_state=True, **json.loads(sys.argv[1]))\n"
        "print(state.type.value, state.message)\n"
    )

    def resumed(**parameters: Any) -> str:
        command = [sys.executable, "-c", script, json.dumps(parameters)]
        done = subprocess.run(
            command, capture_output=True, text=True, env=hpo.environment, cwd=ROOT, timeout=LIMIT, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert "COMPLETED trial" in (said := resumed(to=30)) and "trained further, to 30" in said
    study = opened(hpo, "toy")
    assert study.finished and [r.resource for t in study.state.trials for r in t.further] == [30]
    assert "FAILED" in (said := resumed(to=30, configs=3)) and "without configs" in said
    assert "FAILED" in (said := resumed(trial=1)) and "trial only with it" in said
    assert "FAILED" in (said := resumed(to=2)) and "trained to" in said
    assert opened(hpo, "toy").seq == study.seq
