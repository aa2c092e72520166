"""TrialHandle: the ``trial`` that a training function is called with."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any, Never

from hpo_core.checkpoints import files as checkpoints
from hpo_core.checkpoints.storage import hop_base, remove
from hpo_core.checkpoints.tree_codec import memory_of
from hpo_core.model.errors import ObjectiveError, StorageError
from hpo_core.model.short_text import did_you_mean, shown
from hpo_core.model.space.parameter import NestedParams
from hpo_core.model.trial import Checkpoint, Metrics, Params, Point
from hpo_core.security.private_files import private_folder
from hpo_core.training.child.shared_progress import SharedProgress
from hpo_core.training.inherited_state import InheritedState, describe
from hpo_core.training.partition_data import Evaluate, PartitionPasses
from hpo_core.training.reported_metrics import ReportedCurve, check_required, reported_value
from hpo_core.training.request import JobRequest
from hpo_core.training.saved_state import (
    LoopWatch,
    can_track,
    capture_all,
    put_state,
    restore_all,
    state_of,
    untrackable,
    unwrapped,
)
from hpo_core.training.user_code import exit_if_forked_copy


class _Phase(Enum):
    BUILDING = "before steps()"
    STEPPING = "within steps()"
    DONE = "after steps()"


class TrialHandle:
    """One attempt at one trial, as the training function sees it.

    ::

        def train(trial):
            model, optimizer = build(trial.params)
            trial.track(model=model, optimizer=optimizer)
            for epoch in trial.steps():
                train_one_epoch(model, optimizer)
                trial.report(val_loss=evaluate(model))

    The loop starts where the trial stands (its checkpoint) and ends at the target; the state of all that was
    tracked, and of every global random generator, is saved when the loop has ended.
    """

    number: int
    """The trial's number in its study."""
    params: Params
    seed: int
    """Seed of the trial; the generators of python, numpy and torch were seeded with it already."""
    rank: int
    """Which rank of its gang this process is (``training.gang`` of the study), from 0; 0 without a gang."""
    world_size: int
    """Ranks of the gang; 1 without one."""
    resource: int
    """Steps done so far."""
    target: int
    """Steps to have done at the end (absolute: counted from the trial's start)."""
    parent: int | None
    """The trial whose checkpoint this one starts from; None for its own (only population based training has one)."""

    def __init__(
        self,
        request: JobRequest,
        state: dict[str, Any] | None = None,
        progress: SharedProgress | None = None,
        ranks: Any = None,
    ) -> None:
        job = request.job
        self.number = job.trial
        self.params = NestedParams(job.params) if any("." in name for name in job.params) else dict(job.params)
        self.seed = request.seed
        self.rank, self.world_size = request.gang.rank, request.gang.size
        self.resource = job.checkpoint.resource if job.checkpoint else 0
        self.target = job.target
        self.parent = job.parent
        self._request = request
        self._state = state
        self._progress = SharedProgress() if progress is None else progress
        self._pid = os.getpid()
        self._inherited = None if state is None or job.parent is None else InheritedState(state, job.params, job.parent)
        self._tracked: dict[str, Any] = {}
        self._phase = _Phase.BUILDING
        self._curve = ReportedCurve()
        self._metrics: Metrics = {}
        self._saved: Checkpoint | None = None
        self._unit = job.unit
        self._passes = PartitionPasses(request)
        self._watch: LoopWatch | None = None
        self.warnings: tuple[str, ...] = ()
        """Lines for the user, such as one for an object that the loop changed and that is not tracked."""
        self.ranks = ranks
        """The other ranks (:class:`hpo_core.gangs.ranks.Ranks`); None without a gang. For the system."""
        self.ask: Callable[[Metrics, tuple[Point, ...], Checkpoint | None], JobRequest | None] | None = None
        """Takes what the job came to at its target, returns the request of the trial's next job; None: the loop ends
        there. For the system."""
        self.save_error: StorageError | None = None
        """Error of writing the checkpoint; None where it was written. For the system."""

    @property
    def may_go_on(self) -> bool:
        """True if the loop may go on beyond the target, once the study has seen what the trial came to. For the
        system."""
        return self.ask is not None and self._request.asks

    @property
    def folder(self) -> Path:
        """Scratch folder of this trial, the same for all its attempts; made on first use."""
        scratch = Path(self._request.setup.folder) / "scratch"
        return private_folder(scratch / f"trial-{self.number:05d}", below=scratch)

    @property
    def partition(self) -> Any:
        """The part of the data to train on now, where models hop (``data.partitions`` of the study).

        Its path; with ``data.load``, what that function made of it. Each pass of the loop is then one pass over one
        partition, and an epoch is a pass over each of them.

        Raises:
            ObjectiveError: the data of the study are not partitioned, or this one cannot be loaded.
        """
        return self._passes.data()

    @property
    def ends_epoch(self) -> bool:
        """True if the present step is the last one of its epoch; always, where models do not hop."""
        return self._passes.ends_epoch

    def data_parallel(self, module: Any, **options: Any) -> Any:
        """The module as all ranks of the gang train it together; without a gang the module itself.

        It is wrapped by torch's ``DistributedDataParallel``, and the gradients of a mean loss are those of the whole
        batch that :meth:`shard` divides, also where its parts are not of one size::

            model = trial.data_parallel(model)

        Args:
            options: further arguments for ``DistributedDataParallel``.
        """
        return module if self.ranks is None else self.ranks.data_parallel(module, **options)

    def shard(self, *arrays: Any) -> Any:
        """This rank's part of a batch; without a gang the batch itself.

        Tensors, arrays, lists and whatever else has a length and can be sliced. All ranks must pass the same: draw the
        order of the data from a generator of its own, which is tracked, not from one that dropout draws from, too::

            x, y = trial.shard(x, y)

        Raises:
            ObjectiveError: they differ in length.
        """
        if self.ranks is not None:
            arrays = self.ranks.shard(arrays)
        return arrays if len(arrays) != 1 else arrays[0]

    def evaluate_with(self, function: Evaluate) -> None:
        """Say how the model is evaluated on one partition of the validation data (``data.validation`` of the study).

        Call it before the loop::

            trial.evaluate_with(lambda shard: {"val_loss": loss(model, shard)})

        The function is called at the end of each epoch, for each partition where it lies, with what
        :attr:`partition` would be. The study sees the means, weighted by the partitions' numbers of examples where
        they are known.

        Raises:
            ObjectiveError: called late.
        """
        if self._phase is not _Phase.BUILDING:
            raise ObjectiveError(f"trial.evaluate_with() was called {self._phase.value}; call it before the loop.")
        self._passes.evaluate = function

    def track(self, **objects: Any) -> None:
        """Save these with the trial; where it resumes, load their state now.

        Where the trial starts from another one's checkpoint, hyperparameters stay as they were built
        (``docs/how-to/population-based-training.md``); optimizers and schedules then wait for ``steps()``.

        Anything with ``state_dict``/``load_state_dict`` (models, optimizers, schedules, loaders), and
        ``random.Random``, ``numpy.random.Generator``, ``numpy.random.RandomState``, ``torch.Generator``.

        Raises:
            ObjectiveError: late, a name used twice, an object of another kind, or not what the checkpoint holds.
        """
        if self._phase is not _Phase.BUILDING:
            raise ObjectiveError(
                f"trial.track({', '.join(objects)}) was called {self._phase.value}; track everything before the loop."
            )
        for name, wrapped in objects.items():
            item = unwrapped(wrapped)
            if name in self._tracked:
                raise ObjectiveError(f"trial.track({name}=...): {name!r} is tracked already; use another name.")
            if not can_track(item):
                raise ObjectiveError(untrackable(name, item))
            if self._state is not None and self._inherited is None and name not in self._state["tracked"]:
                raise self._mismatch(f"has no {name!r}")
            self._tracked[name] = item
            if self._inherited is not None:
                self._inherited.restore_early(name, item)
            else:
                self._load(name, item)

    def steps(self) -> Iterator[int]:
        """Yield the 0-based index of each step still to do, up to ``target - 1``.

        Raises:
            ObjectiveError: called twice, or the checkpoint holds a state that was not tracked.
        """
        if self._phase is not _Phase.BUILDING:
            raise ObjectiveError("trial.steps() was called twice; one loop over it trains the whole job.")
        if self._request.setup.unit_is_whole and self._request.setup.style == "handle":
            self.warn(
                "trial.steps() yields one step, for the study does not say how many a training has: give "
                "max_resource of the search method, such as 27."
            )
        if self._inherited is not None and self._state is not None:
            self._inherited.restore(self._tracked)
            restore_all(self._state["random"])
        elif self._state is not None:
            missing = [name for name in self._state["tracked"] if name not in self._tracked]
            if missing:
                raise self._mismatch(f"holds {', '.join(map(repr, missing))}, not tracked now")
            for name, item in self._tracked.items():
                # once more: a schedule built after track(optimizer=...) has reset the learning rate
                self._load(name, item)
            restore_all(self._state["random"])
        if self.ranks is not None:
            self.ranks.begin()
        self._phase = _Phase.STEPPING
        caller = sys._getframe(1)
        if self._tracked and not caller.f_globals.get("__name__", "").startswith("hpo_core."):
            self._watch = LoopWatch(caller, self._tracked)
        return self._loop()

    def is_tracked(self, item: Any) -> bool:
        """True if this very object is tracked."""
        return any(unwrapped(item) is tracked for tracked in self._tracked.values())

    def report(self, *unnamed: Never, **metrics: Any) -> None:
        """Record metrics of the current step (after the loop: of the target). Calls within a step merge.

        In a gang the study sees the mean over the ranks, weighted by their parts of the batch (:meth:`shard`).

        Raises:
            ObjectiveError: a value is no real number.
        """
        if unnamed or not metrics:
            got = "no metric" if not unnamed else f"{shown(unnamed[0])} without a name"
            raise ObjectiveError(
                f"trial.report() got {got}; name at least one metric: trial.report(val_loss=0.3), or "
                "trial.report(**metrics) of a dictionary."
            )
        values = {name: reported_value(name, value) for name, value in metrics.items()}
        if self._phase is _Phase.BUILDING:
            self._metrics.update(values)
        else:
            resource = self.resource + 1 if self._phase is _Phase.STEPPING else self.target
            self._curve.add(resource, values)
            if self.ranks is not None:
                self.ranks.reports(resource)

    if not TYPE_CHECKING:  # a type checker knows what there is

        def __getattr__(self, name: str) -> Any:
            """Say what was meant, for one who comes from another library."""
            known = [one for one in dir(self) if not one.startswith("_")]
            cure = did_you_mean(name, known) or "it has params, steps(), report(), track(), folder and others."
            if name.startswith("suggest_") or name in ("should_prune", "set_user_attr", "set_constraint"):
                cure = (
                    'that belongs to an Optuna objective: give style="optuna" (style: optuna in a study file), or take '
                    'values from trial.params["x"].'
                )
            raise AttributeError(f"trial has no {name!r} here; {cure}")

        def __getitem__(self, name: object) -> Any:
            """Say where the parameters are."""
            raise ObjectiveError(f"trial[{name!r}]: a trial is no dictionary; take trial.params[{name!r}].")

    def alive(self) -> None:
        """Restart the ``training.stall_timeout`` clock; call it within a step that takes longer than that."""
        self._progress.step(self.resource)

    def iteration(self) -> None:
        """Count one iteration (a minibatch) that has ended; ten of them are the profile of a job.

        Call it at the end of each minibatch. Where jobs are packed by measured memory (``packing`` of the study), a
        job whose demand is unknown is then measured after ten iterations; without it, after its first unit. Costs
        less than a microsecond.
        """
        self._progress.iteration()

    def warn(self, *lines: str) -> None:
        """Say what makes a resume inexact: in the attempt's log, its report, and the terminal of the study."""
        for line in lines:
            print(f"hpo: {line}", file=sys.stderr)
        self.warnings += lines

    def finish(self, returned: object = None) -> tuple[Metrics, tuple[Point, ...], Checkpoint | None]:
        """Return metrics, learning curve and checkpoint; the system calls it after the training function.

        Args:
            returned: what the function returned, which is no metric.

        Raises:
            ObjectiveError: the loop was left early, or a metric of the study is missing at the target.
        """
        exit_if_forked_copy(self._pid)
        if self.save_error is not None:  # the training function caught it and went on
            raise self.save_error
        self._check_loop_ended()
        if self._phase is _Phase.BUILDING:
            self._passes.check(tracked=bool(self._tracked))
            self._curve.add(self.target, self._metrics)
        metrics = self._curve.at(self.target)
        if self._state is not None and self._request.job.checkpoint == self._saved and self._unit is None:
            metrics = self._state["metrics"] | metrics  # the job asked for what was reached before
        if self._unit is None:  # else the executor does, once the epoch has ended everywhere
            check_required(self._request.setup, metrics, self.target, returned)
        if self.ranks is not None:
            self.ranks.average_metrics(self._curve.kept(), self.target)
        if self._request.setup.not_finite(metrics) is not None:
            self.discard()
        return metrics, self._curve.downsampled(), self._saved

    def discard(self) -> None:
        """Remove the checkpoint that this attempt wrote: no later job will continue from it."""
        if self._saved is not None and self._saved != self._request.job.checkpoint:
            base = self._request.setup.checkpoint_base
            hops = hop_base(base)
            remove(
                self._request.setup.folder, self._saved.uri, hops if self._saved.uri.startswith(f"{hops}/") else base
            )
        self._saved = None
        if self._watch is not None:
            self._watch.close()

    def _check_loop_ended(self) -> None:
        if self._phase is _Phase.STEPPING:
            raise ObjectiveError(
                f"The training function left the loop over trial.steps() early, after {self.resource} of "
                f"{self.target} steps. Let the loop run to its end; stopping bad trials early is the study's task."
            )
        if self._phase is _Phase.BUILDING and self._tracked:
            raise ObjectiveError(
                f"The training function tracked {', '.join(self._tracked)} but never looped over trial.steps(), "
                "so nothing can be saved. Train in `for step in trial.steps():`, or track nothing."
            )

    def _loop(self) -> Iterator[int]:
        yield from self._steps_of_job()
        while self._goes_on():
            yield from self._steps_of_job()
        self._phase = _Phase.DONE

    def _goes_on(self) -> bool:
        # Report what the job came to, where the study may answer at once; whether the trial goes on to a new target.
        # A job without a finite value of each objective at its target ends, as does one that reports after its loop.
        request, metrics, written = self._request, self._curve.at(self.target), self._saved
        if self.ask is None or not self.may_go_on or request.setup.not_finite(metrics) is not None:
            return False
        try:
            check_required(request.setup, metrics, self.target)
        except ObjectiveError:
            return False
        curve, self._curve, self._saved, self._watch = self._curve.downsampled(), ReportedCurve(), None, None
        following = self.ask(metrics, curve, written)
        if following is None:
            return False
        self._request, self.target, self.warnings = following, following.job.target, ()
        return True

    def _steps_of_job(self) -> Iterator[int]:
        self._progress.begin_units()
        for index in range(self.resource, self.target):
            for _ in self._passes.of_epoch():
                yield index
            if (evaluated := self._passes.evaluation()) or self._request.validation:
                self._curve.add(index + 1, evaluated)
            self.resource = index + 1
            if self.ranks is not None:
                self.ranks.end_step()
            self._progress.step(self.resource)
            self._progress.end_unit()
        if self._passes.trains:
            self._save()
        else:
            self._curve.add(self.target, self._passes.evaluation())

    def _save(self) -> None:
        exit_if_forked_copy(self._pid)
        self._passes.check(tracked=bool(self._tracked))
        parent = self._request.job.checkpoint
        if parent is not None and parent.resource == self.target and self.parent is None:
            self._saved = parent
            return
        if self._watch is not None:
            self.warn(*self._watch.warnings())
        ranks: dict[str, Any] = {}
        if self.ranks is not None:
            self.ranks.average_metrics(self._curve.kept(), self.target)
            ranks = self.ranks.agree_on_state(self._tracked)
        metrics = self._curve.at(self.target)
        request = self._request
        if not self._tracked or request.setup.not_finite(metrics) is not None or self.rank:
            return
        tree = {
            "trial": self.number,
            "resource": self.target,
            "metrics": metrics,
            "random": capture_all(),
            "tracked": {name: state_of(item) for name, item in self._tracked.items()},
            "description": describe(self._tracked, request.job.params),
            **ranks,
        }
        try:
            with self._progress.storing(self.target):
                self._saved = checkpoints.write_chunks(
                    request.setup.folder,
                    request.checkpoint_path,
                    [memory_of(part) for part in checkpoints.parts_of(tree)],
                    resource=self.target,
                    parent=parent.uri if parent else None,
                    durable=self._unit is None or self._unit.durable,
                )
        except StorageError as error:
            self.save_error = error
            raise

    def _load(self, name: str, item: Any) -> None:
        if self._state is None:
            return
        try:
            put_state(item, self._state["tracked"][name])
        except Exception as error:
            raise ObjectiveError(
                f"State of {name!r} in the trial's checkpoint does not fit the object that was tracked "
                f"({type(error).__name__}: {error}). Build it from trial.params alone, as training did before; "
                "if the code has changed since, start a new study."
            ) from error

    def _mismatch(self, difference: str) -> ObjectiveError:
        names = ", ".join(map(repr, self._state["tracked"])) if self._state else ""
        uri = self._request.job.checkpoint.uri if self._request.job.checkpoint else ""
        return ObjectiveError(
            f"The trial's checkpoint {uri} {difference}; it was written with {names}. Track the same names in every "
            "attempt; if the code has changed since, start a new study."
        )
