"""Processes that stay for the next attempt: the bits of fresh ones, and no process left, whatever an attempt does."""

from __future__ import annotations

import dataclasses
import random
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import safetensors

from hpo_core.model.trial import Job, Outcome, Report, Rung
from hpo_core.training.child.trainer import Trainer
from hpo_core.training.request import JobRequest
from tests.training.dirty_objectives import NOTICED, PUT_BACK

HERE = str(Path(__file__).parent)


EqualsFresh = Callable[[str, tuple[Any, ...]], bool]


@dataclasses.dataclass
class Bench:
    """Attempts of one trainer, each of them alike but for what it does."""

    trainer: Trainer
    folder: Path
    process: Any
    objective: str = "dirty_objectives:train"
    attempts: int = 0
    said: list[str] = dataclasses.field(default_factory=list)

    def run(self, do: str, **options: Any) -> Report:
        self.attempts += 1
        job = Job(0, self.attempts, Rung(0, 0), 2, {"do": do})
        request = JobRequest(
            study="s", job=job, objective=self.objective, metric="loss", seed=3, folder=str(self.folder),
            pythonpath=(HERE,), process=self.process, grace=5.0, **options,
        )  # fmt: skip
        report = self.trainer.run(request)
        self.said += report.warnings or ()
        return report

    def log(self, report: Report) -> str:
        return (self.folder / f"logs/trial-{report.trial:05d}-attempt-{report.attempt}.log").read_text()

    def told(self, report: Report) -> tuple[Any, ...]:
        """All that an attempt makes, but for times and names."""
        saved: list[Any] = []
        if report.checkpoint is not None:
            with safetensors.safe_open(self.folder / report.checkpoint.uri, "np") as file:
                saved = [(name, file.get_tensor(name).tobytes()) for name in sorted(file.keys())]
                saved += [re.sub(r'"do":"[^"]*"', "", file.metadata()["hpo_tree"])]
        return self.log(report).splitlines(), report.outcome, report.message, report.metrics, report.curve, saved


@pytest.fixture(scope="module")
def benches(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Bench]]:
    """One of each kind, in one environment."""
    yield from _benches("dirty_objectives:train", tmp_path_factory)


def _benches(objective: str, folders: pytest.TempPathFactory) -> Iterator[dict[str, Bench]]:
    found = {}
    for process in ("fresh", "kept"):
        trainer = Trainer(objective, (HERE,))
        trainer.prepare()
        found[process] = Bench(trainer, folders.mktemp(process), process, objective)
    yield found
    for bench in found.values():
        bench.trainer.close()


@pytest.fixture
def kept(benches: dict[str, Bench]) -> Bench:
    return benches["kept"]


@pytest.fixture(scope="module")
def equals_fresh(benches: dict[str, Bench]) -> EqualsFresh:
    """Whether an attempt made what one makes in a fresh process: most make what the one does that does nothing."""
    fresh = benches["fresh"]
    expected = {"nothing": fresh.told(fresh.run("nothing"))}
    assert expected["nothing"][1] is Outcome.COMPLETED

    def equals(name: str, told: tuple[Any, ...]) -> bool:
        if told != expected["nothing"] and name not in expected:
            expected[name] = fresh.told(fresh.run(name))
        return told in (expected["nothing"], expected.get(name))

    return equals


def test_what_can_be_put_back_is_put_back(kept: Bench, equals_fresh: EqualsFresh) -> None:
    process = 0
    for name in PUT_BACK:
        report = kept.run(name)
        assert equals_fresh(name, kept.told(report)), name
        assert report.warnings in ((), None) or not report.warnings, (name, report.warnings)
        now, _ = kept.trainer.waiting
        assert now and now == (process or now), f"{name}: the process did not stay"
        process = now


@pytest.mark.parametrize("name", NOTICED)
def test_what_cannot_be_put_back_ends_the_process(kept: Bench, equals_fresh: EqualsFresh, name: str) -> None:
    if not kept.trainer.waiting[0]:
        kept.run("nothing")
    before, _ = kept.trainer.waiting
    report = kept.run(name)
    assert equals_fresh(name, kept.told(report))
    assert kept.trainer.waiting[0] == 0
    assert not Path(f"/proc/{before}").exists()
    assert sum(NOTICED[name][1] in line for line in kept.said) == 1, "a cause is said once"
    assert equals_fresh("nothing", kept.told(kept.run("nothing")))


@pytest.mark.parametrize("seed", range(2))
def test_any_sequence_of_attempts_equals_fresh_ones(kept: Bench, equals_fresh: EqualsFresh, seed: int) -> None:
    draw = random.Random(seed)
    names = [*PUT_BACK] * 3 + [*NOTICED]
    for name in draw.choices(names, k=25):
        assert equals_fresh(name, kept.told(kept.run(name))), name


def test_settings_of_other_libraries(tmp_path_factory: pytest.TempPathFactory) -> None:
    """One process of each kind: they are large, and each fork of them costs."""
    from tests.training import dirty_libraries

    for benches in _benches("dirty_libraries:train", tmp_path_factory):
        fresh, kept = benches["fresh"], benches["kept"]
        expected = fresh.told(fresh.run("nothing"))
        for name in dirty_libraries.PUT_BACK:
            report = kept.run(name)
            assert kept.told(report) == expected, name
            assert kept.trainer.waiting[0], (name, report.warnings)
        for name, (_, said) in dirty_libraries.NOTICED.items():
            report = kept.run(name)
            assert said in "".join(report.warnings or ()) and not kept.trainer.waiting[0], name
            assert kept.told(kept.run("nothing")) == expected, name


def test_variables_of_an_installed_package_are_compared(tmp_path: Path) -> None:
    """The package of the training function is the user's, also where it lies among the libraries."""
    package = tmp_path / "site-packages" / "of_a_team"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "state.py").write_text("SEEN = []\n")
    (package / "train.py").write_text(
        "from of_a_team.state import SEEN\n"
        "def train(trial):\n"
        "    for _ in trial.steps():\n"
        "        trial.report(loss=float(len(SEEN)))\n"
        "    SEEN.append(1)\n"
    )
    trainer = Trainer("of_a_team.train:train", (str(package.parent),))
    bench = Bench(trainer, tmp_path, "kept", "of_a_team.train:train")
    report = bench.run("append", required="none")
    assert "of_a_team.state.SEEN changed" in "".join(report.warnings or ()) and not trainer.waiting[0]
    trainer.close()
