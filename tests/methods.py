"""Every search method in its variants, small: what contracts, laws, faults and golden journals go through."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from fractions import Fraction
from typing import Any

from hpo_core.model.events import (
    Entry,
    Event,
    JobCompleted,
    JobGranted,
    Reproduced,
    StudyExtended,
    TrialAbandoned,
    TrialCreated,
    TrialStopped,
)
from hpo_core.search.pbt import PbtSearch
from hpo_core.search.sha import sizes_of
from hpo_core.spec import StudySpec
from tests.conftest import make_spec

_LADDER: dict[str, Any] = {"configs": 24, "min_resource": 1, "max_resource": 27, "reduction_factor": 3}

SEARCHES: dict[str, dict[str, Any]] = {
    "asha": {"method": "asha", **_LADDER},
    "asha-production": {"method": "asha", "configs": 40, "max_resource": 64, "brackets": "standard"},
    "asha-brackets": {"method": "asha", **_LADDER, "brackets": [0, 1, 2]},
    "asha-shared": {
        "method": "asha", **_LADDER, "brackets": "all", "assignment": "proportional", "rung_system": "shared",
    },
    "asha-loop": {"method": "asha", **_LADDER, "configs": 50, "brackets": "all", "assignment": "loop"},
    "asha-endless": {"method": "asha", "configs": 30, "min_resource": 2, "reduction_factor": 3},
    "stopping": {"method": "asha", "variant": "stopping", **_LADDER},
    "stopping-brackets": {"method": "asha", "variant": "stopping", **_LADDER, "brackets": [0, 1, 2]},
    "stopping-shared": {
        "method": "asha", "variant": "stopping", **_LADDER, "brackets": [0, 1], "rung_system": "shared",
    },
    "sha": {"method": "sha", **_LADDER, "configs": 12, "max_resource": 9, "rounds": 2},
    "hyperband": {"method": "hyperband", "min_resource": 1, "max_resource": 9, "reduction_factor": 3},
    "pasha": {"method": "pasha", **_LADDER},
    "pbt": {"method": "pbt", "population": 6, "generations": 4, "steps_per_generation": 2},
    "pbt-barrier": {"method": "pbt", "population": 5, "generations": 4, "reproduction": "barrier"},
    "pbt-truncation": {
        "method": "pbt", "population": 10, "generations": 4, "selection": "truncation",
    },
    "pbt-generation": {"method": "pbt", "population": 6, "generations": 5, "reproduction": "generation"},
    "random": {"method": "random", "configs": 12, "max_resource": 5},
    "grid": {"method": "grid", "points": {"x": 4, "d": 3}, "max_resource": 3},
}  # fmt: skip


def spec_of(name: str, **changes: Any) -> StudySpec:
    """A spec with the named search, or ``pareto-...`` for the same with two objectives."""
    search = name.removeprefix("pareto-")
    if search != name:
        changes = {"metrics": [{"name": "loss"}, {"name": "gain", "mode": "max"}]} | changes
    return make_spec(search=SEARCHES[search], **changes)


SEVERAL_OBJECTIVES = [f"pareto-{name}" for name in ("asha-brackets", "stopping", "sha", "random", "pbt")]
ALL = [*SEARCHES, *SEVERAL_OBJECTIVES]


def judge(spec: StudySpec, entries: Iterable[Entry]) -> None:
    """Hold every decision of a journal against the papers' rules; for one objective."""
    if spec.search.method == "pbt":
        judge_evolution(spec, entries)
    else:
        judge_halving(spec, entries)


