"""Task runs of a study, executed by Prefect's engine: one for each rung or generation, and in it one for each job.

Where models hop, a rung also holds a task run for each epoch, from the first model that begins it to the last.

The study's loop stays in the main thread of the flow; tasks run on an event loop in a thread of its own, in the context
of the flow run. A task of a job holds no thread: it awaits the job's report. The search never waits for a task, with
one exception: a job whose task has tags waits for the slots of Prefect's concurrency limits on them.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from contextlib import nullcontext
from contextvars import Context, copy_context
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

import msgspec
from prefect import get_run_logger, states
from prefect.client.schemas.objects import State
from prefect.context import AsyncClientContext, TagsContext, TaskRunContext
from prefect.states import Cancelled, Completed
from prefect.task_engine import run_task_async

from hpo_core.execution.executor import Executor, Inbox, OnReport
from hpo_core.model.devices.inventory import Inventory, Slot
from hpo_core.model.devices.measurement import Usage
from hpo_core.model.trial import RESULTS, Generation, Job, JobKey, Outcome, Report
from hpo_core.security.masking import masked
from hpo_core.security.untrusted_text import terminal_text
from hpo_core.study import Study
from hpo_core.views.formatting import plural
from hpo_core.views.rungs import is_unlimited
from hpo_core.views.states import attempt_state
from hpo_flows.prefect_pages.read_back import Begun
from hpo_flows.prefect_pages.tune_flow import epoch, generation, job, rung

JOB_GRAIN_LIMIT = 300
"""Most expected task runs of jobs; Prefect's timeline of more is a grey line."""
CLOSE_SECONDS = 20.0
"""Longest wait of a study's end for its tasks."""
LIMIT_SECONDS = 60.0
"""Longest wait of a job whose concurrency limits cannot be asked for: then it begins without them."""
_ASK_SECONDS = 2.0
_LOG_LINES = 40
"""Lines of a failed job's output that its task's log repeats."""

log = logging.getLogger("hpo.prefect")


def group_name(of: Job) -> str:
    """Name of the task run that holds a job.

    >>> from hpo_core.model.trial import Job, Rung
    >>> group_name(Job(trial=17, attempt=1, stage=Rung(0, 2), target=9, params={}))
    'rung 2 of bracket 0, to 9'
    """
    match of.stage:
        case Generation():
            return f"generation {of.rung}"
        case _:
            return f"rung {of.rung} of bracket {of.bracket}, to {of.target}"


def full_groups(study: Study) -> set[str]:
    """Names of the rungs and generations of a study that have all the results that they expect."""
    members = study.spec.search.outline().members
    return {
        f"generation {one.rung}" if members else f"rung {one.rung} of bracket {one.bracket}, to {one.level}"
        for one in study.method.rungs()
        if one.results >= one.expected
    }


def job_name(of: Job, device: str = "") -> str:
    """Name of a job's task run.

    >>> from hpo_core.model.trial import Job, Rung
    >>> job_name(Job(trial=17, attempt=2, stage=Rung(0, 2), target=9, params={}, retry=True), "GPU 1")
    'trial 17 -> 9, attempt 2, on GPU 1'
    """
    member = f"member {of.stage.member}, " if isinstance(of.stage, Generation) else ""
    again = f", attempt {of.attempt}" if of.retry else ""
    where = f", on {terminal_text(device)}" if device else ""
    return f"{member}trial {of.trial} -> {of.target}{again}{where}"


def state_of(report: Report, metric: str) -> State[Any]:
    """The final state of a job's task run.

    Args:
        metric: what the study optimizes.
    """
    usage = report.usage
    where = f" on {usage.device}" if isinstance(usage, Usage) and usage.share is not None else ""
    if report.outcome in RESULTS:
        word = "" if report.outcome is Outcome.COMPLETED else "diverged: "
        names = [metric] if metric in report.metrics or not report.metrics else list(report.metrics)
        values = ", ".join(f"{name} = {report.metrics.get(name, float('nan')):.6g}" for name in names)
        return Completed(message=terminal_text(f"{word}{values}{where}"))
    words = masked(terminal_text(f"{report.outcome}{where}: {report.message}"))
    state: State[Any] = getattr(states, attempt_state(report.outcome).prefect)(message=words)
    return state


