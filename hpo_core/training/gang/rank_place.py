"""RankPlace: which rank of a gang a process is, and where it meets the others."""

from __future__ import annotations

import msgspec


class RankPlace(msgspec.Struct, frozen=True, kw_only=True):
    """One rank of a gang."""

    rank: int
    size: int
    """Ranks of the gang."""
    local_rank: int
    """Among the ranks on its computer, from 0."""
    local_size: int
    """Ranks on its computer."""
    store: str
    """Path of the file through which the ranks find each other: in a private folder that each of them reaches."""

    @property
    def one_node(self) -> bool:
        """Whether all ranks are on one computer, so that nothing need be heard outside of it."""
        return self.local_size == self.size
