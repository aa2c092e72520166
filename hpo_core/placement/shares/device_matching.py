"""Free devices of a pool, matched to the studies that want them. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence

from hpo_core.model.devices.pool_member import Member


def match_free(members: Sequence[Member], shares: Mapping[str, int], *, capacity: int | None = None) -> dict[str, str]:
    """By free device: the study that gets it. No other choice serves more of those who are due, or earlier ones.

    First each member, in the given order, gets what it is due, as far as its wants allow. Who was served moves to
    another device that it wants, where one that comes later needs its device (augmenting paths). What is left goes one
    by one to those who can use more than they are due: higher priorities first, then who has least for its weight.

    Args:
        members: who goes first comes first.
        shares: devices that each is due.
        capacity: devices that all may hold together; None: as many as there are.
    """
    taken = {name for member in members for name in member.devices}
    matching = _Matching(members, taken)
    left = len(matching.free) if capacity is None else max(0, capacity - len(taken))
    count = {member.study: len(member.devices) for member in members}
    for member in members:
        while count[member.study] < shares[member.study] and left and matching.serve(member.study):
            count[member.study] += 1
            left -= 1
    open_members = list(members)
    while left and open_members:
        more = min(open_members, key=lambda one: (-one.priority, count[one.study] / one.weight, one.study))
        if count[more.study] < more.demand and matching.serve(more.study):
            count[more.study] += 1
            left -= 1
        else:
            open_members.remove(more)
    return matching.owner


class _Matching:
    """Devices to studies; who has one keeps as many."""

    def __init__(self, members: Sequence[Member], taken: set[str]) -> None:
        wanted = {member.study: [name for name in member.wants if name not in taken] for member in members}
        self.free = {name for names in wanted.values() for name in names}
        self.owner: dict[str, str] = {}
        self._wanted = wanted
        self._next = dict.fromkeys(wanted, 0)
        """By study: the devices before this place in its wants are matched; they stay so."""

    def serve(self, study: str) -> bool:
        """Match one more device to a study; others may move to another one for it."""
        came_from: dict[str, tuple[str, str]] = {}  # by study: whose place it would take, and on which device
        seen = {study}
        queue = deque([study])
        while queue:
            one = queue.popleft()
            found = self._unmatched(one)
            if found is not None:
                self._move(one, found, came_from)
                return True
            for name in self._wanted[one]:
                owner = self.owner[name]
                if owner not in seen:
                    seen.add(owner)
                    came_from[owner] = (one, name)
                    queue.append(owner)
        return False

    def _unmatched(self, study: str) -> str | None:
        wanted = self._wanted[study]
        place = self._next[study]
        while place < len(wanted) and wanted[place] in self.owner:
            place += 1
        self._next[study] = place
        return wanted[place] if place < len(wanted) else None

    def _move(self, study: str, found: str, came_from: Mapping[str, tuple[str, str]]) -> None:
        while True:
            self.owner[found] = study
            if study not in came_from:
                return
            study, found = came_from[study]
