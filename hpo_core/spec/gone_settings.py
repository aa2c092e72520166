"""Settings that are gone: a recorded study is read that has the value which holds now, another one is refused."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from hpo_core.model.errors import SpecError

_READER = "read this study with the last one that did, the development version of 2026-11-28"


class GoneSetting(NamedTuple):
    """A setting that is gone."""

    place: tuple[str, ...]
    only: tuple[str, str] | None
    """Setting beside it, and the value of it that the setting belonged to; None: any."""
    value: Any
    """The value that holds from now on."""
    instead: str


GONE = (
    GoneSetting(("repeats",), None, 1, "loop over seeds in the training function and report their mean"),
    GoneSetting(
        ("search", "repeats"),
        ("method", "grid"),
        1,
        "loop over seeds in the training function, or set configs where parameters are drawn",
    ),
    GoneSetting(("search", "keep_last"), ("method", "pbt"), False, "checkpoints that nothing can load are removed"),
    GoneSetting(("search", "opponents_from"), ("method", "pbt"), 2, "opponents: past takes the last two generations"),
)


def words_of_gone(place: tuple[Any, ...]) -> str | None:
    """Instead of what a setting of a study file is gone; None: it never was one."""
    found = next((gone for gone in GONE if gone.place == place), None)
    return None if found is None else f"is no setting any more: {found.instead}. Drop it"


def without_gone(recorded: Mapping[str, Any]) -> dict[str, Any]:
    """A recorded study without settings that are gone.

    Raises:
        SpecError: one had another value than the one that holds now.
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
        if section[name] != gone.value:
            raise SpecError(
                f"journal: {'.'.join(gone.place)} = {section[name]!r}: this version has {gone.value!r} alone "
                f"({gone.instead}); {_READER}."
            )
        found = _replaced(found, sections, {key: value for key, value in section.items() if key != name})
    return found


def _replaced(plain: dict[str, Any], sections: list[str], section: dict[str, Any]) -> dict[str, Any]:
    if not sections:
        return section
    return plain | {sections[0]: _replaced(plain[sections[0]], sections[1:], section)}
