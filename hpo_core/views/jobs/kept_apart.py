"""Kinds of jobs that gain too little from sharing a device, and are kept apart for it."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from hpo_core.model.devices.measurement import Measurement, key_of
from hpo_core.placement.demands.pair_speeds import KeptApart, PairSpeeds
from hpo_core.study import Study
from hpo_core.views.jobs.measured_ratios import learned_of


class FoundApart(msgspec.Struct, frozen=True, kw_only=True):
    """Two kinds of one objective that later studies keep apart."""

    objective: str
    code: str
    """Digest of the objective's source."""
    kept_apart: KeptApart


def found_apart(found: Iterable[Measurement]) -> list[FoundApart]:
    """What measurements say, by objective and source."""
    pairs: dict[tuple[str, str], PairSpeeds] = {}
    for one in found:
        of_source = pairs.setdefault((one.objective, one.code), PairSpeeds())
        of_source.add(one.architecture, key_of(one.params), one, one.beside)
    return [
        FoundApart(objective=objective, code=code, kept_apart=one)
        for (objective, code), of_source in sorted(pairs.items())
        for one in of_source.kept_apart()
    ]


def kept_apart_in(study: Study) -> list[KeptApart]:
    """What the attempts of a packed study say; those of earlier studies are in the history."""
    packing = study.spec.packing
    return learned_of(study).pairs.kept_apart() if packing is not None and packing.learn_pairs else []


def kept_apart_words(pair: KeptApart) -> str:
    """A pair in a line.

    >>> kept_apart_words(KeptApart(architecture="A100", one='{"width":1}', other='{"width":8}', one_speed=0.5,
    ...     other_speed=0.4, attempts=12.0))
    'kept apart on A100: width=1 and width=8, together 0.90 times as fast as one alone (0.50 + 0.40, 12 attempts)'
    """
    both = f"two of {_kind(pair.one)}" if pair.one == pair.other else f"{_kind(pair.one)} and {_kind(pair.other)}"
    return (
        f"kept apart on {pair.architecture}: {both}, together {pair.together:.2f} times as fast as one alone "
        f"({pair.one_speed:.2f} + {pair.other_speed:.2f}, {pair.attempts:.0f} attempts)"
    )


def kept_apart_lines(pairs: Iterable[KeptApart], most: int = 8) -> list[str]:
    """The pairs that gain least, one a line, and how many more there are."""
    lines = [kept_apart_words(one) for one in pairs]
    return [*lines[:most], *([f"and {len(lines) - most:,} more pairs kept apart"] if len(lines) > most else [])]


def _kind(key: str) -> str:
    try:
        values = msgspec.json.decode(key)
    except msgspec.DecodeError:  # a digest
        return key[:15]
    return " ".join(f"{name}={value}" for name, value in values.items()) or "any job"