def _repeat_log(report: Report, logger: Any) -> None:
    for created, level, line in () if report.log is msgspec.UNSET else report.log:
        words, context = logger.process(masked(terminal_text(line, lines=True)), {})
        record = logger.logger.makeRecord(logger.logger.name, level, "", 0, words, (), None, extra=context["extra"])
        record.created = created
        logger.logger.handle(record)


@dataclass(slots=True)
class _Group:
    """A rung or generation whose task runs, or an epoch of the models of a rung."""

    context: asyncio.Future[TaskRunContext]
    """The context of its task run, once that began."""
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    counts: list[int] = field(default_factory=lambda: [0, 0])
    """Jobs that completed, attempts that did not."""
    under_way: int = 0
    """Jobs that run."""
    logger: Any = None
    """The logger of its task run, once that began."""
    at: dict[JobKey, int] = field(default_factory=dict)
    """Epoch that each model is in; 0 until its first unit begins. Of hopping studies."""
    epochs: dict[int, _Group] = field(default_factory=dict)
    """Epochs that some model is in or before."""
    models: int = 0
    """Models that have entered the epoch."""

    def words(self) -> str:
        completed, others = self.counts
        return plural(self.models, "model") if self.models else f"{completed} jobs completed, {others} attempts did not"


class StudyTasks:
    """Executor that runs each job of another one within a task of the present flow run.

    Made and used in the thread of the flow. :meth:`close` ends what still runs.

    Args:
        inner: runs the jobs.
        metric: what the study optimizes.
        per_job: whether each job has a task run; else rungs alone have.
        tags: of the jobs' task runs; with tags, a job waits for Prefect's concurrency limits before it is submitted.
        full: names of the rungs and generations that have all the results that they expect. They end once another one
            begins and none of their jobs runs; a job that comes after that opens a second task run of that name.
    """

    def __init__(
        self,
        inner: Executor,
        metric: str,
        *,
        per_job: bool,
        tags: Iterable[str] = (),
        full: Callable[[], set[str]] = set,
    ) -> None:
        self._inner = inner
        self.poll_seconds = inner.poll_seconds
        self._metric = metric
        self._per_job = per_job
        self._tags = frozenset(tags)
        self._full = full
        self._known: set[str] = set()
        """Names of rungs and generations that have begun."""
        self._groups: dict[str, _Group] = {}
        self._reports: dict[JobKey, asyncio.Future[Report | None]] = {}
        """Reports that tasks of jobs await; None: the study ended before theirs came."""
        self._ready: deque[JobKey] = deque()
        """Jobs whose tasks have their slots of Prefect's limits."""
        self._waiting: dict[JobKey, tuple[Job, Slot, OnReport]] = {}
        """Jobs that wait for their tasks' concurrency limits."""
        self._inbox: Inbox | None = None
        self._tasks: set[asyncio.Task[Any]] = set()
        self._queued: dict[JobKey, asyncio.Task[Any]] = {}
        """Tasks of jobs that wait for Prefect's limits."""
        self.begun: list[Begun] = []
        """Task runs that began; their states change."""
        self._told: set[str] = set()
        """Messages of failures whose output is in a log already."""
        self._loop: asyncio.AbstractEventLoop
        self._context: Context
        self._started = threading.Event()
        target = copy_context().run  # of the flow run
        self._thread = threading.Thread(
            target=target, args=(lambda: asyncio.run(self._serve()),), name="prefect-tasks", daemon=True
        )
        self._thread.start()
        self._started.wait()

    # The executor, in the thread of the study's loop.

    def inventory(self) -> Inventory:
        return self._inner.inventory()

    def submit(self, job: Job, slot: Slot, on_report: OnReport) -> None:
        """Begin the job's task, and the job itself: at once, or once its task has its slots of Prefect's limits."""
        if (name := group_name(job)) not in self._known:
            self._known.add(name)
            self._call(self._end_idle, self._full())
        self._call(self._begin, job, slot)
        if self._per_job and self._tags:
            self._waiting[job.key] = job, slot, on_report
        else:
            self._submit(job, slot, on_report)

    def cancel(self, attempts: Iterable[JobKey]) -> None:
        """End these attempts; one that waits for a limit was never submitted."""
        keys = list(attempts)
        for key in keys:
            if (waiting := self._waiting.pop(key, None)) is not None:
                words = "cancelled while it waited for a concurrency limit of Prefect"
                report = Report(trial=key[0], attempt=key[1], outcome=Outcome.PREEMPTED, message=words)
                job, _, on_report = waiting
                on_report(job, report)
                self._call(self._end, job, report)
        self._inner.cancel(keys)

    def note_epoch(self, job: Job, number: int) -> None:
        """A model that hops trains on a partition of this epoch. Safe to call from any thread."""
        self._call(self._enter_epoch, job, number)

    def now(self) -> float:
        return self._inner.now()

    def wait(self, inbox: Inbox, until: float) -> bool:
        self._inbox = inbox
        self._submit_ready()
        goes_on = self._inner.wait(inbox, until)
        self._submit_ready()
        return goes_on or bool(self._waiting)

    def _submit_ready(self) -> None:
        while self._ready:
            if (waiting := self._waiting.pop(self._ready.popleft(), None)) is not None:
                self._submit(*waiting)

    def _submit(self, job: Job, slot: Slot, on_report: OnReport) -> None:
        def told(job: Job, report: Report) -> None:
            on_report(job, msgspec.structs.replace(report, log=msgspec.UNSET))
            self._call(self._end, job, report)

        self._inner.submit(job, slot, told)

    def close(self, seconds: float = CLOSE_SECONDS) -> bool:
        """End all tasks, within so many seconds; returns whether they ended. Safe to call twice."""
        if not self._loop.is_closed():
            self._call(self._end_all)
            self._thread.join(seconds)
        return not self._thread.is_alive()

    # Tasks, on their event loop.

    def _call(self, function: Callable[..., None], *arguments: Any) -> None:
        try:
            self._loop.call_soon_threadsafe(function, *arguments, context=self._context)
        except RuntimeError:  # closed: the study has ended
            pass

    async def _serve(self) -> None:
        self._loop, self._ending = asyncio.get_running_loop(), asyncio.Event()
        # one client for all tasks; tags of the flow run are not the tasks'
        with TagsContext(current_tags=set()):
            async with AsyncClientContext.get_or_create():
                self._context = copy_context()
                self._started.set()
                await self._ending.wait()
                while self._tasks:
                    await asyncio.wait(self._tasks)

    def _start(self, run: Awaitable[Any]) -> asyncio.Task[Any]:
        made = asyncio.ensure_future(run)
        self._tasks.add(made)
        made.add_done_callback(self._ended)
        return made

    def _ended(self, made: asyncio.Task[Any]) -> None:
        self._tasks.discard(made)
        if not made.cancelled() and (error := made.exception()) is not None:
            log.warning("a task run of Prefect failed: %s: %s", type(error).__name__, error)

    def _begin(self, job: Job, slot: Slot) -> None:
        name = group_name(job)
        if (group := self._groups.get(name)) is None:
            held = generation if isinstance(job.stage, Generation) else rung
            group = self._groups[name] = self._open(held, name)
        group.under_way += 1
        group.at[job.key] = 0
        if self._per_job:
            reported = self._reports[job.key] = self._loop.create_future()  # a job may be faster than its task
            made = self._start(self._train(job, slot, group, reported))
            if self._tags:
                self._queued[job.key] = made

    def _note_begun(self) -> TaskRunContext:
        context = TaskRunContext.get()
        assert context is not None
        self.begun.append((context.task, context.task_run))
        return context

    def _open(self, held: Any, name: str, around: _Group | None = None) -> _Group:
        group = _Group(self._loop.create_future())

        async def body() -> State[Any]:
            context = self._note_begun()
            group.logger = get_run_logger()
            group.context.set_result(context)
            await group.ended.wait()
            return Completed(message=group.words())

        async def hold() -> None:
            with nullcontext() if around is None else (await around.context).model_copy():
                await held(name, body, return_state=True)

        self._start(hold())
        return group

    def _enter_epoch(self, of: Job, number: int) -> None:
        group = self._groups.get(group_name(of))
        if group is None or group.at.get(of.key, number) == number:  # it has ended, or is in this epoch already
            return
        group.at[of.key] = number
        if number not in group.epochs:
            group.epochs[number] = self._open(epoch, f"epoch {number}", group)
        group.epochs[number].models += 1
        self._end_epochs(group)

    def _end_epochs(self, group: _Group) -> None:
        first = min(group.at.values(), default=None)
        for number in list(group.epochs):
            if first is None or number < first:
                group.epochs.pop(number).ended.set()

    async def _train(self, of: Job, slot: Slot, group: _Group, reported: asyncio.Future[Report | None]) -> None:
        async def body() -> State[Any]:
            self._note_begun()
            self._make_ready(of)
            report = await reported
            if report is None:
                return Cancelled(message="The study ended before this job did.")
            _repeat_log(report, get_run_logger())
            if report.detail and report.message not in self._told:
                self._told.add(report.message)
                lines = terminal_text(masked(report.detail), lines=True).splitlines()[-_LOG_LINES:]
                get_run_logger().error("\n".join(lines))
            return state_of(report, self._metric)

        # within the rung's task run, yet not in its transaction, which keeps each of them to its end
        with (await group.context).model_copy():
            name = job_name(of, "" if slot.portion is None else slot.portion.device)
            if not self._tags:
                await job(name, body, return_state=True)  # type: ignore[misc]
                return
            limited = job.with_options(name=name, tags=self._tags)  # Prefect shows a task that waits by this name
            one_run: dict[str, Any] = {"task_run_id": uuid4(), "parameters": {"name": name, "body": body}}
            until = None
            while of.key in self._queued:
                asked = self._loop.time()
                try:
                    await run_task_async(limited, return_type="state", **one_run)
                except Exception as error:
                    if of.key not in self._queued:
                        raise
                    now = self._loop.time()
                    if until is None or now - asked > LIMIT_SECONDS:  # so long waits only who is told to
                        until = now + LIMIT_SECONDS
                    if now > until:
                        log.warning("%s begins without its concurrency limits: %s", name, error)
                        await run_task_async(job, return_type="state", **one_run)
                        return
                    await asyncio.sleep(_ASK_SECONDS)

    def _make_ready(self, of: Job) -> None:
        if self._queued.pop(of.key, None) is not None:
            self._ready.append(of.key)
            if self._inbox is not None:
                self._inbox.wake()

    def _end(self, of: Job, report: Report) -> None:
        name = group_name(of)
        if (group := self._groups.get(name)) is not None:
            group.counts[report.outcome not in RESULTS] += 1
            group.under_way -= 1
            group.at.pop(of.key, None)
            self._end_epochs(group)
            if not self._per_job and group.logger is not None:
                _repeat_log(report, group.logger)
        reported = self._reports.pop(of.key, None)
        if reported is not None and not reported.done():
            reported.set_result(report)
        if (queued := self._queued.pop(of.key, None)) is not None:
            queued.cancel()

    def _end_idle(self, full: set[str]) -> None:
        for name in full & self._groups.keys():
            if not self._groups[name].under_way:
                self._groups.pop(name).ended.set()

    def _end_all(self) -> None:
        for queued in self._queued.values():
            queued.cancel()
        self._queued.clear()
        for reported in self._reports.values():
            if not reported.done():
                reported.set_result(None)
        for group in self._groups.values():
            group.at.clear()
            self._end_epochs(group)
            group.ended.set()
        self._ending.set()


def is_per_rung(study: Study) -> bool:
    """True if a study has a task run per rung, and not per job (``prefect`` of the spec)."""
    jobs, prefect = expected_jobs(study), study.spec.prefect
    few = jobs is not None and jobs <= JOB_GRAIN_LIMIT
    return prefect.tasks == "rungs" or (prefect.tasks != "jobs" and not few and not prefect.tags)


def expected_jobs(study: Study) -> int | None:
    """Jobs of a study if nothing fails, mispromotions aside.

    Where only a stop rule ends it: as many as ``total_resource`` pays for at most, or None where that is not limited.
    """
    rungs, total = study.method.rungs(), study.spec.stop.total_resource
    known = [] if is_unlimited(study.spec) else [sum(rung.expected for rung in rungs)]
    if total is not None:
        known.append(total // min(rung.level for rung in rungs) + 1)
    return min(known, default=None)
