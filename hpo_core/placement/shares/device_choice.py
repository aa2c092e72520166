"""Which devices a study holds by name in a pool, and on which of them its jobs may begin. Pure.

How many each study is due, :func:`~hpo_core.placement.shares.water_filling.divide` says; here these counts become
names. Each controller applies the rules to the same rows, in the transaction that publishes what it holds:

1. A study keeps the devices on which its jobs run, and those that it can use.
2. Free devices go to studies that hold less than they are due: higher priorities first, then who has waited longest.
   Where one of two would do for a study and another study needs that one, it takes the other. What is left goes to
   whoever can use it.
3. What a study has above its share it keeps while nobody who is due wants it. Else it begins no job there any more, and
   lets the device go once the jobs there have ended.
4. Who is due, has waited for ``patience`` seconds, and finds none of its devices free or above a share, gets one of a
   study within its share: of one that gets another device for it, or of one that has waited for less time itself.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import msgspec

from hpo_core.model.devices.pool_member import Member
from hpo_core.placement.shares.device_matching import match_free


class DeviceChoice(msgspec.Struct, frozen=True):
    """What a study holds from now on."""

    held: tuple[str, ...]
    """Nobody else uses these."""
    open: tuple[str, ...]
    """Those of them on which its jobs may begin; the others are given back once the jobs there have ended."""


def choose_devices(
    mine: Member,
    others: Sequence[Member],
    *,
    shares: Mapping[str, int],
    usable: Sequence[str],
    used: Sequence[str] = (),
    closing: Collection[str] = (),
    capacity: int | None = None,
    patience: float = 0.0,
) -> DeviceChoice:
    """The devices that a study holds from now on.

    Args:
        mine: with the devices that it has held so far, its demand, and how long it has waited as of now: an old figure
            beside those of others would let two studies each wait for the other one.
        others: as they published it.
        shares: devices that each is due, by study.
        usable: devices that it can use now, held or not, preferred ones first.
        used: devices on which its jobs run; the one with the youngest job last, for it is given back first.
        closing: devices that it was to give back before: the same ones again, else none would ever be idle.
        capacity: devices that all studies may hold together; None: as many as there are.
        patience: seconds.

    >>> mine, other = Member(study="a", demand=2, devices=("x", "y")), Member(study="b", demand=2, wants=("x", "y"))
    >>> choose_devices(mine, [other], shares={"a": 1, "b": 1}, usable=["x", "y"], used=["x", "y"])
    DeviceChoice(held=('x', 'y'), open=('x',))
    >>> choose_devices(mine, [other], shares={"a": 1, "b": 1}, usable=["x", "y"], used=["y"])
    DeviceChoice(held=('y',), open=('y',))
    """
    taken = {name for other in others for name in other.devices}
    running = [name for name in dict.fromkeys(used) if name in mine.devices and name not in taken]
    can_use = [name for name in dict.fromkeys(usable) if name not in taken]
    idle = [name for name in can_use if name in mine.devices and name not in running]
    kept = (*running, *idle[: max(0, mine.demand - len(running))])
    now = msgspec.structs.replace(
        mine, devices=kept, wants=tuple(name for name in dict.fromkeys(usable) if name not in kept)
    )
    members = sorted((now, *others), key=lambda member: (-member.priority, -member.waited, member.study))
    promised = match_free(members, shares, capacity=capacity)
    given: set[str] = set()
    places, busy, is_closing = {name: place for place, name in enumerate(kept)}, set(running), set(closing)
    for wanted in _asked_of(now, members, shares, promised, patience):
        choice = [name for name in kept if name in wanted and name not in given]
        if choice:  # idle ones first; of the others one that is being given back, then that of the youngest job
            given.add(max(choice, key=lambda name: (name not in busy, name in is_closing, places[name])))
    gained = [name for name, study in promised.items() if study == mine.study]
    usable_now = set(can_use)
    stays = [name for name in kept if name in usable_now and name not in given]
    held = (*(name for name in kept if name in busy or name in usable_now - given), *gained)
    return DeviceChoice(held, (*stays, *gained))


def _asked_of(
    mine: Member, members: Sequence[Member], shares: Mapping[str, int], promised: Mapping[str, str], patience: float
) -> list[Collection[str]]:
    """For each device that the study is to give up: those of which one will do.

    Each controller finds the same, and knows of each other study how many that one gives up.
    """
    held = {member.study: len(member.devices) for member in members}
    gains = {member.study: sum(study == member.study for study in promised.values()) for member in members}
    taken = {name for member in members for name in member.devices}
    asked: list[Collection[str]] = []
    for due in members:
        # what it gives up itself it has until the jobs there have ended: nothing would use another one meanwhile
        missing = shares[due.study] - len(due.devices) - gains[due.study]
        # where the number of devices is limited, a free one may be had once anybody gives up any
        is_limited = any(name not in taken and name not in promised for name in due.wants)
        for _ in range(max(0, missing)):
            holders = [
                member
                for member in members
                if member is not due and held[member.study] > 0 and (is_limited or _meet(member.devices, due.wants))
            ]
            above = [member for member in holders if held[member.study] > shares[member.study]]
            giver = max(above, key=lambda one: (held[one.study] - shares[one.study], one.study), default=None)
            if giver is None and due.waited >= patience and not is_limited:
                willing = [one for one in holders if gains[one.study] or _gives_way(one, due)]
                giver = max(
                    willing, key=lambda one: (gains[one.study] > 0, held[one.study] / one.weight, one.study),
                    default=None,
                )  # fmt: skip
            if giver is None:
                break
            held[giver.study] -= 1
            if giver is mine:
                asked.append(mine.devices if is_limited else set(due.wants))
    return asked


def _gives_way(holder: Member, due: Member) -> bool:
    return holder.priority <= due.priority and holder.waited < due.waited


def _meet(names: Sequence[str], wanted: Sequence[str]) -> bool:
    return not set(names).isdisjoint(wanted)
