"""Which devices a study holds by name in a pool, and on which of them its jobs may begin. Pure.

How many each study is due, :func:`~hpo_core.placement.shares.water_filling.divide` says; here these counts become
names. Each controller applies the rules to the same rows, in the transaction that publishes what it holds:

1. A study keeps the devices on which its jobs run, and those that it can use.
2. Free devices go to studies that hold less than they are due: higher priorities first, then who has waited longest.
   Where one of two would do for a study and another study needs that one, it takes the other. What is left goes to
   whoever can use it.
3. What a study has above its share it keeps while nobody who is due wants it. Else it begins no job there any more, and
   lets the device go once the jobs there have ended.
   A device that a study has no more use for, and gives back soon, is no more its own, but of who gets it then.
4. Who is due, and finds none of its devices free or above a share, gets one of a study within its share that moves: any
   other device will do for it, and one is free or soon will be.
5. Where none moves, and who is due has waited for ``patience`` seconds: of a study that gets another device for it, or
   of one that has waited for less time itself.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence, Set
from fractions import Fraction

import msgspec

from hpo_core.model.arithmetic import Number, as_written
from hpo_core.model.devices.pool_member import Member
from hpo_core.placement.shares.device_matching import match_free


class DeviceChoice(msgspec.Struct, frozen=True):
    """What a study holds from now on."""

    held: tuple[str, ...]
    """Nobody else uses these."""
    open: tuple[str, ...]
    """Those of them on which its jobs may begin; the others are given back once the jobs there have ended."""
    instead: tuple[str, ...] = ()
    """Open ones that would do as well as one that waits for its job to end: given back instead, if idle before that."""


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
    DeviceChoice(held=('x', 'y'), open=('x',), instead=('x',))
    >>> choose_devices(mine, [other], shares={"a": 1, "b": 1}, usable=["x", "y"], used=["y"])
    DeviceChoice(held=('y',), open=('y',), instead=())
    """
    taken = {name for other in others for name in other.devices}
    mine_now = set(mine.devices)
    running = [name for name in dict.fromkeys(used) if name in mine_now and name not in taken]
    can_use = [name for name in dict.fromkeys(usable) if name not in taken]
    busy = set(running)
    idle = [name for name in can_use if name in mine_now and name not in busy]
    kept = (*running, *idle[: max(0, mine.demand - len(running))])
    places, is_closing = {name: place for place, name in enumerate(kept)}, set(closing)
    now = msgspec.structs.replace(
        mine, devices=kept, wants=tuple(name for name in dict.fromkeys(usable) if name not in places)
    )
    members = sorted((now, *others), key=lambda member: (-member.priority, -member.waited, member.study))
    offered = {name for member in members for name in member.offers}.intersection(
        name for member in members if member.offers for name in member.devices
    )
    if offered:
        members = [_without(member, offered.intersection(member.offers)) for member in members]
    promised = match_free(members, shares, capacity=capacity, closed=offered)
    soon = _match_offered(members, shares, promised, offered, capacity) if offered else {}
    given: set[str] = set()
    instead: set[str] = set()
    spare = {name for member in members for name in member.wants}.difference(
        promised, soon, (name for member in members for name in member.devices)
    )
    for wanted, number in _asked_of(now, members, shares, promised | soon, spare, patience):
        choice = [name for name in kept if name in wanted and name not in given and name not in offered]
        # idle ones first; of the others one that is being given back, then that of the youngest job
        choice.sort(key=lambda name: (name not in busy, name in is_closing, places[name]), reverse=True)
        given.update(choice[:number])
        if not busy.isdisjoint(choice[:number]):
            instead.update(choice[number:])
    released = given - busy
    if released:  # it takes others for these at once
        less = tuple(name for name in kept if name not in released and name not in offered)
        members = [
            msgspec.structs.replace(member, devices=less) if member.study == mine.study else member
            for member in members
        ]
        promised = match_free(members, shares, capacity=capacity, closed=offered)
    gained = [name for name, study in promised.items() if study == mine.study]
    stays = set(can_use) - given
    held = (*(name for name in kept if name in busy or name in stays), *gained)
    return DeviceChoice(
        held,
        (*(name for name in kept if name in stays), *gained),
        tuple(name for name in kept if name in stays and name in instead),
    )


def _without(member: Member, names: Set[str]) -> Member:
    if not names:
        return member
    return msgspec.structs.replace(member, devices=tuple(name for name in member.devices if name not in names))


