"""Compares a study that is described again with the one that the journal has."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from hpo_core.spec.sent_functions import names_value, plain_name
from hpo_core.spec.study_spec import StudySpec

_MAY_DIFFER = ("study", "cluster", "data", "pythonpath", "prefect", "tracking", "warm_start")
"""Settings that say where a study runs and is shown, and those that a study fills in when it begins."""


def differing_setting(recorded: StudySpec, given: StudySpec) -> str:
    """The first setting that is another one in the second description, with both values; empty: none.

    Functions by value are the same where they are called alike: a study goes on with the one that it keeps.
    """
    ours, theirs = (dict(_settings(spec.plain())) for spec in (recorded, given))
    for name in dict.fromkeys([*ours, *theirs]):
        before, now = ours.get(name, "not set"), theirs.get(name, "not set")
        if before != now and name.partition(".")[0] not in _MAY_DIFFER:
            return f"{name} is {_words(before)} there and {_words(now)} here"
    return ""


def _settings(plain: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in plain.items():
        if isinstance(value, Mapping) and value:
            yield from _settings(value, f"{before}{name}.")
        else:
            yield f"{before}{name}", plain_name(value) if isinstance(value, str) and names_value(value) else value


def _words(value: Any) -> str:
    text = value if isinstance(value, str) else repr(value)
    return text if len(text) <= 100 else f"{text[:100]}..."
