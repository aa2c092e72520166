"""Proves that a training function resumes to the bit, or names what differs.

It trains to the last step at once, twice, and once more with resumes on the way: each in fresh child processes,
through checkpoint files, with the code that a study uses. Two processes import the module, so what its import draws
counts too. With ``process: kept`` it trains again in one process that stays: with resumes, then at once.

State that changes late (a patience that runs out, a schedule with a warm-up) is lost unseen in a short training. So
where nobody says how far to train, 27 steps follow the first three if they take less than a minute.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from hpo_core.checkpoints import files
from hpo_core.checkpoints.tree_codec import tree_digest
from hpo_core.model.errors import ObjectiveError
from hpo_core.model.short_text import some
from hpo_core.model.trial import Metrics, Outcome, Report, Rung
from hpo_core.training.child.trainer import Trainer
from hpo_core.training.request import JobRequest


class Difference(msgspec.Struct, frozen=True):
    """One tracked object, random generator or metric that differs."""

    name: str
    what: str
    """Parts that differ, or how."""


def different_parts(one: Any, other: Any, path: str = "") -> Iterator[str]:
    """The parts that differ, with their values where these are numbers; an empty text stands for the whole."""
    if isinstance(one, Mapping) and isinstance(other, Mapping) and one.keys() == other.keys():
        for key in one:
            yield from different_parts(one[key], other[key], f"{path}.{key}".lstrip("."))
    elif tree_digest(one) != tree_digest(other):
        numbers = isinstance(one, int | float) and isinstance(other, int | float)
        yield ": ".join(filter(None, (path, f"{one!r} and {other!r}" if numbers else "")))


def differences(one: Mapping[str, Any], other: Mapping[str, Any]) -> tuple[Difference, ...]:
    """The differences between two states, one for each name."""
    found = []
    for name in dict.fromkeys([*one, *other]):
        if name not in one or name not in other:
            found.append(Difference(name, "only in one of both checkpoints"))
        elif parts := list(different_parts(one[name], other[name])):
            found.append(Difference(name, some(filter(None, parts)) or "other values"))
    return tuple(found)


def different_metrics(
    one: Mapping[int, Mapping[str, float]], other: Mapping[int, Mapping[str, float]]
) -> dict[str, tuple[int, float | None, float | None]]:
    found: dict[str, tuple[int, float | None, float | None]] = {}
    for step in sorted({*one, *other}):
        here, there = one.get(step, {}), other.get(step, {})
        for name in dict.fromkeys([*here, *there]):
            a, b = here.get(name), there.get(name)
            if name not in found and (a is None or b is None or struct.pack(">d", a) != struct.pack(">d", b)):
                found[name] = step, a, b
    return found


SHORT, LONG = 3, 27
"""Steps that are trained first, and then where these are fast."""
RESUMES = (1, 3, 9)
"""Steps after which a training is resumed, as in successive halving."""
SECONDS = 60.0
"""Seconds that all trainings of a longer check may be expected to take."""
GENERATORS = "random generators"
"""The name of the global generators among the differences."""


class ResumeCheck(msgspec.Struct, frozen=True, kw_only=True):
    """Result of a check."""

    tracked: tuple[str, ...]
    """Names of tracked objects."""
    repeated: tuple[Difference, ...]
    """Differences between two trainings from scratch: the function is not deterministic."""
    resumed: tuple[Difference, ...]
    """Differences between a training at once and one with resumes."""
    kept: tuple[Difference, ...] = ()
    """Differences between a fresh process and one that stayed, where that was asked for."""
    by_target: bool = False
    """True if it differs by the job's target: before anything was resumed, or in a number that is the target."""
    warnings: tuple[str, ...] = ()
    """Modules, optimizers and generators that the training loop changes and that are not tracked."""
    steps: int = 3
    """Step to which it was trained."""
    at: tuple[int, ...] = (1,)
    """Steps after which it was resumed."""
    step_seconds: float = 0.0
    no_longer: str = ""
    """Reason for which it was not trained further, where it would have been."""

    @property
    def same_bits(self) -> bool:
        return not self.repeated and not self.resumed and not self.kept

    @property
    def exact(self) -> bool:
        """True if the bits are the same, objects are tracked, and no module or generator beside them changed."""
        return self.same_bits and bool(self.tracked) and not self.warnings

    @property
    def causes(self) -> tuple[str, ...]:
        """Likely reasons, with their cures; the most likely first."""
        if self.repeated:
            return (*self.warnings, *_causes_of_chance(self.repeated, self.tracked))
        if not self.resumed:
            return _CAUSES_OF_KEPT if self.kept else ()
        if self.by_target:
            return (
                "The training depends on the job's target: a number in it, or its first steps, differ before anything "
                "is resumed. Let schedules span a full training (a constant, such as max_resource), not trial.target.",
                *self.warnings,
            )
        return self.warnings or _causes_of_resume({difference.name for difference in self.resumed}, self.tracked)


