"""Changes to a study's description from the command line: ``search.reduction_factor=3``."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from hpo_core.model import limits
from hpo_core.model.errors import SpecError
from hpo_core.model.short_text import shortened, shown
from hpo_core.search.registry import settings_class


def split_change(text: str) -> tuple[tuple[str, ...], Any]:
    """Split a change into its keys and its value, which is JSON or else plain text.

    Raises:
        SpecError: it has no ``=``, or no key before it.

    >>> split_change("search.reduction_factor=3"), split_change("search.method=random")
    ((('search', 'reduction_factor'), 3), (('search', 'method'), 'random'))
    """
    key, equals, value = text.partition("=")
    keys = tuple(part.strip() for part in key.split("."))
    if not equals or not all(keys):
        raise SpecError(f"--set {shortened(text)}: write KEY=VALUE, for example search.reduction_factor=3.")
    if len(keys) > limits.DEPTH:
        raise SpecError(f"--set {shortened(text)}: a key has at most {limits.DEPTH} parts; no setting is that deep.")
    try:
        return keys, json.loads(value)
    except (ValueError, RecursionError):
        return keys, value.strip()


def changed(data: dict[str, Any], changes: Sequence[str]) -> dict[str, Any]:
    """A study's plain data with changes; the given data stays as it is.

    Another ``search.method`` keeps those settings of the search that it knows too, and drops the others. Brackets that
    followed from a preset follow from the changed one, or from the changed rungs.

    Raises:
        SpecError: a change is not of the form KEY=VALUE, or leads into something that is no mapping.
    """
    split = [split_change(text) for text in changes]
    for keys, value in sorted(split, key=lambda change: change[0] != ("search", "method")):  # settings after the method
        if keys == ("search", "method"):
            search = data.get("search")
            known = settings_of(value)
            kept = {name: item for name, item in search.items() if name in known} if isinstance(search, dict) else {}
            data = data | {"search": kept | {"method": value}}
        else:
            data = _replaced(data, keys, value)
    return _without_derived(data, {keys for keys, _ in split})


def _without_derived(data: dict[str, Any], changed_keys: set[tuple[str, ...]]) -> dict[str, Any]:
    """Without settings of the search that followed from settings that changed."""
    search = data.get("search")
    known = settings_class(search.get("method")) if isinstance(search, dict) else None
    if search is None or known is None:
        return data
    names = {keys[1] for keys in changed_keys if len(keys) == 2 and keys[0] == "search"}
    return data | {"search": known.without_derived(search, names)}


def _replaced(data: dict[str, Any], keys: tuple[str, ...], value: Any) -> dict[str, Any]:
    if len(keys) == 1:
        return data | {keys[0]: value}
    inner = data.get(keys[0])
    if inner is None or (keys[0] in _SWITCHES and isinstance(inner, bool)):
        inner = {}
    if not isinstance(inner, dict):
        raise SpecError(
            f"--set {'.'.join(keys)}: {keys[0]} is {shown(inner)}, which has no parts; change it as a whole."
        )
    return data | {keys[0]: _replaced(inner, keys[1:], value)}


_SWITCHES = frozenset({"packing", "share"})
"""Sections for which ``true`` stands for all defaults; a setting of one that is off turns it on."""


def settings_of(method: Any) -> set[str]:
    """Names of a search method's settings; none where the method is unknown."""
    known = settings_class(method)
    return set() if known is None else set(known.model_fields)
