"""In which order a configuration visits partitions, where a record or a caller says so; what is refused there."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

OrdersByEpoch = Mapping[int, Sequence[int | Sequence[int]]]
"""By epoch: places of partitions in their order; those that were seen together are a sequence within it."""


class RecordedOrders:
    """By epoch: the partitions in the order in which they have to be visited, and which of them together.

    >>> orders = RecordedOrders({3: [0, [2, 1]]})
    >>> orders.of(3), orders.gang(3, 0), orders.gang(3, 1), orders.of(4)
    ((0, 2, 1), (), (2, 1), None)
    """

    __slots__ = ("_orders", "_ranks")

    def __init__(self, orders: OrdersByEpoch | None = None) -> None:
        self._orders: dict[int, tuple[int, ...]] = {}
        self._ranks: dict[int, dict[int, int]] = {}
        """By epoch: ranks of its gang units, by the number of visits before them."""
        for epoch, order in (orders or {}).items():
            found: list[int] = []
            for step in order:
                together = [step] if isinstance(step, int) else list(step)
                if len(together) > 1:
                    self._ranks.setdefault(epoch, {})[len(found)] = len(together)
                found += together
            self._orders[epoch] = tuple(found)

    @property
    def has_gangs(self) -> bool:
        """Whether some partitions are seen together."""
        return bool(self._ranks)

    def of(self, epoch: int) -> tuple[int, ...] | None:
        """The order of an epoch; None: any."""
        return self._orders.get(epoch)

    def gang(self, epoch: int, behind: int) -> tuple[int, ...]:
        """Partitions that are seen together after so many visits; empty where the next unit has one rank."""
        ranks = self._ranks.get(epoch, {}).get(behind, 1)
        return self._orders[epoch][behind : behind + ranks] if ranks > 1 else ()

    def check(self, configuration: int, partitions: range, *, epoch: int, visited: Sequence[int]) -> None:
        """Raise where the configuration cannot follow them.

        Args:
            partitions: all that are trained on.
            epoch: the one under way.
            visited: partitions that it has behind it there.

        Raises:
            ValueError: an order does not visit each partition once, or not those visited first.
        """
        for each, order in self._orders.items():
            if sorted(order) != list(partitions):
                raise ValueError(
                    f"HopSchedule.add(): the order {list(order)} of configuration {configuration} in epoch {each} "
                    f"must visit each of {len(partitions)} partitions once."
                )
            if each == epoch and list(order[: len(visited)]) != list(visited):
                raise ValueError(
                    f"HopSchedule.add(): configuration {configuration} visited {list(visited)} in epoch {each}; the "
                    f"order {list(order)} must begin with that."
                )


ANY_ORDER = RecordedOrders()
"""Of a configuration that visits partitions in whatever order suits the schedule."""


def check_visited(visited: Sequence[int], partitions: Collection[int]) -> None:
    """Raise ValueError where these are not some of the partitions, each once, with at least one left."""
    if len(set(visited)) < len(visited) or len(visited) >= len(partitions) or not set(visited) <= set(partitions):
        raise ValueError(
            f"HopSchedule.add(): visited = {list(visited)} must name some of {len(partitions)} partitions, by "
            "their places from 0, each at most once, and leave at least one."
        )