class _Training(msgspec.Struct):
    """One training from scratch to the last step, in one job or two."""

    curve: dict[int, Metrics]
    tracked: dict[str, Any]
    random: dict[str, Any]
    warnings: list[str]
    seconds: float = 0.0


def check_resume(
    request: JobRequest,
    folder: Path,
    *,
    steps: int | None = None,
    at: int | None = None,
    longest: int = LONG,
    say: Callable[[str], None] = lambda _: None,
) -> ResumeCheck:
    """Train to ``steps`` at once, twice, and with resumes; compare all that was tracked and reported.

    Args:
        request: a first job of the trial; its target and folder are replaced. Its ``process`` says whether it is
            trained in a process that stays, too.
        folder: an empty folder for checkpoints and logs.
        steps: how far; None: 3, then 27 where that is expected to take less than a minute.
        at: the only place of a resume; None: 1, 3 and 9, as far as these lie before the last step.
        longest: of a training in the study; no more is trained than that, and than 3.
        say: told what is trained.

    Raises:
        SpecError: there is no such training function, or it cannot be called with the trial alone.
        ObjectiveError: it cannot be imported, or a training failed or diverged.
    """
    setup = request.setup
    number = 3 if setup.process == "kept" else 2
    say(f"starts {number} processes, which import it")
    trainers = [Trainer(setup.objective, setup.pythonpath, threads=setup.threads) for _ in range(number)]
    try:
        for trainer in trainers:
            trainer.prepare()
        first = SHORT if steps is None else steps
        found = _check(trainers, request, folder / str(first), first, at, say)
        if steps is not None or not found.same_bits or not found.tracked:
            return found
        length = min(LONG, longest)
        if length <= first:
            return found
        why = f"a step takes {found.step_seconds:.1f} s; --steps {length} looks further"
        if 3 * length * found.step_seconds <= SECONDS:
            try:
                return _check(trainers, request, folder / str(length), length, at, say)
            except ObjectiveError as error:  # the function may have a limit of its own
                why = str(error).partition("\n")[0]
        return msgspec.structs.replace(found, no_longer=why)
    finally:
        for trainer in trainers:
            trainer.close()


def _check(
    trainers: Sequence[Trainer],
    request: JobRequest,
    folder: Path,
    last: int,
    at: int | None,
    say: Callable[[str], None],
) -> ResumeCheck:
    places = tuple(place for place in RESUMES if place < last) if at is None else (at,)
    fresh = request.with_setup(process="fresh")
    say(f"trains from 0 to {last}")
    once = _train(trainers[:1], fresh, folder / "once", (last,))
    say(f"took {once.seconds:.3g} s; trains again from 0 to {last}")
    again = _train(trainers[1:2], fresh, folder / "again", (last,))
    repeated, step_seconds = _between(once, again), once.seconds / last
    if not once.tracked:  # then nothing can be resumed: jobs with other targets are other trainings
        return ResumeCheck(
            tracked=(),
            repeated=repeated,
            resumed=(),
            kept=_kept(trainers[2:], request, folder, (last, last), once),
            warnings=tuple(dict.fromkeys(once.warnings)),
            steps=last,
            at=places,
            step_seconds=step_seconds,
        )
    say(f"trains with resumes, {' to '.join(map(str, (0, *places, last)))}")
    resumed = _train(trainers[:2], fresh, folder / "resumed", (*places, last))
    early = {step: metrics for step, metrics in once.curve.items() if step <= places[0]}
    by_resume = _between(once, resumed)
    targets = tuple(f": {last} and {place}" for place in places)
    return ResumeCheck(
        tracked=tuple(once.tracked),
        repeated=repeated,
        resumed=by_resume,
        kept=_kept(trainers[2:], request, folder, (*places, last, last), once),
        by_target=bool(different_metrics(early, {step: resumed.curve.get(step, {}) for step in early}))
        or any(target in difference.what for difference in by_resume for target in targets),
        warnings=tuple(dict.fromkeys([*once.warnings, *resumed.warnings])),
        steps=last,
        at=places,
        step_seconds=step_seconds,
    )


