"""Rows of a pool: what a study says of itself there, what it was granted, and what a person says of its share."""

from __future__ import annotations

import math
from typing import Annotated

import msgspec

LEAST_WEIGHT, MOST_WEIGHT = 0.001, 1000.0
LEAST_PRIORITY, MOST_PRIORITY = -100, 100
MOST_SLOTS = 1_000_000
"""Largest number of slots in a row; a row that states more is damaged."""
MOST_DEVICES = 4_096
"""Largest number of names that one study holds, or could use."""
MOST_NAME = 300
"""Longest name of a worker or device, in characters; a longer one is not used."""
WHOLE_DEVICES = ", whole devices"
"""End of the name of a pool whose studies hold whole devices."""
POOL_ENDS = {"slot": "", "device": WHOLE_DEVICES}
"""End of a pool's name by the word for what its studies hold."""

_Count = Annotated[int, msgspec.Meta(ge=0, le=MOST_SLOTS)]
_Names = Annotated[
    tuple[Annotated[str, msgspec.Meta(max_length=MOST_NAME)], ...], msgspec.Meta(max_length=MOST_DEVICES)
]


class Wish(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A person's wish for a study's share while it ran (``hpo share``); it goes before the study's settings."""

    weight: Annotated[float, msgspec.Meta(ge=LEAST_WEIGHT, le=MOST_WEIGHT)] | None = None
    priority: Annotated[int, msgspec.Meta(ge=LEAST_PRIORITY, le=MOST_PRIORITY)] | None = None


class Member(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A study as its controller tells the pool; a row whose values are out of range is no member."""

    study: Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}\Z")]
    """Name of the study, which is shown to people: a name that no study can have is no member's."""
    owner: Annotated[str, msgspec.Meta(max_length=400)] = ""
    """The controller: another one of the same study gives way to who came last."""
    beat: _Count = 0
    """Number of signs of life so far."""
    weight: Annotated[float, msgspec.Meta(ge=LEAST_WEIGHT, le=MOST_WEIGHT)] = 1.0
    priority: Annotated[int, msgspec.Meta(ge=LEAST_PRIORITY, le=MOST_PRIORITY)] = 0
    seen: _Count = 0
    """Slots or devices of its cluster, as it sees them."""
    demand: _Count = 0
    """Slots or devices that it could use now."""
    spare: _Count = 0
    """Slots beyond its demand that it could use once a job ends, as trials grow: lent where nobody claims them."""
    job_slots: Annotated[int, msgspec.Meta(ge=1, le=MOST_SLOTS)] = 1
    """Slots of each of its jobs."""
    precedence: Annotated[int, msgspec.Meta(ge=-MOST_SLOTS, le=MOST_SLOTS)] = 0
    """Who is rounded up first, see :class:`hpo_core.pool.division.Claim`."""
    waited: Annotated[float, msgspec.Meta(ge=0, le=1e9)] = 0.0
    """Seconds for which it has held less than its share."""
    asks: bool = False
    """True if it waited so long that somebody else's job should be ended for it."""
    kind: Annotated[str, msgspec.Meta(max_length=40)] = ""
    """``device`` or ``worker``; empty: slots that are only counted."""
    usable: _Names = ()
    """Names that it could use now, held or not; those that it would give up last come first."""
    patience: Annotated[float, msgspec.Meta(ge=0, le=1e9)] = 0.0
    """Seconds for which others wait before it gives up a name within its share; 0: any other name will do for it."""

    def __post_init__(self) -> None:
        if not all(map(math.isfinite, (self.weight, self.waited, self.patience))):
            raise ValueError("weight, waited and patience must be finite")


class Grant(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Names that a study has of its pool, as the arbiter wrote it."""

    held: _Names = ()
    """Names that nobody else uses, in order."""
    closing: _Names = ()
    """Held names on which no job begins any more; the study gives them back once the jobs there have ended."""


NOTHING = Grant()
