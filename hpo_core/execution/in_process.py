"""In-process executor: trains here, one job at a time, where a debugger and a profiler see it."""

from __future__ import annotations

import contextlib
import json
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from hpo_core.execution.executor import Inbox, OnReport
from hpo_core.model.devices.inventory import Inventory, Slot
from hpo_core.model.errors import SpecError
from hpo_core.model.rng import Stream
from hpo_core.model.space import SearchSpace
from hpo_core.model.space.search_space import given_values
from hpo_core.model.trial import Job, Outcome, Params, Report
from hpo_core.spec import StudySpec
from hpo_core.study import Study
from hpo_core.training.attempt import run_attempt
from hpo_core.training.objective import load_objective
from hpo_core.training.request import JobRequest, JobRequests


class InProcessExecutor:
    """Runs attempts in this process and thread, with the code that child processes run.

    No limit of ``training`` is enforced (timeouts, memory), and an objective that ends its process ends this one.
    Ctrl-C is the user's and no failure of a trial: its attempt is preempted, and :meth:`wait` raises it::

        study = Study.create(load_spec("study.yaml"))
        Loop(study, InProcessExecutor(study.spec, "runs/debug")).run()

    Args:
        spec: the study's.
        folder: of the study, for checkpoints and logs; made where it is missing.
        objective: the training function; default: the one ``spec.objective`` names.

    Raises:
        SpecError: a job needs several ranks, and so a process for each.
    """

    poll_seconds = 1.0

    def __init__(self, spec: StudySpec, folder: str | Path, objective: Callable[..., Any] | None = None) -> None:
        if spec.least_ranks > 1:
            raise SpecError(
                f"Study {spec.study!r}: training.gang = {spec.training.gang} needs a process for each rank, and this "
                "executor trains in one; set training.gang to 1 here: the same function trains alone."
            )
        root = Path(folder).resolve()
        for part in ("checkpoints", "logs"):
            (root / part).mkdir(parents=True, exist_ok=True)
        if objective is not None:
            spec = spec.model_copy(update={"objective": f"{objective.__module__}:{objective.__qualname__}"})
        self._requests = JobRequests(spec, str(root))
        self._objective = objective or load_objective(self._requests.setup.objective, spec.pythonpath)
        if load := self._requests.setup.load:
            load_objective(load, spec.pythonpath, setting="data.load")
        self._jobs: deque[tuple[Job, OnReport]] = deque()

    def inventory(self) -> Inventory:
        return Inventory.of(1, "in-process")

    def submit(self, job: Job, slot: Slot, on_report: OnReport) -> None:
        self._jobs.append((job, on_report))

    def cancel(self, attempts: Iterable[tuple[int, int]]) -> None:
        keys = set(attempts)
        waiting, self._jobs = self._jobs, deque()
        for job, on_report in waiting:
            if job.key in keys:
                on_report(job, Report(trial=job.trial, attempt=job.attempt, outcome=Outcome.PREEMPTED))
            else:
                self._jobs.append((job, on_report))

    def now(self) -> float:
        return time.monotonic()

    def wait(self, inbox: Inbox, until: float) -> bool:
        """Train the oldest job to its end, whatever ``until`` says.

        Raises:
            KeyboardInterrupt: while it trained; it was reported as preempted.
        """
        if not self._jobs:
            return len(inbox) > 0
        job, on_report = self._jobs.popleft()
        try:
            report = run_attempt(self._objective, self._requests.of(job), raised=(KeyboardInterrupt,))
        except KeyboardInterrupt:
            on_report(job, Report(trial=job.trial, attempt=job.attempt, outcome=Outcome.PREEMPTED))
            raise
        on_report(job, report)
        return True


def parse_params(texts: Sequence[str]) -> dict[str, str]:
    """``NAME=VALUE`` texts by name.

    Raises:
        SpecError: a text has no ``=`` or no name, or a name is given twice.

    >>> parse_params(["lr=0.1", "optimizer.name=sgd"])
    {'lr': '0.1', 'optimizer.name': 'sgd'}
    """
    found: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name.strip():
            raise SpecError(f"--params {text}: write NAME=VALUE, for example lr=0.1.")
        if name.strip() in found:
            raise SpecError(f"--params names {name.strip()!r} twice; give one value.")
        found[name.strip()] = value.strip()
    return found


def read_value(text: str) -> Any:
    """A value as people write it: JSON, or else plain text.

    >>> read_value("0.1"), read_value("true"), read_value("sgd")
    (0.1, True, 'sgd')
    """
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def first_job(spec: StudySpec, given: dict[str, str] | None = None, steps: int | None = None) -> Job:
    """The first job of a study, with some parameters given; nothing of it is recorded anywhere.

    Args:
        given: values as texts; the others are their defaults, else those of the study's sampler, else (where these
            do not fit the given ones) drawn at random.
        steps: the job's target, instead of the one that the search gives it.

    Raises:
        SpecError: the study grants no job, or has no such parameter or value.
    """
    alone = spec.training.model_copy(update={"gang": 1})  # one process trains it, whatever the study's jobs have
    plain = spec.model_copy(update={"warm_start": None, "training": alone})
    jobs = Study.create(plain).set_capacity(1)
    if not jobs:
        raise SpecError(f"Study {spec.study!r} grants no job at all; see its search and stop rules.")
    job = jobs[0]
    params = completed_params(spec.search_space(), given or {}, job.params, spec.seed)
    return msgspec.structs.replace(job, params=params, target=steps or job.target)


def completed_params(space: SearchSpace, given: dict[str, str], drawn: Params, seed: int) -> Params:
    """Given values, completed by drawn ones: the parameters that are active with them, and no others.

    Raises:
        SpecError: the space has no such parameter, or a parameter cannot have its value.
    """
    try:
        fixed = given_values(space, read_params(space, given), "--params")
    except ValueError as error:
        raise SpecError(str(error)) from None
    constants = {name: value for name, value in drawn.items() if name not in space.parameters}
    return constants | space.draw(Stream(seed, "params", 0), _filled(space, fixed, drawn))


def read_params(space: SearchSpace, given: dict[str, str]) -> Params:
    """The values that texts stand for: as JSON where that fits the parameter, else as text."""
    values: Params = {}
    for name, text in given.items():
        values[name] = read_value(text)
        for value in (values[name], text) if name in space.parameters else ():
            with contextlib.suppress(ValueError):
                values[name] = space.parameters[name].taken(value)
                break
    return values


def _filled(space: SearchSpace, values: Params, more: Params) -> Params:
    # With further values as far as they take part and fit; without any where they are forbidden together.
    found: Params = {}
    for name in space.order:
        if name in values:
            found[name] = values[name]
            continue
        part = more.get(name) is not None and space.is_active(name, found)
        if part and space.parameters[name].contains(more[name]):
            found[name] = more[name]
    return values if space.forbidden_by(found) else found | values


def request_of(spec: StudySpec, job: Job, folder: Path) -> JobRequest:
    """The request for a job whose files lie in ``folder``, which is made complete."""
    for part in ("checkpoints", "logs"):
        (folder / part).mkdir(parents=True, exist_ok=True)
    local = spec.model_copy(update={"checkpoints": spec.checkpoints.model_copy(update={"folder": None})})
    return JobRequests(local, str(folder)).of(job)