def _train(trainers: Sequence[Trainer], request: JobRequest, folder: Path, targets: Sequence[int]) -> _Training:
    for part in ("checkpoints", "logs"):
        (folder / part).mkdir(parents=True)
    checkpoint = None
    found = _Training({}, {}, {}, [])
    report: Report | None = None
    for place, target in enumerate(targets):
        if checkpoint is not None and target <= checkpoint.resource:
            checkpoint = None  # a training from scratch follows
        job = msgspec.structs.replace(
            request.job, attempt=place, stage=Rung(0, place), target=target, checkpoint=checkpoint
        )
        asked = msgspec.structs.replace(request, job=job).with_setup(folder=str(folder), checkpoint_base="checkpoints")
        report = trainers[place % len(trainers)].run(asked)
        start = checkpoint.resource if checkpoint is not None else 0
        if report.outcome is not Outcome.COMPLETED:
            raise ObjectiveError(
                f"Training from {start} to {target} ended ({report.outcome}): {report.message}\n{report.detail}"
            )
        checkpoint = report.checkpoint
        found.curve |= {point.resource: point.metrics for point in report.curve} | {target: report.metrics}
        found.warnings += report.warnings or ()
        found.seconds += report.ended - report.started
    if checkpoint is not None:
        tree = files.load(folder, checkpoint, "checkpoints")
        found.tracked, found.random = tree["tracked"], tree["random"]
    return found


def _kept(
    trainers: Sequence[Trainer], request: JobRequest, folder: Path, targets: Sequence[int], once: _Training
) -> tuple[Difference, ...]:
    # The differences between a fresh process and one that trained before; no trainer: nobody asked.
    if not trainers:
        return ()
    found = _between(once, _train(trainers, request, folder / "kept", targets))
    if trainers[0].waiting is None:
        why = "it ended after an attempt, which left a process or memory of a GPU behind, or grew by 256 MB"
        return (*found, Difference("process", why))
    return found


def _between(one: _Training, other: _Training) -> tuple[Difference, ...]:
    found = list(differences(one.tracked, other.tracked))
    if generators := differences(one.random, other.random):
        found.append(Difference(GENERATORS, ", ".join(difference.name for difference in generators)))
    for name, (step, a, b) in different_metrics(one.curve, other.curve).items():
        values = " and ".join("nothing" if value is None else repr(value) for value in (a, b))
        found.append(Difference(f"metric {name}", f"from step {step} on: {values}"))
    return tuple(found)


_CAUSES_OF_KEPT = (
    "The function changes something that stays in its process: a global variable, an attribute of a class, a cache, a "
    "setting of a library. Keep it inside the function, or use training.process: fresh.",
)


def _causes_of_chance(found: Sequence[Difference], tracked: Sequence[str]) -> tuple[str, ...]:
    if all(difference.name.startswith("metric ") for difference in found) and tracked:
        return ("Only what is reported differs: a metric measures time, or draws from a generator without a seed.",)
    return (
        "A random generator without a seed: np.random.default_rng(trial.seed), random.Random(trial.seed), or the "
        "global ones, which are seeded when training begins, but not when the module is imported.",
        "On a GPU: torch.use_deterministic_algorithms(True), and CUBLAS_WORKSPACE_CONFIG=:4096:8 in the environment.",
        "The clock, the order of files in a folder, threads that add numbers in any order.",
    )


def _causes_of_resume(names: set[str], tracked: Sequence[str]) -> tuple[str, ...]:
    if all(name.startswith("metric ") for name in names):
        return (
            "All tracked objects are the same: what is reported depends on something that is not tracked, such as the "
            "best value so far. Keep it in hpo_core.State.",
        )
    if GENERATORS in names:
        return (
            "A resumed job draws other random numbers in its loop: something is built in the first step of each job "
            "(an iterator over a loader, a lazy module), or depends on how many steps the job has.",
        )
    return (
        f"Something that the loop changes is not among what is tracked ({', '.join(tracked)}): an optimizer, a "
        "schedule, a gradient scaler, an average of weights, a random generator of a loader or an environment. Track "
        "it; a number, text or list goes into hpo_core.State.",
        "An iterator that lives across steps (itertools.cycle, iter(loader)), or workers that a loader keeps "
        "(persistent_workers): begin them anew in each step.",
        "A tracked object whose state_dict() leaves out a part of its state, or that is changed between trial.track() "
        "and the loop.",
    )
