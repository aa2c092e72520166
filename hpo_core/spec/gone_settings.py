"""Settings and values that are gone: recorded studies without need of them are read, others refused in a sentence."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from hpo_core.model.errors import SpecError

_WITH_ALL = "2026-11-28"


class GoneSetting(NamedTuple):
    """A setting that is gone, or some values of it."""

    place: tuple[str, ...]
    read: tuple[Any, ...]
    """Recorded values with which a study is read; empty: with any."""
    now: str
    """How this version is, as the end of a sentence."""
    instead: str = ""
    """What to do instead, for a study file that sets it; empty: the setting stays, without the other values."""
    only: tuple[str, str] | None = None
    """Setting beside it, and the value of it that the setting belonged to; None: any."""
    until: str = _WITH_ALL
    """The last development version that had it."""


GONE = (
    GoneSetting(
        ("repeats",), (1,), "has 1 alone", "loop over seeds in the training function and report their mean",
        until="2026-11-27",
    ),
    GoneSetting(
        ("search", "repeats"), (1,), "has 1 alone",
        "loop over seeds in the training function, or set configs where parameters are drawn", ("method", "grid"),
    ),
    GoneSetting(
        ("search", "keep_last"), (False,), "has False alone", "checkpoints that nothing can load are removed",
        ("method", "pbt"),
    ),
    GoneSetting(
        ("search", "opponents_from"), (2,), "has 2 alone", "opponents: past takes the last two generations",
        ("method", "pbt"),
    ),
    GoneSetting(
        ("search", "study_record", "further"), ([],), "trains no trial beyond the search",
        "begin a study with a larger max_resource",
    ),
    GoneSetting(
        ("search", "bounds"), ({},), "has none", "narrow the range in the space", ("method", "pbt"),
    ),
    GoneSetting(
        ("search", "percentile"), (90,), "has 90 alone", "the tolerance is the paper's 90th percentile",
        ("method", "pasha"),
    ),
    GoneSetting(
        ("search", "early_stopping_rate"), (0,), "has 0 alone", "min_resource times reduction_factor says as much",
        ("method", "sha"),
    ),
    GoneSetting(("training", "grace"), (), "has 5 s", "a process has 5 s between SIGTERM and SIGKILL"),
    GoneSetting(("warm_start", "decay"), (), "has 0.5", "a sampler is shown half of the newest study's results"),
    GoneSetting(("journal",), (), "tries for 60 s", "a journal that cannot be reached is tried again for 60 s"),
    GoneSetting(("data", "scheduler"), ("remaining", "randomized"), "has no such policy"),
    GoneSetting(
        ("tracking", "optuna"), (), "copies no study while it runs",
        "make a copy with hpo_core.load(NAME).study.to_optuna(URL)",
    ),
)  # fmt: skip


def words_of_gone(place: tuple[Any, ...]) -> str | None:
    found = next((gone for gone in GONE if gone.place == place and gone.instead), None)
    return None if found is None else f"is no setting any more: {found.instead}. Drop it"


def without_gone(recorded: Mapping[str, Any]) -> dict[str, Any]:
    """A recorded study without settings that are gone.

    Raises:
        SpecError: one had a value with which this version cannot go on.
    """
    found = dict(recorded)
    for gone in GONE:
        *sections, name = gone.place
        section: Any = found
        for part in sections:
            section = section.get(part) if isinstance(section, Mapping) else None
        if not isinstance(section, Mapping) or name not in section:
            continue
        if gone.only is not None and section.get(gone.only[0]) != gone.only[1]:
            continue
        if gone.read and section[name] not in gone.read:
            raise SpecError(
                f"journal: {'.'.join(gone.place)} = {section[name]!r}: this version {gone.now}; read this study with "
                f"the last one that did otherwise, the development version of {gone.until}."
            )
        if gone.instead:
            found = _replaced(found, sections, {key: value for key, value in section.items() if key != name})
    training = found.get("training")
    if found.get("data") is not None and isinstance(training, Mapping) and training.get("gang", 1) != 1:
        raise SpecError(
            f"journal: training.gang = {training['gang']!r}, and data: this version trains each model that hops on one "
            f"worker; read this study with the last one that did otherwise, the development version of {_WITH_ALL}."
        )
    return found


def _replaced(plain: dict[str, Any], sections: list[str], section: dict[str, Any]) -> dict[str, Any]:
    if not sections:
        return section
    first, *rest = sections
    return plain | {first: _replaced(dict(plain[first]), rest, section)}
