"""What studies publish in a pool of slots that they share, and what a person says of one of them."""

from __future__ import annotations

import math
from typing import Annotated

import msgspec

from hpo_core.model.devices.pool_limits import (
    LEAST_PRIORITY,
    LEAST_WEIGHT,
    MOST_CLUSTER,
    MOST_DEVICES,
    MOST_NAME,
    MOST_PRIORITY,
    MOST_SLOTS,
    MOST_WEIGHT,
)

_Count = Annotated[int, msgspec.Meta(ge=0, le=MOST_SLOTS)]
_Names = Annotated[
    tuple[Annotated[str, msgspec.Meta(max_length=MOST_NAME)], ...], msgspec.Meta(max_length=MOST_DEVICES)
]


class Wish(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a person said of a study's share while it ran (``hpo share``); it goes before the study's settings."""

    weight: Annotated[float, msgspec.Meta(ge=LEAST_WEIGHT, le=MOST_WEIGHT)] | None = None
    priority: Annotated[int, msgspec.Meta(ge=LEAST_PRIORITY, le=MOST_PRIORITY)] | None = None


class Member(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What the controller of a study publishes in its pool; a row whose values are out of range is no member."""

    study: Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}\Z")]
    """It is shown to people: a name that no study can have is no member's."""
    owner: Annotated[str, msgspec.Meta(max_length=400)] = ""
    """The controller: another one of the same study gives way to who came last."""
    beat: _Count = 0
    """Counts the controller's signs of life."""
    weight: Annotated[float, msgspec.Meta(ge=LEAST_WEIGHT, le=MOST_WEIGHT)] = 1.0
    priority: Annotated[int, msgspec.Meta(ge=LEAST_PRIORITY, le=MOST_PRIORITY)] = 0
    one_cluster: bool = False
    """Whether all members use one cluster; else each has workers of its own."""
    cluster: Annotated[str, msgspec.Meta(max_length=MOST_CLUSTER)] = ""
    """Where that one cluster is: the name of the pool of those who name none."""
    seen: _Count = 0
    """Slots of its cluster, as it sees them."""
    stated: Annotated[int, msgspec.Meta(ge=1, le=MOST_SLOTS)] | None = None
    """Slots of the pool, as its settings say."""
    demand: _Count = 0
    """Slots that it could use now."""
    spare: _Count = 0
    """Slots beyond them that it could use once a job ends, as trials grow: lent to it where nobody claims them."""
    held: _Count = 0
    """Slots that nobody else may use."""
    used: _Count = 0
    """Slots that its jobs used when it last gave a sign of life."""
    job_slots: Annotated[int, msgspec.Meta(ge=1, le=MOST_SLOTS)] = 1
    precedence: Annotated[int, msgspec.Meta(ge=-MOST_SLOTS, le=MOST_SLOTS)] = 0
    waited: Annotated[float, msgspec.Meta(ge=0, le=1e9)] = 0.0
    """Seconds for which it has held less than its share."""
    asks: bool = False
    """Whether it waited so long that somebody else's job should be ended for it."""
    kind: Annotated[str, msgspec.Meta(max_length=40)] = ""
    """What its slots are where they are devices with names, as ``device`` or ``worker``; empty: any slot will do."""
    devices: _Names = ()
    """Devices that it holds: nobody else uses them. So many are :attr:`held`."""
    offers: _Names = ()
    """Those of them that it gives back soon, once what runs there has ended: it has no more use for them."""
    wants: _Names = ()
    """Devices that it could use now and does not hold, preferred ones first."""
    moves: bool = False
    """Whether it gives up a device for another one that it wants at once: any will do."""

    def __post_init__(self) -> None:
        if not (math.isfinite(self.weight) and math.isfinite(self.waited)):
            raise ValueError("weight and waited must be finite")
