"""The seam between hop policies and the schedule."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from hpo_core.hopper.board import Board, HopWorker, Waiting


class HopPolicy(Protocol):
    """Chooses which unit an idle worker starts. It never waits, does IO or changes what it is shown."""

    def in_turn(self, idle: list[HopWorker], board: Board) -> Sequence[HopWorker]:
        """The same workers, the one that chooses first in front.

        Args:
            idle: at least two, in the order in which they joined.
        """
        ...

    def choose(self, worker: HopWorker, waiting: Sequence[Waiting], board: Board) -> tuple[int, int] | None:
        """Place in ``waiting`` of the configuration that the worker starts, and its partition.

        None only where no waiting configuration has an open partition on this worker: no worker stays idle on purpose.

        Args:
            waiting: configurations without a unit in flight, the one with the most remaining work first. Those that
                cannot have work for this worker may be left out.
        """
        ...
