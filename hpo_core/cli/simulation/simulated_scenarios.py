"""What was typed after ``hpo simulate``, and the scenarios that it stands for."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from hpo_core.execution.virtual import Faults, make_workers
from hpo_core.home import Home
from hpo_core.model.errors import SpecError
from hpo_core.model.short_text import shown
from hpo_core.partitioning import with_partitions
from hpo_core.simulation.device_list import SharedDevicesQuestion
from hpo_core.simulation.partitioned_data import PartitionedData, made_up_partitions
from hpo_core.simulation.past import PastStudy
from hpo_core.simulation.repeats import Scenario
from hpo_core.simulation.simulated_needs import KnownJobs
from hpo_core.spec import StudySpec, load_spec
from hpo_core.spec.overrides import changed, settings_of, split_change

MOST_SCENARIOS = 24
REPEATS, REPEATS_OF_POLICIES = 25, 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What was typed."""

    study_file: Path | None = None
    from_journal: str | None = None
    workers: Sequence[int] = ()
    repeat: int = REPEATS
    changes: Sequence[str] = ()
    """``KEY=VALUE``; the same key more than once means alternatives."""
    stragglers: float = 0.0
    drops: float = 0.0
    drop: str = "retry"
    speeds: Sequence[float] = (1.0,)
    joins: Sequence[tuple[int, float]] = ()
    leaves: Sequence[tuple[int, float]] = ()
    seconds_per_unit: float | None = None
    overhead: float = 0.0
    cost_spread: float = 0.0
    target: float | None = None
    shared: SharedDevicesQuestion | None = None
    """Devices that jobs share, in place of workers."""
    partitions: int | None = None
    """So many equal partitions of the data, in place of the study's; None: the study's, if it has any."""
    copies: int = 1
    """Workers that hold each partition."""


def make_scenarios(question: Question, past: PastStudy | None, home: Home) -> list[Scenario]:
    """Every combination of the numbers of workers (or of the policies) and of the alternatives among the changes.

    Raises:
        SpecError: a change is wrong, the number of workers is not known, or there are too many combinations.
    """
    alternatives: dict[tuple[str, ...], list[str]] = {}
    for change in question.changes:
        alternatives.setdefault(split_change(change)[0], []).append(change)
    several = math.prod(len(changes) for changes in alternatives.values())
    if several > MOST_SCENARIOS**2:  # some may fall together below
        raise SpecError(f"That makes {shown(several)} combinations; ask for at most {MOST_SCENARIOS} at once.")
    combinations = list(itertools.product(*alternatives.values()))
    if len(alternatives.get(("search", "method"), ())) > 1:
        combinations = list(dict.fromkeys(map(_fitting, combinations)))
    specs = [(changes, _spec(question, past, changes)) for changes in combinations]
    if len(specs) * max(1, len(question.workers)) > MOST_SCENARIOS:
        raise SpecError(
            f"That makes {len(specs) * len(question.workers)} combinations; ask for at most {MOST_SCENARIOS} at once."
        )
    if question.copies < 1:
        raise SpecError(f"--copies {question.copies} must be at least 1: each partition lies on some worker.")
    faults = Faults(stragglers=question.stragglers, drops=question.drops, drop=question.drop)
    varied = [changes for changes in alternatives.values() if len(changes) > 1]
    if question.shared is not None:
        return _shared_scenarios(question, question.shared, specs, varied=varied, faults=faults, past=past, home=home)
    found = []
    sizes: Sequence[int | None] = question.workers or [None]
    for count in sizes:
        for changes, spec in specs:
            size = count if count is not None else _own_workers(spec)
            words = [_short(change) for change in changes if any(change in several for several in varied)]
            if not words or len(question.workers) > 1:
                words.insert(0, f"{size:,} worker{'s' if size > 1 else ''}")
            workers = make_workers(size, speeds=question.speeds, joins=question.joins, leaves=question.leaves)
            placed = None if spec.data is None else PartitionedData(question.copies)
            found.append(Scenario(", ".join(words), spec, workers, faults, tuple(changes), placed=placed))
    return found


def _shared_scenarios(
    question: Question,
    shared: SharedDevicesQuestion,
    specs: Sequence[tuple[tuple[str, ...], StudySpec]],
    *,
    varied: Sequence[Sequence[str]],
    faults: Faults,
    past: PastStudy | None,
    home: Home,
) -> list[Scenario]:
    """Each of the specs with each policy, on the devices that its jobs share."""
    if question.workers or question.joins or question.leaves or tuple(question.speeds) != (1.0,):
        raise SpecError("--devices lists what jobs run on; drop --workers, --speeds, --join and --leave beside it.")
    if question.partitions is not None or question.copies != 1:
        raise SpecError("--devices and --partitions exclude each other: a model that hops shares no device; drop one.")
    shared.check()
    found = []
    for changes, spec in specs:
        known = _known_jobs(shared, spec, question, home)
        are_known = bool(known.unit_seconds) or (spec.packing is not None and spec.packing.demand.unit_seconds)
        measured = past is None and question.seconds_per_unit is None and not question.overhead and bool(are_known)
        for cluster in shared.clusters(spec, known, measured_durations=measured):
            words = [_short(change) for change in changes if any(change in several for several in varied)]
            name = ", ".join([cluster.policy, *words])
            workers = make_workers(len(cluster.devices))
            found.append(Scenario(name, spec, workers, faults, tuple(changes), cluster))
    if len(found) > MOST_SCENARIOS:
        raise SpecError(
            f"That makes {len(found)} combinations; ask for at most {MOST_SCENARIOS} at once, as with --policy fill."
        )
    return found


def _known_jobs(shared: SharedDevicesQuestion, spec: StudySpec, question: Question, home: Home) -> KnownJobs:
    journal = home.read_journal()
    try:
        return shared.known_jobs(spec, journal, question.from_journal)
    finally:
        journal.close()


def _fitting(changes: tuple[str, ...]) -> tuple[str, ...]:
    """Without the settings that the method among the changes does not know: others of the comparison do."""
    split = [split_change(change) for change in changes]
    known = settings_of(next(value for keys, value in split if keys == ("search", "method")))
    return tuple(
        change
        for change, (keys, _) in zip(changes, split, strict=True)
        if not known or keys[0] != "search" or keys[1:2] == () or keys[1] in known
    )


def _spec(question: Question, past: PastStudy | None, changes: Sequence[str]) -> StudySpec:
    changes = [*changes, *(made_up_partitions(question.partitions) if question.partitions is not None else ())]
    if question.study_file is not None:
        return with_partitions(load_spec(question.study_file, changes))
    if past is None:
        raise SpecError("Give a study's YAML file, or --from-journal NAME, or both.")
    if not changes:
        return past.spec
    where = f"study {past.spec.study!r} with {', '.join(changes)}"
    plain = past.spec.plain() | {"warm_start": None}  # filled in, it may be large; simulations leave it out
    return StudySpec.from_plain(changed(plain, changes), where)


def _own_workers(spec: StudySpec) -> int:
    if spec.cluster.size is not None:
        return spec.cluster.size
    raise SpecError(
        f"Study {spec.study!r} does not say how many workers it has (cluster.kind = {spec.cluster.kind!r}), and a "
        "simulation looks at no cluster; say how many to play, for example --workers 4."
    )


def _short(change: str) -> str:
    key, _, value = change.partition("=")
    return value if key == "search.method" else f"{key.rpartition('.')[2]} {value}"
