from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from hpo_core.model.trial import Outcome, Report
from tests.nvml_stub.cards import GIB, Cards, build

RUN = """
import json, sys, msgspec
from hpo_core.model.devices.inventory import Portion
from hpo_core.model.trial import Job, Rung
from hpo_core.training.child.trainer import Trainer
from tests.job_requests import make_request
objectives, folder, jobs = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
trainer = Trainer("gpu_stub_objectives:train", (objectives,))
try:
    for number, (params, share) in enumerate(jobs):
        print(msgspec.json.encode(trainer.run(make_request(
            job=Job(number, 0, Rung(0, 0), 2, params), objective="gpu_stub_objectives:train", folder=folder,
            pythonpath=(objectives,), timeout=120.0, grace=0.3,
            portion=None if share is None else msgspec.convert(share, Portion),
        ))).decode(), flush=True)
finally:
    trainer.close()
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("nvml"))


@pytest.fixture
def cards(tmp_path: Path) -> Cards:
    pytest.importorskip("pynvml", reason="nvidia-ml-py comes with the extra 'gpu'")
    cards = Cards(tmp_path / "cards")
    cards.put("GPU-a")
    cards.put("GPU-b", name="NVIDIA H100 80GB HBM3")
    return cards


def share(memory: int, **changes: Any) -> dict[str, Any]:
    given = {"device": "GPU-b", "architecture": "H100", "compute": 500, "cores": 1000, "capacity": 70 * GIB}
    return given | {"memory": memory, "gpu": True} | changes


def run(cards: Cards, library: Path, *jobs: tuple[dict[str, Any], dict[str, Any] | None]) -> list[Report]:
    done = subprocess.run(
        [sys.executable, "-c", RUN, str(Path(__file__).parent), str(cards.folder.parent), json.dumps(jobs)],
        env=cards.environment(library), capture_output=True, text=True, timeout=600,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return [msgspec.json.decode(line, type=Report) for line in done.stdout.splitlines()]


def test_peak_memory_and_compute_are_what_the_child_held_of_its_card(cards: Cards, library: Path) -> None:
    params = {"memory": 6 * GIB, "percent": 30, "startup": 0.5}
    (report,) = run(cards, library, (params, share(6 * GIB)))
    assert report.outcome is Outcome.COMPLETED, report
    usage = report.usage
    assert usage is not msgspec.UNSET
    assert (usage.device_memory, usage.device, usage.architecture) == (6 * GIB, "GPU-b", "H100")
    assert usage.compute == pytest.approx(0.3, abs=0.05)  # the start-up, in which no kernel ran, is not in the mean
    assert usage.share == (500, 6 * GIB, 1000)
    assert usage.memory > 0 and usage.startup_seconds > 0.5 and usage.unit_seconds > 1.4


@pytest.mark.slow
def test_an_attempt_that_takes_more_of_a_card_than_its_share_is_ended(cards: Cards, library: Path) -> None:
    params = {"memory": 6 * GIB, "percent": 30, "seconds": 3}
    lies, within, alone = run(
        cards, library, (params, share(4 * GIB)), (params, share(6 * GIB)), (params, share(4 * GIB, alone=True))
    )
    assert lies.outcome is Outcome.OUT_OF_MEMORY
    assert "6,442 MB of memory" in lies.message and "4,295 MB is its share of GPU-b" in lies.message
    assert lies.usage is not msgspec.UNSET and lies.usage.device_memory == 6 * GIB
    assert within.outcome is Outcome.COMPLETED, within
    assert alone.outcome is Outcome.COMPLETED, alone


@pytest.mark.slow
def test_what_nobody_tells_is_not_known(cards: Cards, library: Path) -> None:
    params = {"memory": 6 * GIB, "percent": 30, "seconds": 0.5}
    cards.show_foreign_ids()
    foreign, foreign_alone = run(cards, library, (params, share(6 * GIB)), (params, share(6 * GIB, alone=True)))
    assert foreign.usage is not msgspec.UNSET and foreign_alone.usage is not msgspec.UNSET
    assert (foreign.usage.device_memory, foreign.usage.compute) == (None, None)
    assert foreign_alone.usage.compute == pytest.approx(0.3, abs=0.1)  # the card's own: nobody else works on it
    cards.set_driver_absent()
    (absent,) = run(cards, library, (params, share(6 * GIB)))
    assert absent.outcome is Outcome.COMPLETED and absent.usage is not msgspec.UNSET
    assert (absent.usage.device_memory, absent.usage.compute) == (None, None)
    assert absent.usage.memory > 0
