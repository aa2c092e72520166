"""Values that choices and conditions name, and their equality."""

from __future__ import annotations

import json
from typing import Any

from hpo_core.model.short_text import shown

Scalar = bool | int | float | str | None
Value = Scalar | list[Any]
"""A choice: a scalar, or a list of values (``[64, 64]``)."""


def same_scalar(a: Any, b: Any) -> bool:
    """Equality that keeps True apart from 1 (YAML users mean different things), also within lists."""
    if isinstance(a, list | tuple) and isinstance(b, list | tuple):
        return len(a) == len(b) and all(map(same_scalar, a, b))
    return bool(a == b) and isinstance(a, bool) == isinstance(b, bool)


def scalar_key(value: Any) -> tuple[bool, Any]:
    """Equal for what :func:`same_scalar` calls equal; to be looked up."""
    if isinstance(value, list | tuple):
        return False, tuple(map(scalar_key, value))
    return isinstance(value, bool), value


def optuna_choice(value: Value) -> Scalar:
    """A choice as Optuna may have it: a list as its JSON text."""
    return json.dumps(value) if isinstance(value, list) else value


def said(value: Any) -> str:
    """A value in a message; a short list is written out."""
    text = json.dumps(value) if isinstance(value, list | tuple) else ""
    return text if 0 < len(text) <= 40 else shown(value)
