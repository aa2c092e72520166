"""What a hopping study asks of the place where its units run."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Protocol

from hpo_core.execution.executor import Executor
from hpo_core.model.errors import HpoError

UsefulWorkers = Callable[[Mapping[str, Iterable[str]]], list[str]]
"""Given the partitions of each worker, says which workers have work for a study now, the most useful first."""


class UnitExecutor(Executor, Protocol):
    """An executor whose inventory has a device for each worker, and that knows which partitions lie there.

    A job runs on the worker that its slot names, or is lost.
    """

    def holdings(self) -> Mapping[str, Iterable[str]]:
        """Names of the partitions that jobs of each device can read, by its name."""
        ...

    def announcing(self) -> bool:
        """Whether a worker is there that has not said yet what it holds, or reads a partition again: it may have to
        compute digests first."""
        ...

    def problems(self) -> Mapping[str, str]:
        """Sentences that say why a partition on a worker does not count, by its name."""
        ...


class WorkerPool(Protocol):
    """Workers that several studies share: an executor of units that lets them run on those that the study holds.

    A unit that is ended, or not begun, because another study has its worker is reported PREEMPTED.
    """

    def prefer(self, useful: UsefulWorkers) -> None:
        """Ask ``useful`` from now on which workers have work for the study."""
        ...

    def elsewhere(self) -> Collection[str]:
        """Names of partitions on workers that the study does not hold now: they are not missing."""
        ...

    def workers_due(self) -> int:
        """Workers that the study's share gives it, whichever it holds now."""
        ...


MISSING_SECONDS = 60.0
"""How long a partition that some model needs may lie on no worker before the study stops.

Not counted while some worker has not said what it holds, or reads one again, for as long as reading all may take.
"""
REASONS = 3
"""Maximum number of missing partitions explained in the error."""


class PartitionsMissingError(HpoError):
    """A partition lies on no worker."""


class MissingPartitions:
    """Since when which partitions have been missing.

    Args:
        study: its name.
        longest_look: seconds that a worker may take to say which partitions it holds.
    """

    def __init__(self, study: str, longest_look: float) -> None:
        self._study = study
        self._longest_look = longest_look
        self._since: dict[str, tuple[float, float]] = {}
        """Since when a partition lies on no worker, and since when no worker might still announce it, by its name."""
        self._useless = ""

    def give_up(self, name: str, why: str) -> None:
        """Have the study stop for a partition that is found to be right again and again, and that no unit can use.

        Args:
            why: the last unit was lost.
        """
        self._useless = (
            f"Partition {name} of study {self._study!r} failed again and again while models trained on it, and was in "
            f"its place each time that it was looked at: {why} Nothing recorded is lost: look at the disk or the mount "
            f"that it lies on, and that the training function does not write to it, then `hpo resume {self._study}`."
        )

    def check(self, halted: Sequence[str], units: UnitExecutor) -> None:
        """Note which are missing now.

        Args:
            halted: partitions that models wait for and that lie on no worker.
            units: knows which workers are there.

        Raises:
            PartitionsMissingError: one has been missing for a minute, or was given up.
        """
        if self._useless:
            raise PartitionsMissingError(self._useless)
        now = units.now()
        self._since = {name: self._since.get(name, (now, now)) for name in halted}
        if halted and units.announcing():
            for partition, (began, _) in self._since.items():
                if now < began + self._longest_look:
                    self._since[partition] = began, now
        late = [name for name in halted if now - self._since[name][1] >= MISSING_SECONDS]
        if late:
            problems = units.problems()
            why = "".join(f" {problems[name]}" for name in late[:REASONS] if name in problems)
            raise PartitionsMissingError(
                f"Partition{'s' * (len(late) > 1)} {', '.join(late)} of study {self._study!r} ha"
                f"{'ve' if len(late) > 1 else 's'} been on no worker for {MISSING_SECONDS:.0f} s, and models wait for "
                f"that.{why} Nothing recorded is lost: start a worker that holds "
                f"{'them' if len(late) > 1 else 'it'} (data.folder, or HPO_PARTITION_FOLDER on the worker), or put "
                f"{'them' if len(late) > 1 else 'it'} back, then "
                f"`hpo resume {self._study}`."
            )
