"""Packed studies with controllers of their own take turns on this machine's processors. ``pytest -s`` shows figures."""

from __future__ import annotations

import signal
import subprocess
import time
from pathlib import Path

import pytest
import yaml

from hpo_core.home import Home
from hpo_core.journal.sql import is_alive
from hpo_core.pool.seat import LEASE_SECONDS
from hpo_core.pool.store import live_rows
from hpo_core.pool.words import standings
from hpo_core.replay.audit import audit
from hpo_core.study import Study
from tests.sharing.test_real_pool import LIMIT, SHORT, Measured, Start, start, wait_until

__all__ = ["start"]
pytestmark = pytest.mark.slow
JOB_SECONDS = 2.0


def turns(measured: Measured) -> list[tuple[str, float, float]]:
    """(study, begin, end) of each time that a study had the device: jobs one after the other or at once."""
    found: list[tuple[str, float, float]] = []
    for mark, begin, end in sorted(measured.spans(), key=lambda span: span[1]):
        if found and found[-1][0] == mark:
            found[-1] = (mark, found[-1][1], max(found[-1][2], end))
        else:
            found.append((mark, begin, end))
    return found


def check_one_at_a_time(measured: Measured) -> None:
    """No job of one study runs beside a job of the other one, by what the jobs themselves wrote.

    One that wrote no end was ended within the time that it would have taken.
    """
    spans = [(mark, begin, min(end, begin + JOB_SECONDS + 1.0)) for mark, begin, end in measured.spans()]
    for mark, begin, end in spans:
        for other, other_begin, other_end in spans:
            assert mark == other or end <= other_begin or other_end <= begin, (mark, begin, end, other, other_begin)


def test_packed_studies_take_turns_on_one_device_and_never_run_beside_each_other(tmp_path: Path, start: Start) -> None:
    measured = Measured(tmp_path / "jobs.txt")

    def study(name: str) -> subprocess.Popen[bytes]:
        described = {
            "study": name,
            "objective": "tests.sharing.waiting_objective:train",
            "metric": {"name": "loss"},
            "space": {"x": {"type": "float", "low": 0.0, "high": 1.0}},
            "constants": {"mark": name, "seconds": JOB_SECONDS, "file": str(measured.file)},
            "search": {"method": "random", "configs": 10_000, "max_resource": 1},
            "cluster": {"kind": "local", "workers": 1},
            "packing": {"devices": "cpu", "demand": {"memory": "200MB", "compute": 30, "cores": 0.1},
                        "memory": "800MB"},
            "share": {"pool": "packed"},
            "tracking": {"mlflow": "off"},
        }  # fmt: skip
        (tmp_path / f"{name}.yaml").write_text(yaml.safe_dump(described))
        return start(name, "hpo_flows", "tune", f"{name}.yaml", "--no-prefect")

    def has_run_since(name: str, moment: float) -> bool:
        return any(mark == name and begin > moment for mark, begin, _ in measured.spans())

    controllers = {name: study(name) for name in "ab"}
    for number in range(2):
        for name in "ab":
            moment = time.time()
            wait_until(f"turn {number + 1} of {name}", lambda: has_run_since(name, moment))  # noqa: B023
    source = Home(str(tmp_path / "home")).read_journal()
    seen = standings(live_rows(source, is_alive))
    print("\n" + "\n".join(seen[name].words for name in "ab"))
    assert sum(seen[name].held for name in "ab") <= 1 == seen["a"].slots
    assert any("of 1 device (weight 1)" in seen[name].words for name in "ab")

    def hands_nothing_over(name: str) -> bool:  # what a stopped controller was handing over begins once it goes on
        now = time.time()
        begun = [began for mark, began, end in measured.spans() if mark == name and end >= now]
        return len(begun) == 3 and now - JOB_SECONDS + 0.5 < min(begun) and max(begun) < now - 0.3

    def found() -> bool:
        at_work.extend(filter(hands_nothing_over, "ab"))
        return bool(at_work)

    at_work = list[str]()
    wait_until("all jobs of the holder are at work", found)
    holder = at_work[0]
    other = "b" if holder == "a" else "a"
    controllers[holder].send_signal(signal.SIGSTOP)
    stopped = time.time()
    wait_until("the other one has the device of a controller that is stopped",
               lambda: has_run_since(other, stopped), limit=LEASE_SECONDS + 4 * SHORT)  # fmt: skip
    print(f"the other one began {time.time() - stopped:.1f} s after the holder was stopped")
    controllers[holder].send_signal(signal.SIGCONT)
    moment = time.time()
    wait_until("it has its turn again", lambda: has_run_since(holder, moment))

    controllers[holder].kill()
    controllers[holder].wait()
    killed = time.time()
    wait_until("the other one has the device of a controller that was killed",
               lambda: has_run_since(other, killed), limit=LEASE_SECONDS + 4 * SHORT)  # fmt: skip
    print(f"the other one began {time.time() - killed:.1f} s after the holder was killed")
    controllers[holder] = start(f"{holder}-again", "hpo_flows", "resume", holder, "--no-prefect")
    moment = time.time()
    wait_until("the study that was resumed has its turn", lambda: has_run_since(holder, moment))
    for controller in controllers.values():
        controller.send_signal(signal.SIGINT)
    for name, controller in controllers.items():
        log = tmp_path / f"{name}{'-again' if name == holder else ''}.log"
        assert controller.wait(LIMIT) == 130, log.read_text()[-3000:]
    check_one_at_a_time(measured)
    had = turns(measured)
    print("turns: " + ", ".join(f"{name} {end - begin:.0f} s" for name, begin, end in had))
    for name in "ab":
        assert audit(source.entries(name)).clean
        trials = Study.open(name, source, reading=True).state.trials
        used = [result.usage.share for trial in trials for result in trial.results if result.usage is not None]
        assert used and {share[1] for share in used if share} == {200_000_000}, "its needs are its own"
