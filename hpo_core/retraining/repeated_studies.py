"""Studies of a retraining: one configuration with several seeds; a search that begins from earlier ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hpo_core.model.errors import SpecError
from hpo_core.model.events import Entry
from hpo_core.model.rng import derive_seed
from hpo_core.replay.rerun import rerun_spec
from hpo_core.spec import StudySpec

DATA = "data"
"""The parameter that says which data a trial trains on (``trial.params["data"]``)."""


def repeats_spec(
    entries: Sequence[Entry], name: str, *, trial: int, repeats: int, changes: Mapping[str, Any]
) -> StudySpec:
    """Train one trial (and what it went on from) again along its recorded grants, ``repeats`` times.

    Every repeat has training seeds of its own, which follow from ``name``: the recorded ones belong to a training that
    was chosen for its result, and would bring its luck into the test. :func:`trials_of_repeats` says which trials of
    the new study are the repeats of the one that was asked for.

    Args:
        changes: parameters set in every trial, such as the data.

    Raises:
        SpecError: the study has no such trial or granted it nothing.
    """
    once = rerun_spec(entries, name, trials=[trial], changes=changes).plain()
    search = once["search"]
    numbers = search["numbers"]
    stride = 1 + max(numbers)
    many = {  # interleaved: repeats of a chain of ancestors train side by side
        "grants": [
            grant
            | {
                key: grant[key] * repeats + repeat
                for key in ("trial", "parent", "initiator", "opponent")
                if grant.get(key) is not None
            }
            for grant in search["grants"]
            for repeat in range(repeats)
        ],
        "params": [params for params in search["params"] for _ in range(repeats)],
        "numbers": [number + repeat * stride for number in numbers for repeat in range(repeats)],
        "keep_last": True,
    }
    seed = derive_seed(once["seed"], f"repeats/{name}", 0)
    return StudySpec.from_journal(once | {"search": search | many, "seed": seed}, "repeats")


def trials_of_repeats(spec: StudySpec, repeats: int) -> list[int]:
    """The trials that :func:`repeats_spec` was made for, one of each repeat."""
    record = spec.search.record()
    if record is None or len(record.params) % repeats:
        raise SpecError(f"Study {spec.study!r} does not hold {repeats} repeats of one trial.")
    return list(range(len(record.params) - repeats, len(record.params)))


def tuning_spec(
    source: StudySpec, name: str, *, data: str, studies: Sequence[str], decay: float, first: int, key: str
) -> StudySpec:
    """The search of ``source`` again, on other data, begun from what earlier studies found (a grid: just again).

    Args:
        source: a study with a search of its own (a rerun has none).
        studies: earlier studies, the newest first.
        key: the new study's seed follows from it.

    Raises:
        SpecError: ``source`` is a rerun.
    """
    if (record := source.search.record()) is not None:
        raise SpecError(
            f"Study {source.study!r} has no search to begin anew: it trained along the record of "
            f"{record.source!r}. Remove the alias 'champion' and start with the study of a search: study=NAME."
        )
    plain = source.plain()
    fixed = {"type": "categorical", "choices": [data], "static": True}
    seed = derive_seed(source.seed, f"retrain/{key}", 0)
    warm = (
        None
        if source.search.outline().own_configurations
        else {"studies": list(studies), "decay": decay, "first": first}
    )
    changed = {"study": name, "space": plain["space"] | {DATA: fixed}, "seed": seed, "warm_start": warm}
    return StudySpec.from_journal(plain | changed, "tuning")
