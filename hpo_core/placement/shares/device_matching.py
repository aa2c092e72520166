"""Free devices of a pool, matched to the studies that want them. Pure.

Rows of a pool may name thousands of devices each, and are read while other studies wait: the work grows with the
number of names, not with its square.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Collection, Mapping, Sequence
from fractions import Fraction

from hpo_core.model.arithmetic import as_written
from hpo_core.model.devices.pool_member import Member


def match_free(
    members: Sequence[Member],
    shares: Mapping[str, int],
    *,
    capacity: int | None = None,
    closed: Collection[str] = (),
) -> dict[str, str]:
    """By free device: the study that gets it. No other choice serves more of those who are due, or earlier ones.

    First each member, in the given order, gets what it is due, as far as its wants allow. Who was served moves to
    another device that it wants, where one that comes later needs its device (augmenting paths). What is left goes one
    by one to those who can use more than they are due: higher priorities first, then who has least for its weight.

    Args:
        members: who goes first comes first.
        shares: devices that each is due.
        capacity: devices that all may hold together; None: as many as there are.
        closed: devices that are not free, though no member has them.
    """
    taken = {name for member in members for name in member.devices}.union(closed)
    matching = _Matching([[name for name in member.wants if name not in taken] for member in members])
    left = len(matching.free) if capacity is None else max(0, capacity - len(taken))
    count = [len(member.devices) for member in members]
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
        if count[place] < members[place].demand and matching.serve(place):
            count[place] += 1
            left -= 1
            heapq.heappush(least_first, (priority, count[place] / weights[place], study, place))
    return {name: members[place].study for name, place in matching.owner.items()}


class _Matching:
    """Devices to studies, these by their places; who has one keeps as many.

    Args:
        wanted: by study: free devices that it wants, preferred ones first.
    """

    def __init__(self, wanted: Sequence[Sequence[str]]) -> None:
        self.free = {name for names in wanted for name in names}
        self.owner: dict[str, int] = {}
        self._wanted = wanted
        self._next = [0] * len(wanted)
        """By study: the devices before this place in its wants are matched; they stay so."""
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
        wanted = self._wanted[study]
        place = self._next[study]
        while place < len(wanted) and wanted[place] in self.owner:
            place += 1
        self._next[study] = place
        return wanted[place] if place < len(wanted) else None

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
