"""The summary of a study: status, counts, best result, front, running jobs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from hpo_core.model.events import CONTROLLER_GONE
from hpo_core.model.partition_file import PartitionFile
from hpo_core.model.trial import Params
from hpo_core.spec import StudySpec
from hpo_core.spec.assembly import all_at_once, notices
from hpo_core.spec.data import DataSpec
from hpo_core.spec.packing import PackingSpec
from hpo_core.spec.sent_functions import short_name
from hpo_core.state import Incumbent, StudyState
from hpo_core.study import Study
from hpo_core.views.device_use import measured_ratio_lines, measured_ratios
from hpo_core.views.formatting import number, plural
from hpo_core.views.rungs import RungNames


class FrontMember(msgspec.Struct, frozen=True):
    """A result that no other one dominates."""

    trial: int
    resource: int
    values: dict[str, float]
    """Values by metric, in the order of the spec."""
    params: Params


def values_of(spec: StudySpec, member: Incumbent) -> dict[str, float]:
    """Objectives as the user's metrics (``mode: max`` flipped back), in the spec's order."""
    losses = member.losses or (member.loss,)
    return {metric.name: loss * metric.sign for metric, loss in zip(spec.objectives, losses, strict=True)}


def front_members(spec: StudySpec, state: StudyState) -> tuple[FrontMember, ...]:
    return tuple(
        FrontMember(
            trial=member.trial,
            resource=member.resource,
            values=values_of(spec, member),
            params=state.trials[member.trial].params,
        )
        for member in state.front
    )


def front_rows(front: Sequence[FrontMember], most: int | None = None) -> list[dict[str, Any]]:
    """The first ``most`` members as table rows of one shape; None where a trial does not use a parameter."""
    names = dict.fromkeys(name for member in front for name in member.params)
    rows = []
    for member in front[:most]:
        row: dict[str, Any] = {"trial": member.trial, "trained to": member.resource, **member.values}
        for name in names:
            row[name if name not in row else f"parameter {name}"] = member.params.get(name)
        rows.append(row)
    return rows


class BestResult(msgspec.Struct, frozen=True, omit_defaults=True):
    """The incumbent in the user's metric."""

    trial: int
    value: float
    resource: int
    params: Params


class JobSummary(msgspec.Struct, frozen=True, omit_defaults=True):
    """A job under way."""

    trial: int
    bracket: int
    rung: int
    """Place in its ladder."""
    target: int
    attempt: int
    device: str | None = None
    """Device that the job shares with others; None: there is none, or it waits for one."""
    memory: int | None = None
    """Bytes of the device that the job was given."""
    ranks: int = 1
    """Processes that train it, each on a slot of its own."""


class StudySummary(msgspec.Struct, frozen=True, kw_only=True):
    """A study as of its latest entry."""

    study: str
    method: str
    sampler: str
    seed: int
    metric: str
    mode: str
    status: str
    """``finished``, ``halted`` or ``open``."""
    reason: str
    """Why it halted, or that the sampler has no further configurations; else empty."""
    rule: str
    """The stop rule that halted it, if one did."""
    trials: int
    jobs: int
    """Completed ones."""
    running: tuple[JobSummary, ...]
    waiting: tuple[int, ...]
    """Trials whose job failed and is wanted again."""
    abandoned: int
    failed_attempts: int
    resource: int
    """Units of training behind all results."""
    constraints: tuple[str, ...]
    infeasible: int
    """Finite results that violate a constraint; none of them can be the best."""
    best_of: str
    """``all_rungs`` or ``highest_rung``: whose results ``best`` and ``front`` are of."""
    best: BestResult | None
    best_of_highest_rung: BestResult | None
    front: tuple[FrontMember, ...]
    """The Pareto front; with one objective the best result alone."""
    extendable: bool
    """True if it can be asked for more configurations; a rerun cannot."""
    checkpoint: str | None
    """Place of the best result's checkpoint, relative to the study's folder, or a URL."""

    def plain(self, *names: str) -> dict[str, Any]:
        """Some of its fields as JSON values, in this order."""
        found: dict[str, Any] = msgspec.to_builtins({name: getattr(self, name) for name in names})
        return found


def failed_attempts(state: StudyState) -> int:
    """Attempts that were lost or failed, without those that ended with their controller: a pause is no failure."""
    failures = (failure for trial in state.trials for failure in trial.failures)
    return sum(failure.message != CONTROLLER_GONE for failure in failures)


def summarize(study: Study) -> StudySummary:
    """The summary of a study; O(front + running jobs)."""
    spec, state, names = study.spec, study.state, RungNames(study.spec)
    halted, checkpoint = None if study.finished else state.halted, state.best_checkpoint()
    return StudySummary(
        study=study.name,
        method=spec.search.method,
        sampler=spec.sampler.name,
        seed=spec.seed,
        metric=spec.metric.name,
        mode=spec.metric.mode,
        status=study.status,
        reason=exhausted_words(study) if halted is None else halted.reason,
        rule="" if halted is None else halted.rule,
        trials=len(state.trials),
        jobs=state.completed_jobs,
        running=tuple(
            JobSummary(
                trial=grant.trial,
                bracket=grant.bracket,
                rung=names.place(grant.bracket, grant.rung)[1],
                target=grant.target,
                attempt=grant.attempt,
                device=None if placed is None else placed.device,
                memory=None if placed is None else placed.share[1],
                ranks=grant.demand.slots,
            )
            for grant in state.running.values()
            for placed in [state.placed.get(grant.trial)]
        ),
        waiting=tuple(state.waiting),
        abandoned=state.abandoned_trials,
        failed_attempts=failed_attempts(state),
        resource=state.resource_used,
        constraints=tuple(spec.constraints),
        infeasible=state.infeasible_results,
        best_of=spec.best_of,
        best=best_result(study, study.best),
        best_of_highest_rung=best_result(study, study.best_of_highest_rung),
        front=front_members(spec, state),
        extendable=study.refuse_extension() is None,
        checkpoint=None if checkpoint is None else checkpoint.uri,
    )


