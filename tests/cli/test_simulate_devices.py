"""``hpo simulate --devices``: policies side by side, where needs come from, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from typer.testing import CliRunner

from hpo_core import Study
from hpo_core.cli.app import app
from hpo_core.execution.loop import Loop
from hpo_core.execution.placing import objective_digest
from hpo_core.execution.virtual import VirtualAttempt, VirtualClock, VirtualExecutor
from hpo_core.journal.sql import open_journal
from hpo_core.model.devices.measurement import Measurement, Usage
from hpo_core.model.errors import SpecError, StudyNotFoundError
from hpo_core.model.trial import Report
from hpo_core.spec import StudySpec

GB = 1_000_000_000
OBJECTIVE = "tests.conftest:make_spec"
PLAIN: dict[str, Any] = {
    "study": "nets",
    "metric": {"name": "val_loss"},
    "objective": OBJECTIVE,
    "space": {"lr": {"type": "float", "low": 0, "high": 1}, "width": {"type": "ordinal", "choices": [8, 16]}},
    "search": {"method": "random", "configs": 24, "max_resource": 9},
}
STATED = ("--set", "packing.demand.memory=10GB", "--set", "packing.demand.compute=15 + width")


@pytest.fixture
def study_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HPO_HOME", str(tmp_path / "home"))
    path = tmp_path / "study.yaml"
    path.write_text(json.dumps(PLAIN))
    return path


def hpo(*words: object) -> str:
    result = CliRunner().invoke(app, ["simulate", *map(str, words)])
    if result.exception is not None:
        raise result.exception
    return result.stdout


def facts(*words: object) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(hpo(*words, "--json", "--picture", "off", "--repeat", 1))
    return found


def test_each_policy_is_played_and_drawn(study_file: Path) -> None:
    shown = hpo(study_file, "--devices", "2xA100-40GB,1xH100-80GB", *STATED, "--repeat", 2, "--seconds-per-unit", 60)
    for words in ("one job per device", "fill", "first_fit", "first_fit_decreasing", "worst_fit",
                  "worst_fit_decreasing", "device-hours", "2 A100 and 1 H100", "memory as stated (10GB)",
                  "as fast as alone"):  # fmt: skip
        assert words in shown
    assert "exact" not in shown, "the solver is asked for by name"
    page = Path("".join(shown.split("picture")[-1].split())).read_text()
    assert "How long it takes with each policy" in page and "How full the devices are" in page
    assert "A100-1, one job per device" in page and "H100-0, fill" in page


def test_figures_of_policies(study_file: Path) -> None:
    words = (study_file, "--devices", "2xA100-40GB", *STATED)
    found = facts(*words)
    alone, fill = found["scenarios"][:2]
    assert (alone["policy"], fill["policy"], fill["devices"]) == ("one job per device", "fill", ["A100-0", "A100-1"])
    run, packed = alone["runs"][0], fill["runs"][0]
    assert run["seconds"] == 24 * 9 / 2 and run["utilization"] == pytest.approx(1)
    assert packed["seconds"] == 24 * 9 / 2 / 3, "three of 23 to 31 % at once on each device"
    assert packed["worker_seconds"] == pytest.approx(2 * packed["seconds"])
    assert packed["occupancy"] == pytest.approx(3 * run["occupancy"])
    assert facts(*words) == found, "the same twice"
    one = facts(*words, "--policy", "worst_fit", "--set", "search.configs=6", "--set", "search.configs=24")
    assert [scenario["name"] for scenario in one["scenarios"]] == ["worst_fit, configs 6", "worst_fit, configs 24"]


def test_nothing_is_sooner_where_a_stop_rule_ends_it(study_file: Path) -> None:
    words = (study_file, "--devices", "2xA100-40GB", *STATED, "--picture", "off", "--repeat", 1)
    assert "times sooner" in hpo(*words)
    assert "times sooner" not in hpo(*words, "--set", "stop.seconds=20")


def measurement(width: int, **changes: Any) -> Measurement:
    plain: dict[str, Any] = {
        "objective": OBJECTIVE,
        "code": objective_digest(OBJECTIVE),
        "architecture": "A100",
        "params": {"width": width},
        "device_memory": width * GB,
        "compute": width / 50,
        "cores": 1.0,
        "unit_seconds": 30.0,
    }
    return Measurement(**plain | changes)


def test_needs_come_from_the_history_of_the_objective(study_file: Path) -> None:
    (study_file.parent / "home").mkdir()
    journal = open_journal(f"sqlite:///{study_file.parent / 'home' / 'journal.db'}")
    journal.measurements.add([measurement(8), measurement(16)])
    journal.close()
    words = (study_file, "--devices", "1xA100-80GB,1xH100-80GB", "--policy", "one_per_device", "--policy", "fill")
    found = facts(*words)
    assert "2 measurements of tests.conftest:make_spec in the history" in found["source"]
    assert any(line.startswith("Nothing was measured on H100") for line in found["limits"])
    alone, packed = (scenario["runs"][0]["seconds"] for scenario in found["scenarios"])
    assert alone == 24 * 9 * 30 / 2, "durations as measured"
    assert packed <= alone / 3
    assert facts(*words, "--seconds-per-unit", 1)["scenarios"][0]["runs"][0]["seconds"] == 24 * 9 / 2


class Measuring(VirtualExecutor):
    """Each attempt had a whole GPU, and was measured."""

    def _result(self, attempt: VirtualAttempt) -> Report:
        width = attempt.job.params["width"]
        usage = Usage(device_memory=width * GB, compute=width / 50, cores=1.0, unit_seconds=2.0)
        return msgspec.structs.replace(super()._result(attempt), usage=usage)


def test_needs_come_from_a_study_and_from_the_study_itself(study_file: Path) -> None:
    (study_file.parent / "home").mkdir()
    journal = open_journal(f"sqlite:///{study_file.parent / 'home' / 'journal.db'}")
    for name in ("nets", "silent"):
        clock = VirtualClock(1e9)
        study = Study.create(StudySpec.from_plain(PLAIN | {"study": name}), journal, clock=clock)
        kind = Measuring if name == "nets" else VirtualExecutor
        Loop(
            study, kind(clock, workers=3, train=lambda job: {"val_loss": 1.0}, seconds=lambda job: 18 + job.trial / 100)
        ).run()
    journal.close()
    words = (study_file, "--devices", "2xA100-80GB", "--policy", "fill")
    own = facts(*words)
    assert "24 attempts of 'nets' that were measured" in own["source"]
    assert own == facts(*words, "--demands", "nets")
    past = facts("--from-journal", "nets", *words[1:])
    assert past["scenarios"][0]["runs"][0]["seconds"] <= 24 * 18 / 2 / 2.5
    with pytest.raises(SpecError, match="--demands silent: no attempt of that study was measured"):
        facts(*words, "--demands", "silent")
    with pytest.raises(StudyNotFoundError, match="other"):
        facts(*words, "--demands", "other")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--devices", "2xA100-80GB"], "nothing says how much memory and compute a job of 'nets' needs on A100"),
        (["--devices", "2A100-80GB", *STATED], "does not begin with a count"),
        (["--devices", "2xA100-80GB", *STATED, "--workers", 3], "drop --workers"),
        (["--devices", "2xA100-80GB", *STATED, "--join", "1@5"], "drop --workers"),
        (["--devices", "2xA100-80GB", *STATED, "--policy", "fil"], "did you mean 'fill'?"),
        (["--policy", "fill", "--workers", 3], "are for --devices"),
        (["--demands", "nets", "--workers", 3], "are for --devices"),
        (["--devices", "2xA100-80GB", *STATED, *(f"--set=seed={n}" for n in range(5))], "30 combinations"),
    ],
)
def test_questions_without_sense_are_refused(study_file: Path, words: list[object], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        hpo(study_file, *words)


def test_a_job_that_fits_nowhere_is_named(study_file: Path) -> None:
    found = facts(study_file, "--devices", "2xA100-8GB", *STATED, "--policy", "fill")
    run = found["scenarios"][0]["runs"][0]
    assert "It fits on no device, even alone" in run["ended"] and run["failed_attempts"] > 0
    assert "counts as a failed attempt" in " ".join(found["limits"])
