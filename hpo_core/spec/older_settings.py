"""Specs of journals that were written before a setting existed.

A spec in a journal names all settings that its version knew, with their defaults. One that it does not name came later;
the study goes on, and is audited, by the rule of its own time, which need not be the default of today.
"""

from __future__ import annotations

from typing import Any

from hpo_core.search.registry import settings_class

_CHECKPOINTS: dict[str, Any] = {"removal": "final_place"}
_TRAINING: dict[str, Any] = {"max_lost": None}


def with_later_settings(spec: dict[str, Any]) -> dict[str, Any]:
    """A journaled spec, completed by settings that came after it."""
    found = spec | {
        "checkpoints": _CHECKPOINTS | spec.get("checkpoints", {}),
        "training": _TRAINING | spec.get("training", {}),
    }
    search = spec.get("search", {})
    if isinstance(search, dict) and (known := settings_class(search.get("method"))) is not None:
        found["search"] = {**known.earlier, **search}
    return found