def exhausted_words(study: Study) -> str:
    """Words that the sampler has no further configurations; empty while it may have some."""
    if not study.state.exhausted:
        return ""
    return f"{study.spec.sampler.name} has no further configurations: all {len(study.state.trials):,} were tried"


def notices_of(study: Study) -> list[str]:
    """Notices about the study before its start, as far as they still hold."""
    reached = max((trial.resource for trial in study.state.trials), default=0)
    return notices(study.spec, study.state.extra_configs, reached)


def constraint_words(spec: StudySpec, infeasible: int) -> str:
    """``size, time at most 0; 12 results violate them``; empty where there are no constraints."""
    if not spec.constraints:
        return ""
    one = len(spec.constraints) == 1
    count = "1 result violates" if infeasible == 1 else f"{infeasible:,} results violate"
    return f"{', '.join(spec.constraints)} at most 0; {count} {'it' if one else 'them'}"


def rule_words(study: Study) -> str:
    """Rungs that the best result is the best of, to stand behind it; empty where both rules of ``best_of`` agree."""
    if study.spec.best_of == "highest_rung":
        return ", best of the highest rung"
    return ", best of all rungs" if other_best_words(study) else ""


def other_best_words(study: Study) -> str:
    """The best by the other rule of ``best_of``, where it is another result; else empty.

    ``best of the highest rung: loss = 0.21 (trial 7 at 81)``
    """
    whole, top = study.best_of_all_rungs, study.best_of_highest_rung
    if whole is None or top is None or (whole.trial, whole.resource) == (top.trial, top.resource):
        return ""
    highest = study.spec.best_of == "highest_rung"
    title, other = ("all rungs", whole) if highest else ("the highest rung", top)
    value = number(study.metric_value(other.loss), 5)
    return f"best of {title}: {study.spec.metric.name} = {value} (trial {other.trial} at {other.resource:,})"


def best_result(study: Study, best: Incumbent | None) -> BestResult | None:
    """An incumbent in the user's metric; None before there is a finite result."""
    if best is None:
        return None
    value = study.metric_value(best.loss)
    params = study.state.trials[best.trial].params
    return BestResult(best.trial, value, best.resource, params)


def packing_words(packing: PackingSpec | None) -> str:
    """The policy, and whatever is not as usual; empty where each job takes a slot.

    >>> packing_words(None), packing_words(PackingSpec())
    ('', 'fill')
    >>> packing_words(PackingSpec(memory={"CPU": "2GB"}, demand={"memory": "6GB"}, most=4))
    'fill, demand memory 6GB, memory CPU 2GB, most 4'
    """
    if packing is None:
        return ""
    others = packing.model_dump(mode="json", exclude_defaults=True, exclude={"policy"})
    return ", ".join([packing.policy, *(f"{name.replace('_', ' ')} {_said(item)}" for name, item in others.items())])


def _said(item: Any) -> str:
    if isinstance(item, dict):
        return ", ".join(f"{name} {_said(value)}" for name, value in item.items())
    return ", ".join(map(str, item)) if isinstance(item, list) else short_name(str(item))


def data_words(spec: StudySpec) -> str:
    """Number of partitions and examples, and where they are; empty where models do not hop."""
    data = spec.data
    return "" if data is None else words_of_data(data, all_at_once=all_at_once(spec))


def words_of_data(data: DataSpec, *, all_at_once: bool = False) -> str:
    """Words about the data; ``all_at_once``: whether the search trains all models at once.

    >>> words_of_data(DataSpec(partitions=[{"name": "a", "count": 9000}, {"name": "b", "count": 9001}], folder="/srv"))
    '2 partitions (18,001 examples) in /srv, scheduler remaining, two models for each worker at once'
    >>> words_of_data(DataSpec(partitions="part-*.npz", validation=["v"], load="lab:read", concurrent=2))
    'partitions part-*.npz, validation on 1 partition, loaded by lab:read, scheduler remaining, 2 models at once'
    """
    where = f" in {data.folder}" if data.folder else ""
    models = "all models" if all_at_once else "two models for each worker"
    found = [
        f"{_files(data.partitions)}{where}",
        "" if data.validation is None else f"validation on {_files(data.validation)}",
        f"loaded by {data.load}" if data.load else "",
        f"scheduler {data.scheduler}",
        f"{models if data.concurrent is None else plural(data.concurrent, 'model')} at once",
    ]
    return ", ".join(filter(None, found))


def _files(files: str | Sequence[PartitionFile]) -> str:
    if isinstance(files, str):
        return f"partitions {files}"
    counts = [file.count for file in files if file.count is not None]
    examples = f" ({sum(counts):,} examples)" if len(counts) == len(files) else ""
    return f"{plural(len(files), 'partition')}{examples}"


def placement_lines(study: Study) -> list[str]:
    """Lines about the placement of jobs, one for each section that says so; none where each takes a slot."""
    spec = study.spec
    titled = {
        "packing": packing_words(spec.packing),
        "gangs": study.parts.sizes.words(),
        "share": spec.share_words,
        "data:": data_words(spec),
    }
    lines = [f"{title} {words}" for title, words in titled.items() if words]
    return [*lines, *measured_ratio_lines(measured_ratios(study))]
