"""The one rule of a pool: from what all studies say and hold to what each holds next. Pure.

Slots, devices and workers have names; where studies only count slots, their names are numbers, any of which will do.
How many names each study is due, :func:`~hpo_core.pool.division.divide` says. Here these counts become names:

1. A study keeps what it holds and can use. Nobody but the study itself gives a name back, once no job runs there.
2. Free names go to studies that hold less than they are due: higher priorities first, then who has waited longest.
   Where one of two names would do for a study and another study needs that one, it gets the other. What is left goes
   to whoever can use it.
3. What a study has above its share it keeps while nobody who is due wants it. Else some of it is *closing*: no job
   begins there any more, and the study gives it back once the jobs there have ended. A name that is given back soon
   counts as the one's who gets it then.
4. Who is due, and finds none of its names free or above a share, gets one of a study within its share for which any
   other name will do, if another one is free or soon will be.
5. Where there is none, and who is due has waited for ``patience`` seconds: a name of a study that gets another one for
   it, or of one that has waited for less time itself.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence, Set
from fractions import Fraction

import msgspec

from hpo_core.model.arithmetic import Number, as_written
from hpo_core.model.devices.pool_member import MOST_DEVICES, NOTHING, Grant, Member
from hpo_core.pool.division import Claim, divide, ideal_shares


def slot_name(worker: str, number: int) -> str:
    """Name by which all studies of a pool know one slot of a worker."""
    return f"{worker}#{number}"


def worker_of(slot: str) -> str:
    """The worker that a slot belongs to.

    >>> worker_of(slot_name("worker-3", 1))
    'worker-3'
    """
    return slot.rpartition("#")[0]


def capacity_of(members: Iterable[Member], named: Collection[str] = ()) -> int:
    """Number of slots or devices in a pool: the smallest that settings state, else what the largest cluster has.

    Args:
        named: names that the members hold or could use, of which there are as many at least.
    """
    found = list(members)
    stated = [member.stated for member in found if member.stated is not None]
    there = max(max((member.seen for member in found), default=0), len(named))
    return min(*stated, there) if stated and named else min(stated, default=there)


class Position(msgspec.Struct, frozen=True):
    """Where a study stands in its pool."""

    capacity: int
    """Slots or devices of the pool."""
    share: int
    """Number that the study is due."""
    ideal: Fraction
    """The share before it is rounded to whole jobs; no more than the study would use of what it could get now."""
    lent: int
    """Number beyond the share on which its jobs may begin: nobody who is due wants them."""
    wants: tuple[str, ...]
    """Names that the study could use now and does not hold, preferred ones first."""


class Pool:
    """All studies of a pool at one moment.

    Args:
        members: what each study says.
        grants: by study: what each has so far; a study without one has nothing.
        patience: seconds, see rule 5.
        there: names that the reader sees. Where the members name more than :data:`MOST_DEVICES` names, these alone
            count, so that rows which somebody planted hold up nobody; None: all count.

    >>> mine, other = (Member(study=name, kind="device", demand=2, usable=("x", "y")) for name in "ab")
    >>> Pool([mine, other], {"a": Grant(held=("x", "y"))}).arbitrate()["a"]
    Grant(held=('x', 'y'), closing=('y',), instead=('x',))
    >>> Pool([mine, other], {"a": Grant(held=("x",))}).arbitrate()["b"]
    Grant(held=('y',), closing=(), instead=())
    """

    def __init__(
        self,
        members: Iterable[Member],
        grants: Mapping[str, Grant],
        *,
        patience: float = 0.0,
        there: Collection[str] | None = None,
    ) -> None:
        self.members = sorted(members, key=lambda member: (-member.priority, -member.waited, member.study))
        self.patience = patience
        before = {member.study: grants.get(member.study, NOTHING) for member in self.members}
        self._usable = {member.study: member.usable for member in self.members}
        self.held: dict[str, tuple[str, ...]] = {}
        self._unseen: dict[str, tuple[str, ...]] = {}
        self._taken: set[str] = set()
        for study in sorted(before):
            mine = dict.fromkeys(name for name in before[study].held if name not in self._taken)
            self._taken.update(mine)
            self.held[study], self._unseen[study] = tuple(mine), ()
        named = self._taken.union(*self._usable.values())
        if there is not None and len(named) > MOST_DEVICES:
            is_there = frozenset(there).__contains__
            for study, held in self.held.items():
                self._usable[study] = tuple(filter(is_there, self._usable[study]))
                self.held[study] = tuple(filter(is_there, held))
                self._unseen[study] = tuple(itertools.filterfalse(is_there, held))
            named.intersection_update(there)
            self._taken.intersection_update(there)
        self._closing = {study: frozenset(grant.closing) for study, grant in before.items()}
        only_counted = not any(member.kind for member in self.members)
        self.capacity = capacity_of(self.members, () if only_counted else named)
        if only_counted:
            self.capacity = min(self.capacity, MOST_DEVICES)
            numbers = tuple(map(str, range(self.capacity)))
            self._usable = dict.fromkeys(self._usable, numbers)
        claims = [
            Claim(
                study=member.study,
                demand=member.demand,
                weight=member.weight,
                priority=member.priority,
                job_slots=member.job_slots,
                precedence=member.precedence,
            )
            for member in self.members
        ]
        self.shares = divide(self.capacity, claims)
        self._ideals = ideal_shares(self.capacity, claims)
        self._ending = {name for member in self.members for name in member.ending if name in self.held[member.study]}
        self._lasting = self.held
        """By study: names that it holds and does not give back soon."""
        if self._ending:
            self._lasting = {
                study: tuple(name for name in names if name not in self._ending) for study, names in self.held.items()
            }
        self.wants = {member.study: self._wanted(member) for member in self.members}
        lacking = [self.wants[one.study] for one in self.members if self._lacks(one)]
        self.wants |= {
            one.study: self._in_place_of(one, lacking)
            for one in self.members
            if one.any_will_do and one.kind and not self._lacks(one)
        }

    def position(self, study: str) -> Position:
        """Where a study stands."""
        (member,) = [one for one in self.members if one.study == study]
        share, held, wants = self.shares[study], len(self.held[study]), self.wants[study]
        lent = max(0, held - len(self._closing[study]) - share)
        due = held - min(lent, max(0, held - share))
        ideal = self._ideals[study]
        if self._lacks(member) or member.whole:
            ideal = min(ideal, Fraction(due + len(wants)))
        return Position(self.capacity, share, ideal, lent, wants)

    def arbitrate(self) -> dict[str, Grant]:
        """By study: what it holds from now on."""
        promised = match_free(
            self.members, self._lasting, self.wants, self.shares, capacity=self.capacity, taken=self._taken
        )
        gains: dict[str, list[str]] = {}
        for name, study in promised.items():
            gains.setdefault(study, []).append(name)
        soon: dict[str, str] = {}
        if self._ending:
            then = {study: (*names, *gains.get(study, ())) for study, names in self._lasting.items()}
            wants = {study: tuple(filter(self._ending.__contains__, names)) for study, names in self.wants.items()}
            taken = (self._taken - self._ending).union(promised)
            soon = match_free(self.members, then, wants, self.shares, capacity=self.capacity, taken=taken)
        asked = self._asked(promised | soon)
        return {
            member.study: self._grant(member, gains.get(member.study, ()), asked[member.study])
            for member in self.members
        }

    def _grant(self, member: Member, gains: Iterable[str], asked: Iterable[tuple[Set[str], int]]) -> Grant:
        study, usable = member.study, self._usable[member.study]
        held = {*self.held[study], *gains}
        if member.whole:
            full = set(_whole(usable, held))
            held = {name for name in held if name in full or name in self.held[study]}
        places = {name: place for place, name in enumerate(usable)}
        closing: set[str] = set()
        instead: set[str] = set()
        for wanted, number in asked:
            choice = [
                name for name in self._lasting[study] if name in wanted and name in places and name not in closing
            ]
            choice.sort(key=lambda name: (name in self._closing[study], places[name]), reverse=True)
            closing.update(choice[:number])
            instead.update(choice[number:])
        closing.update(held.difference(places))
        if member.whole:
            kept = set(_whole(usable, held - closing))
            closing = held - kept
            instead &= kept
        return Grant(
            held=(*sorted(held), *self._unseen[study]),
            closing=tuple(sorted(closing)),
            instead=tuple(sorted(instead - closing)),
        )

    # What each wants.

    def _lacks(self, member: Member) -> bool:
        """Whether it could use more names than it holds and does not give back soon."""
        return member.demand + member.spare > len(self._lasting[member.study])

    def _wanted(self, member: Member) -> tuple[str, ...]:
        """Names that it lacks; none where it holds all that it could use.

        Of workers of several slots, those where others have the fewest slots come first, and no more than the study is
        due: else a slot here and a slot there would be free, and never a whole worker.
        """
        study = member.study
        if not self._lacks(member):
            return ()
        mine = set(self.held[study])
        if not member.whole:
            return tuple(name for name in self._usable[study] if name not in mine)
        workers = [slots for slots in _by_worker(self._usable[study]).values() if not mine.issuperset(slots)]
        if (size := max((len(slots) for slots in _by_worker(self._usable[study]).values()), default=1)) > 1:
            others = self._taken - mine
            workers.sort(key=lambda slots: len(others.intersection(slots)))
            workers = workers[: max(1, -(-(self.shares[study] - len(self._lasting[study])) // size))]
        return tuple(name for slots in workers for name in slots if name not in mine)

    def _in_place_of(self, member: Member, lacking: Iterable[Sequence[str]]) -> tuple[str, ...]:
        """Names that would do as well as those which a study holds, where somebody lacks some of these."""
        mine = set(self.held[member.study])
        if all(mine.isdisjoint(names) for names in lacking):
            return ()
        not_free = self._taken - (self._ending - mine)
        return tuple(itertools.islice((name for name in self._usable[member.study] if name not in not_free), len(mine)))

    # Who gives.

    def _asked(self, promised: Mapping[str, str]) -> dict[str, list[tuple[Set[str], int]]]:
        """By study, for each other one that it gives something up for: the names that will do, and how many.

        Args:
            promised: by name that is free, or will be soon: the study that gets it. It counts as held.
        """
        lasting = self._lasting
        gains = Counter(promised.values())
        held = {study: len(names) + gains[study] for study, names in lasting.items()}
        spare = set[str]().union(*self.wants.values()) - promised.keys() - (self._taken - self._ending)
        by_study = {member.study: member for member in self.members}
        holder = {name: by_study[study] for study, names in lasting.items() for name in names}
        asked: dict[str, list[tuple[Set[str], int]]] = {study: [] for study in held}
        for due in self.members:
            wants = self.wants[due.study]
            # what it gives up it has until the jobs there have ended: nothing would use another one meanwhile
            missing = min(self.shares[due.study] - len(lasting[due.study]) - gains[due.study], len(wants))
            if missing <= 0:
                continue
            # where the number of names is limited, a free one may be had once anybody gives up any
            is_limited = not spare.isdisjoint(wants)
            reached = {holder[name].study: holder[name] for name in wants if name in holder}
            givers = [one for one in (self.members if is_limited else reached.values()) if one is not due]
            over = [one for one in givers if held[one.study] > self.shares[one.study]]
            given = _take(
                over, missing, held, least=self.shares, rank=lambda one: (self.shares[one.study] - held[one.study],)
            )
            missing -= given.total()
            if missing and not is_limited:
                moved = self._move(givers, missing, held, spare)
                given += moved
                missing -= moved.total()
            if missing and due.waited >= self.patience and not is_limited:
                given += _take(
                    [
                        one
                        for one in givers
                        if gains[one.study] or (one.priority <= due.priority and one.waited < due.waited)
                    ],
                    missing,
                    held,
                    least={},
                    rank=lambda one: (not gains[one.study], -Fraction(held[one.study]) / as_written(one.weight)),
                )
            for study, number in given.items():
                asked[study].append((set(lasting[study] if is_limited else wants), number))
        return asked

    def _move(self, givers: Iterable[Member], most: int, held: dict[str, int], spare: set[str]) -> Counter[str]:
        """How many names each gives that takes others for them, which are spare no more."""
        given: Counter[str] = Counter()
        for one in sorted(givers, key=lambda one: one.study, reverse=True):
            others = [name for name in self.wants[one.study] if name in spare] if one.any_will_do else []
            number = min(most, held[one.study], len(others))
            spare.difference_update(others[:number])
            held[one.study] -= number
            given[one.study] += number
            most -= number
        return given


def longest_asking(mine: Member, others: Iterable[Member], held: int, position: Position) -> str | None:
    """The study for which ``mine``, which holds more than its share, should end a job; None: none.

    Which job it ends follows from the names that it is to give back.
    """
    asking = [other for other in others if other.asks]
    if held <= position.share or not asking:
        return None
    return max(asking, key=lambda other: (other.waited, other.study)).study


def _by_worker(names: Iterable[str]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for name in names:
        found.setdefault(worker_of(name), []).append(name)
    return found


def _whole(usable: Iterable[str], names: Collection[str]) -> list[str]:
    """Names of the workers whose usable slots are all among ``names``."""
    return [name for slots in _by_worker(usable).values() if set(slots) <= set(names) for name in slots]


def _take(
    givers: Iterable[Member],
    most: int,
    held: dict[str, int],
    *,
    least: Mapping[str, int],
    rank: Callable[[Member], tuple[Number, ...]],
) -> Counter[str]:
    """How many names each gives, one at a time: who ranks lowest then, and the last by name between equals.

    Args:
        givers: those that may give.
        most: names in all.
        held: number of names of each; becomes less.
        least: number of names that each keeps; none where it is not in it.
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