def _match_offered(
    members: Sequence[Member],
    shares: Mapping[str, int],
    promised: Mapping[str, str],
    offered: Set[str],
    capacity: int | None,
) -> dict[str, str]:
    """By device that is given back soon: the study that gets it then."""
    gains: dict[str, list[str]] = {}
    for name, study in promised.items():
        gains.setdefault(study, []).append(name)
    then = [
        msgspec.structs.replace(
            member,
            devices=(*member.devices, *gains.get(member.study, ())),
            wants=tuple(name for name in member.wants if name in offered),
        )
        for member in members
    ]
    return match_free(then, shares, capacity=capacity)


def _asked_of(
    mine: Member,
    members: Sequence[Member],
    shares: Mapping[str, int],
    promised: Mapping[str, str],
    spare: set[str],
    patience: float,
) -> list[tuple[Set[str], int]]:
    """For each study that devices are to be given up for: those that will do, and how many.

    Each controller finds the same, and knows of each other study how many that one gives up.

    Args:
        members: with the devices that they do not give back by themselves.
        promised: devices that are free, or will be soon, and who gets them: they count as held.
        spare: others that are free, or will be soon.
    """
    gains = Counter(promised.values())
    held = {member.study: len(member.devices) + gains[member.study] for member in members}
    holder = {name: member for member in members for name in member.devices}
    asked: list[tuple[Set[str], int]] = []
    for due in members:
        # what it gives up for others it has until the jobs there have ended: nothing would use another one meanwhile
        missing = min(shares[due.study] - len(due.devices) - gains[due.study], len(due.wants))
        if missing <= 0:
            continue
        # where the number of devices is limited, a free one may be had once anybody gives up any
        is_limited = not spare.isdisjoint(due.wants)
        reached = {holder[name].study: holder[name] for name in due.wants if name in holder}
        givers = [one for one in (members if is_limited else reached.values()) if one is not due]
        over = [one for one in givers if held[one.study] > shares[one.study]]
        given = _take(over, missing, held, least=shares, rank=lambda one: (shares[one.study] - held[one.study],))
        missing -= given.total()
        if missing and not is_limited:
            moved = _move(givers, missing, held, spare)
            given += moved
            missing -= moved.total()
        if missing and due.waited >= patience and not is_limited:
            willing = [one for one in givers if gains[one.study] or _gives_way(one, due)]
            given += _take(
                willing,
                missing,
                held,
                least={},
                rank=lambda one: (not gains[one.study], -Fraction(held[one.study]) / as_written(one.weight)),
            )
        if given[mine.study]:
            asked.append((set(mine.devices if is_limited else due.wants), given[mine.study]))
    return asked


def _take(
    givers: Iterable[Member],
    most: int,
    held: dict[str, int],
    *,
    least: Mapping[str, int],
    rank: Callable[[Member], tuple[Number, ...]],
) -> Counter[str]:
    """How many devices each gives, one at a time: who ranks lowest then, and the last by name between equals.

    Args:
        givers: those that may give.
        most: devices in all.
        held: devices of each; becomes less.
        least: devices that each keeps; none where it is not named.
        rank: by what each holds at the moment.
    """
    given: Counter[str] = Counter()
    ordered = enumerate(sorted(givers, key=lambda one: one.study, reverse=True))
    lowest_first = [(rank(one), place, one) for place, one in ordered]
    heapq.heapify(lowest_first)
    while lowest_first and most > 0:
        _, place, one = heapq.heappop(lowest_first)
        if held[one.study] > least.get(one.study, 0):
            held[one.study] -= 1
            given[one.study] += 1
            most -= 1
            heapq.heappush(lowest_first, (rank(one), place, one))
    return given


def _move(givers: Iterable[Member], most: int, held: dict[str, int], spare: set[str]) -> Counter[str]:
    """How many devices each gives that takes others for them, which are spare no more."""
    given: Counter[str] = Counter()
    for one in sorted(givers, key=lambda one: one.study, reverse=True):
        others = [name for name in one.wants if name in spare] if one.moves else []
        number = min(most, held[one.study], len(others))
        spare.difference_update(others[:number])
        held[one.study] -= number
        given[one.study] += number
        most -= number
    return given


def _gives_way(holder: Member, due: Member) -> bool:
    return holder.priority <= due.priority and holder.waited < due.waited
