"""Refuses numbers above a limit, naming the place, the value, the limit and the cure."""

from __future__ import annotations

from hpo_core.model.short_text import shown


def at_most(where: str, value: float, most: float, words: str) -> None:
    """Refuse a value above a limit.

    Args:
        where: the setting, as the study file spells it.
        words: what is counted, and the cure: ``parameters; drop some``.

    Raises:
        ValueError: the value is larger.
    """
    if value > most:
        message = f"{where} = {as_number(value)} is too large: at most {as_number(most)} {words}"
        raise ValueError(message.replace(" ;", ";"))


def as_number(value: float) -> str:
    """A number as an error shows it, however large it is."""
    if not isinstance(value, int):
        return f"{value:,.6g}"
    return f"{value:,}" if abs(value) < 10**30 else shown(value) if value.bit_length() > 1000 else f"{float(value):.3g}"