def match_free(
    members: Sequence[Member],
    held: Mapping[str, Sequence[str]],
    wants: Mapping[str, Sequence[str]],
    shares: Mapping[str, int],
    *,
    capacity: int | None = None,
    taken: Collection[str] = (),
) -> dict[str, str]:
    """By free name: the study that gets it. No other choice serves more of those who are due, or earlier ones.

    First each member, in the given order, gets what it is due, as far as its wants allow. Who was served moves to
    another name that it wants, where one that comes later needs its name (augmenting paths). What is left goes one by
    one to those who can use more than they are due: higher priorities first, then who has least for its weight. The
    work grows with the number of names, not with its square.

    Args:
        members: who goes first comes first.
        held: by study: names that it has.
        wants: by study: names that it could use beside them.
        shares: by study: number of names that it is due.
        capacity: number of names that all may hold together; None: as many as there are.
        taken: names that are not free.
    """
    matching = _Matching([[name for name in wants[member.study] if name not in taken] for member in members])
    left = len(matching.free) if capacity is None else max(0, capacity - len(taken))
    count = [len(held[member.study]) for member in members]
    for place, member in enumerate(members):
        while count[place] < shares[member.study] and left and matching.serve(place):
            count[place] += 1
            left -= 1
    exact = [Fraction(as_written(member.weight)) for member in members]
    scale = math.lcm(*(weight.denominator for weight in exact))
    weights = [int(weight * scale) for weight in exact]  # so that equal quotients are equal floats
    least_first = [
        (-member.priority, count[place] / weights[place], member.study, place) for place, member in enumerate(members)
    ]
    heapq.heapify(least_first)
    while left and least_first:
        priority, _, study, place = heapq.heappop(least_first)
        if count[place] < members[place].demand + members[place].spare and matching.serve(place):
            count[place] += 1
            left -= 1
            heapq.heappush(least_first, (priority, count[place] / weights[place], study, place))
    return {name: members[place].study for name, place in matching.owner.items()}


