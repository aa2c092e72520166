"""One search on a virtual clock: by a study of ours, or by another system in an environment of its own."""

from __future__ import annotations

import heapq
import json
import math
import os
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpo_core import MemoryJournal
from hpo_core.model.events import Event
from hpo_core.model.trial import Job, Params
from hpo_core.replay.past_results import with_past
from hpo_core.samplers.sampler import Sampler
from hpo_core.simulation import Simulation, VirtualClock
from hpo_core.spec import StudySpec
from hpo_core.spec.assembly import create_sampler
from hpo_core.state.study_state import StudyState
from hpo_core.study import Study

from .peers.protocol import ANSWER
from .problems import Problem

PEERS = Path(__file__).parent / "peers"
POINTS = 100
MOVED, NEAREST = "moved", "nearest"
SPACES = {
    MOVED: "a proposal is moved to the nearest configuration not tried yet, and our samplers are told that one",
    NEAREST: "a proposal has the curve of the nearest configuration, tried or not, and no sampler is told which",
}
MOST_TRIALS = 10_000
EARLIER_SHARE = 0.5
"""Of its budget, in the earlier study of a warm start."""


@dataclass(frozen=True)
class Ours:
    """A study: what it has beside the problem's space, ASHA with a reduction factor of 3 and the seed.

    Args:
        settings: of the study, ``sampler`` and ``search`` and others; those of ``search`` are added.
        past: what an earlier study on another table of the family says: ``related`` (what was measured), ``shuffled``
            (losses dealt to other configurations) or ``reversed`` (the best called worst).
    """

    settings: Mapping[str, Any] = field(default_factory=dict)
    past: str | None = None


@dataclass(frozen=True)
class Peer:
    """Another system.

    Args:
        environment: name of the Python that has it (``--peer-python NAME=PATH``).
        script: in ``peers/``.
        method: as the script knows it.
    """

    environment: str
    script: str
    method: str


class Located:
    """A sampler whose proposals are moved to places of a problem."""

    def __init__(self, inner: Sampler, problem: Problem, space: str) -> None:
        self._inner, self._problem, self._space = inner, problem, space
        self._taken: set[Any] = set()
        self.places: list[Any] = []
        """By trial."""
        self.cpu_seconds = 0.0
        """Of the sampler."""

    def propose(self, number: int, given: Params | None = None) -> Params | None:
        began = time.process_time()
        asked = self._inner.propose(number)
        self.cpu_seconds += time.process_time() - began
        assert asked is not None
        place = self._problem.place(asked, self._taken if self._space == MOVED else set())
        self._taken.add(place)
        self.places.append(place)
        return self._problem.params(place) if self._space == MOVED else asked

    def apply(self, event: Event) -> None:
        began = time.process_time()
        self._inner.apply(event)
        self.cpu_seconds += time.process_time() - began

    def train(self, job: Job) -> dict[str, float]:
        return {"loss": self._problem.loss(self.places[job.trial], job.target)}

    def cost(self, job: Job) -> float:
        place, start = self.places[job.trial], job.checkpoint.resource if job.checkpoint else 0
        before = self._problem.seconds(place, start) if start else 0.0
        return max(0.0, self._problem.seconds(place, job.target) - before)


class Track:
    """Regrets of the incumbent after each percent of the budget; 1 before the first result."""

    def __init__(self, problem: Problem) -> None:
        self._problem = problem
        self.trained: NDArray[np.float64] = np.ones(POINTS + 1)
        """The incumbent fully trained."""
        self.checkpoint: NDArray[np.float64] = np.ones(POINTS + 1)
        """The checkpoint itself."""

    def incumbent(self, seconds: float, place: Any, resource: int) -> None:
        """From here on this is what a user would take."""
        now = math.ceil(POINTS * seconds / self._problem.until - 1e-9)
        self.trained[now:] = self._problem.regret(place)
        self.checkpoint[now:] = self._problem.checkpoint_regret(place, resource)


def spec_of(problem: Problem, settings: Mapping[str, Any], seed: int, name: str, space: str) -> StudySpec:
    """ASHA on a problem, and the settings; where no configuration comes twice, at most as many as there are."""
    most = problem.size if problem.size and space == MOVED else MOST_TRIALS
    search = {"method": "asha", "configs": most, "min_resource": 1, "max_resource": problem.max_resource}
    search |= {"reduction_factor": 3, "brackets": [0]} | dict(settings.get("search", {}))
    plain = {"study": name, "metric": {"name": "loss"}, "space": problem.space, "seed": seed}
    return StudySpec.from_plain(plain | dict(settings) | {"search": search})