def judge_evolution(spec: StudySpec, entries: Iterable[Entry]) -> None:
    """Every reproduction of PBT: who may initiate, against whom, who is the parent, and the child's parameters.

    By the paper's text, over all trials each time (Li et al. 2019, Algorithm 1, 3.5.2 and 3.8; ``eager`` is our own):
    "if LASTCOMPLETEGENERATION(trials) == 0 then SAMPLETRIAL() else GETOLDESTUNINITIATED(trials)"; "only starting a
    reproduction when the initiator's generation has reached the specified population size".
    """
    search = spec.search
    assert isinstance(search, PbtSearch)
    space = spec.search_space()
    params: dict[int, Any] = {}
    generation: dict[int, int] = {}
    member: dict[int, int] = {}
    resource: dict[int, int] = {}
    loss: dict[int, float] = {}
    initiated: set[int] = set()
    born: Reproduced | None = None
    sampled: int | None = None
    population, total = search.population, search.population * search.generations
    by_paper = search.reproduction == "generation"

    def complete() -> list[int]:
        return [g for g, ended in Counter(generation[trial] for trial in loss).items() if ended >= population]

    for entry in entries:
        for event in entry.events:
            if isinstance(event, TrialCreated):
                assert not space.complaints(event.params)
                params[event.trial] = event.params
                generation[event.trial], member[event.trial] = 0, event.trial
                sampled = event.trial
            elif isinstance(event, JobCompleted):
                resource[event.trial] = event.resource
                loss[event.trial] = float("inf") if event.loss is None else event.loss
            elif isinstance(event, TrialAbandoned):  # perhaps after its result: then nobody's parent any more
                loss[event.trial] = float("inf")
            elif isinstance(event, TrialStopped):
                loss.setdefault(event.trial, float("inf"))
            elif isinstance(event, StudyExtended):
                total += event.configs
            elif isinstance(event, Reproduced):
                sampled = None
                own = generation[event.initiator]
                assert event.initiator in loss, "initiated before it ended"
                assert event.initiator not in initiated, "initiated twice"
                made = Counter(g for child, g in generation.items() if child != event.child)
                room = {g for g in range(max(made) + 1) if made[g + 1] < min(population, total - (g + 1) * population)}
                if by_paper:
                    assert complete(), "a reproduction although no generation is complete"
                    room = {g for g, size in made.items() if size >= population}
                    assert own in room, "the initiator's generation has not reached the population size"
                free = [trial for trial in loss if trial not in initiated and generation[trial] in room]
                assert event.initiator == min(free), "not the oldest that has not initiated"
                initiated.add(event.initiator)
                generation[event.child], member[event.child] = event.generation, event.member
                assert (event.generation, event.member) == (own + 1, member[event.initiator])
                if search.reproduction == "barrier":
                    assert sum(generation[t] == own and t in loss for t in generation) == search.population
                if event.opponent is not None and search.selection == "tournament":
                    assert own - 1 <= generation[event.opponent] <= own
                    assert loss[event.opponent] < float("inf") and event.opponent != event.initiator
                    fitter = min((loss[event.initiator], 0, event.initiator), (loss[event.opponent], 1, event.opponent))
                    assert event.parent == fitter[2], "the less fit one is the parent"
                if event.parent is not None:
                    assert event.parent in loss and loss[event.parent] < float("inf")
                    for name in search.static:
                        if name in params[event.parent] and name in params[event.child]:
                            assert params[event.child][name] == params[event.parent][name]
                born = event
            elif isinstance(event, JobGranted) and not event.retry:
                if born is not None and event.trial == born.child:
                    behind = 0 if born.parent is None else resource[born.parent]
                    assert event.target == behind + search.steps_per_generation
                else:
                    assert event.target == search.steps_per_generation
                if event.trial == sampled:
                    assert not (by_paper and complete()), "sampled although a generation is complete"
                    sampled = None
    assert len(generation) <= total
    assert by_paper or all(count <= population for count in Counter(generation.values()).values())


def judge_halving(spec: StudySpec, entries: Iterable[Entry]) -> dict[str, int]:
    """Hold every promotion and every stop of a journal against the paper's rule, by plain sorting.

    Independent of the search methods' own code; for one objective. Returns what it saw.
    """
    seen = {"promoted": 0, "stopped": 0}
    search = spec.search
    eta = Fraction(str(getattr(search, "reduction_factor", 1)))
    shared = getattr(search, "rung_system", "") == "shared"
    synchronous = search.method in ("sha", "hyperband")
    results: dict[tuple[int, int], list[tuple[float, int]]] = defaultdict(list)
    created: dict[int, int] = defaultdict(int)
    chosen: dict[tuple[int, int], list[int]] = defaultdict(list)

    def place(event: JobGranted | JobCompleted | TrialAbandoned | TrialStopped, below: int = 0) -> tuple[int, int]:
        return (0, event.bracket + event.rung - below) if shared else (event.bracket, event.rung - below)

    passed: dict[int, bool] = {}
    for entry in entries:
        for event in entry.events:
            if isinstance(event, TrialCreated):
                created[event.bracket] += 1
            elif isinstance(event, JobCompleted | TrialAbandoned):
                lost = isinstance(event, TrialAbandoned) or event.loss is None
                rung = results[place(event)]
                if isinstance(event, TrialAbandoned) and event.trial in [trial for _, trial in rung]:
                    # a person abandoned it where it stood: from then on it ranks last there
                    rung[:] = [(float("inf") if trial == event.trial else loss, trial) for loss, trial in rung]
                    passed.pop(event.trial, None)
                    continue
                rung.append((float("inf") if lost else event.loss, event.trial))  # type: ignore[union-attr,arg-type]
                rank = sorted(rung).index(rung[-1]) + 1
                passed[event.trial] = not lost and (len(rung) < eta or rank <= len(rung) // eta)
            elif isinstance(event, TrialStopped):
                seen["stopped"] += 1
                rung = results[place(event)]
                assert not passed[event.trial], f"stopped although in the best 1/eta: {event}"
                assert (event.results, event.rank) == (len(rung), sorted(rung).index(rung[-1]) + 1)
            elif isinstance(event, JobGranted) and event.rung and not event.retry:
                seen["promoted"] += 1
                rung = sorted(results[place(event, below=1)])
                best = [trial for loss, trial in rung if loss < float("inf")]
                if synchronous:
                    base = created[event.bracket]
                    before = chosen[event.bracket, event.rung - 1]
                    wanted = base if event.rung == 1 else len(before)
                    assert len(rung) == wanted, f"went on before the barrier: {event}"
                    assert event.trial in best[: sizes_of(base, event.rung + 1, eta)[event.rung]]
                    chosen[event.bracket, event.rung].append(event.trial)
                elif getattr(search, "variant", "") == "stopping":
                    assert passed.pop(event.trial), f"went on although outside the best 1/eta: {event}"
                else:
                    assert event.trial in best[: int(len(rung) // eta)], f"promoted from outside the best: {event}"
    return seen


def facts(entries: Iterable[Entry], kind: type[Event]) -> list[Any]:
    """All facts of one kind, in order."""
    return [event for entry in entries for event in entry.events if type(event) is kind]