class _Matching:
    """Names to studies, these by their places; who has one keeps as many.

    Args:
        wanted: by study: free names that it wants, preferred ones first.
    """

    def __init__(self, wanted: Sequence[Sequence[str]]) -> None:
        self.free = set[str]().union(*wanted)
        self.owner: dict[str, int] = {}
        self._wanted = wanted
        self._left = [iter(names) for names in wanted]
        """By study: what it wants, but for names that are matched, and stay so."""
        self._wanters: dict[str, list[int]] | None = None
        """By device: the studies that want it. Made once a study is to move to another device; most never do."""
        self._owned: list[dict[int, list[str]]] = [{} for _ in wanted]
        """By study and owner: devices of the owner that the study wants, some of which may have moved since."""

    def serve(self, study: int) -> bool:
        """Match one more device to a study; others may move to another one for it."""
        if (found := self._unmatched(study)) is not None:
            self._give(found, study)
            return True
        if len(self.owner) == len(self.free):
            return False
        if self._wanters is None:
            self._wanters = {}
            for place, names in enumerate(self._wanted):
                for name in names:
                    self._wanters.setdefault(name, []).append(place)
            for name, owner in self.owner.items():
                self._note(name, owner, self._wanters[name])
        came_from: dict[int, tuple[int, str]] = {}  # by study: whose place it would take, and on which device
        seen = {study}
        queue = deque([study])
        while queue:
            one = queue.popleft()
            found = self._unmatched(one)
            if found is not None:
                self._move(one, found, came_from)
                return True
            for owner in sorted(self._owned[one].keys() - seen):
                if (device := self._device_of(owner, one)) is not None:
                    seen.add(owner)
                    came_from[owner] = (one, device)
                    queue.append(owner)
        return False

    def _unmatched(self, study: int) -> str | None:
        """The next name that it wants and nobody has; whoever asks has it given to somebody."""
        return next((name for name in self._left[study] if name not in self.owner), None)

    def _device_of(self, owner: int, study: int) -> str | None:
        """One that the owner has and the study wants."""
        names = self._owned[study][owner]
        while names:
            if self.owner[names[-1]] == owner:
                return names[-1]
            names.pop()
        del self._owned[study][owner]
        return None

    def _give(self, name: str, study: int) -> None:
        self.owner[name] = study
        if self._wanters is not None:
            self._note(name, study, self._wanters[name])

    def _note(self, name: str, owner: int, wanters: Sequence[int]) -> None:
        for study in wanters:
            self._owned[study].setdefault(owner, []).append(name)

    def _move(self, study: int, found: str, came_from: Mapping[int, tuple[int, str]]) -> None:
        while True:
            self._give(found, study)
            if study not in came_from:
                return
            study, found = came_from[study]