def play_ours(
    problem: Problem,
    system: Ours,
    seed: int,
    space: str,
    *,
    related: Problem | None = None,
    create: Callable[[StudySpec], Sampler] = create_sampler,
) -> dict[str, Any]:
    """One search by a study: regrets after each percent of the budget, by both ways of counting.

    The incumbent is the study's own, by its rule.
    """
    warm = {"warm_start": {"studies": ["earlier"]}} if system.past else {}
    spec = spec_of(problem, dict(system.settings) | warm, seed, problem.name, space)
    if system.past:
        assert related is not None
        spec = with_past(spec, earlier(related, seed, system.past))
    clock, located = VirtualClock(), Located(create(spec), problem, space)
    study = Study.create(spec, sampler=located, clock=clock)
    executor = Simulation(study, clock, workers=problem.workers, train=located.train, seconds=located.cost)
    executor.run(until=problem.until)
    state, track, last = StudyState(), Track(problem), None
    for entry in study.journal.entries(study.name):
        for event in entry.events:
            state.apply(event)
        if state.incumbent is not None and state.incumbent != last:
            last = state.incumbent
            track.incumbent(entry.time, located.places[last.trial], last.resource)
    return _found(track, located.places, located.cpu_seconds)


def _found(track: Track, places: list[Any], cpu_seconds: float) -> dict[str, Any]:
    return {
        "trials": len(places),
        "distinct": len(set(places)),
        "ms": round(1e3 * cpu_seconds / max(1, len(places)), 2),
        "trained": track.trained.round(4).tolist(),
        "checkpoint": track.checkpoint.round(4).tolist(),
    }


def earlier(problem: Problem, seed: int, way: str) -> MemoryJournal:
    """The journal of a study that is named ``earlier``: random search, half of the budget."""
    journal, clock = MemoryJournal(), VirtualClock()
    spec = spec_of(problem, {}, seed, "earlier", MOVED)
    located = Located(create_sampler(spec), problem, MOVED)
    draw, other = create_sampler(spec), dict[int, Any]()

    def train(job: Job) -> dict[str, float]:
        if way == "shuffled":  # the losses of another configuration, the same one on every rung
            drawn = draw.propose(10_000 + job.trial)
            assert drawn is not None
            place = other.setdefault(job.trial, problem.place(drawn, set()))
            return {"loss": problem.loss(place, job.target)}
        return {"loss": -located.train(job)["loss"]} if way == "reversed" else located.train(job)

    study = Study.create(spec, journal, sampler=located, clock=clock)
    executor = Simulation(study, clock, workers=problem.workers, train=train, seconds=located.cost)
    executor.run(until=EARLIER_SHARE * problem.until)
    return journal


class PeerProcess:
    """A script of ``peers/`` that answers one line of JSON with another."""

    def __init__(self, python: str, script: str) -> None:
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115  closed with the process
        self._process = subprocess.Popen(
            [python, str(PEERS / script)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors,
            text=True, env=os.environ | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"},
        )  # fmt: skip

    def __call__(self, **message: Any) -> dict[str, Any]:
        assert self._process.stdin is not None and self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps(message) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            pass
        for line in self._process.stdout:
            if line.startswith(ANSWER):
                found: dict[str, Any] = json.loads(line.removeprefix(ANSWER))
                return found
        self._errors.seek(0)
        raise RuntimeError(f"A peer ended while it was asked to {message['do']}:\n{self._errors.read()[-3000:]}")

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()
        self._errors.close()


def play_peer(
    problem: Problem, peer: Callable[..., dict[str, Any]], method: str, seed: int, space: str
) -> dict[str, Any]:
    """One search by another system, with the same workers, budget and curves.

    It owns its decisions, this loop owns time: a worker trains what it was told, reports, and goes on or is free. The
    incumbent is the lowest loss that was reported. Decisions take no virtual time, as with ours.
    """
    peer(
        do="start",
        method=method,
        space=problem.space,
        resource=problem.max_resource,
        workers=problem.workers,
        seed=seed,
    )
    track, places, taken = Track(problem), dict[str, Any](), set[Any]()
    running: list[tuple[float, int, str, int]] = []
    reached: dict[str, int] = {}
    best, now, count, idle, asked = math.inf, 0.0, 0, problem.workers, 0

    def begin(trial: str, start: int, target: int) -> None:
        nonlocal count
        before = problem.seconds(places[trial], start) if start else 0.0
        took = max(0.0, problem.seconds(places[trial], target) - before)
        heapq.heappush(running, (now + took, count, trial, target))
        count += 1

    while True:
        while idle:
            job = peer(do="ask")
            if job.get("wait"):
                break
            trial, start = job["trial"], job["start"]
            if trial not in places:
                if len(taken) == problem.size:  # all were tried: over again
                    taken.clear()
                places[trial] = problem.place(job["params"], taken if space == MOVED else set())
                taken.add(places[trial])
            assert start <= reached.get(trial, 0), f"{method} resumes trial {trial} from {start}, where it never was"
            idle, asked = idle - 1, asked + 1
            begin(trial, start, job["target"])
        if not running:
            raise RuntimeError(f"{method} waits with no job running on {problem.name}.")
        now, _, trial, target = heapq.heappop(running)
        if now > problem.until:
            break
        loss = problem.loss(places[trial], target)
        if loss < best:
            best = loss
            track.incumbent(now, places[trial], target)
        reached[trial] = max(target, reached.get(trial, 0))
        following = peer(do="tell", trial=trial, resource=target, loss=loss if math.isfinite(loss) else None)
        if following.get("target"):
            begin(trial, target, following["target"])
        else:
            idle += 1
    cpu = peer(do="end")["cpu_seconds"]
    return _found(track, list(places.values()), cpu) | {"ms": round(1e3 * cpu / max(1, asked), 2)}
