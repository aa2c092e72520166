"""Meter: measures one attempt from outside, in the zygote, while its child runs."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterable

from hpo_core.model.devices.share import Share
from hpo_core.model.devices.usage import Usage
from hpo_core.training.resources.own_figures import FIRST_SECONDS, OwnFigures
from hpo_core.training.resources.proc_files import anonymous, pages, resident
from hpo_core.training.resources.process_tree import ProcessTree

MOST_SECONDS = 1.0
"""Between two looks."""
WATCHED_SECONDS = 0.25
"""Between two looks at an attempt whose memory is limited."""
_COST = 0.01
"""Share of the time that may go into looking; large memory is looked at less often."""
_COST_IN_DOUBT = 0.1
"""The same while the attempt may exceed its share, which many processes that share memory seem to do."""
_SHORT_SECONDS = 0.1
"""Training of less time than this says nothing about its cores; the whole attempt counts then."""
_FEW_LOOKS = 2
"""After so few, in half a second, the peak may not have been seen: then what the kernel says at the end counts."""
TOLERANCE = 1.1
"""An attempt may exceed its share of the memory by 10 % before it is ended."""


class Meter:
    """Samples the processes of one attempt; what it took is a :class:`~hpo_core.model.devices.usage.Usage`.

    Memory: what the computer would have free again if the attempt ended. Anonymous and shared memory of its whole
    process tree, in which a page that several processes share counts once. What the zygote holds as well does not
    count, until the attempt writes to it. Files that it maps do not count; only for an attempt that was over after half
    a second, those that it had mapped and closed again may, for the kernel's own peak includes them.
    Where the kernel does not tell what is shared, the child's growth since its fork counts, and the processes that it
    starts count whole.
    """

    def __init__(self, share: Share | None, figures: OwnFigures, tree: ProcessTree) -> None:
        """Call it right before the fork.

        Args:
            share: what the attempt was given; None: its worker.
            figures: what the child tells.
            tree: the processes of the attempt, once there are some.
        """
        self.next_at = time.monotonic() + FIRST_SECONDS
        self.memory = 0
        """Peak of what was seen so far."""
        self.share = share
        self._figures = figures
        self._tree = tree
        self._started = time.monotonic()
        self._interval = FIRST_SECONDS
        self._exact_at = self._doubt_at = 0.0
        self._cpu = 0.0
        self._looks = 0
        self._profiled = False
        self._measured: Usage | None = None

    @property
    def limit(self) -> int | None:
        """Bytes of the computer's memory beyond which the attempt is ended; None: no limit."""
        share = self.share
        if share is None or share.gpu:
            return None
        return int(TOLERANCE * share.allowed)

    def lower(self, memory: int) -> None:
        """The attempt may take so many bytes from now on, if that is less than its share; what it took, it keeps."""
        if self.share is not None:
            kept = 0 if self.share.gpu else self.memory
            self.share = self.share.lowered(max(memory, kept))

    def sample(self) -> None:
        """Look at all processes of the attempt once, and say when to look again."""
        self._figures.read()
        self._profiled = self._figures.profiled  # before the look: it must show what the profile took
        now, began = time.monotonic(), time.thread_time()  # the time in which others ran is no cost
        processes = self._tree.descendants()
        self._cpu = max(self._cpu, sum(one.cpu for one in processes.values()))
        self.memory = max(self.memory, self._lower(processes))
        self._looks += 1
        limit, listed = self.limit, time.thread_time()
        doubtful = limit is not None and now >= self._doubt_at and self._upper(processes) > limit
        if doubtful or now >= self._exact_at or (self._profiled and self._measured is None):
            self.memory = max(self.memory, self._memory(processes))
            spent = time.thread_time() - listed
            self._exact_at, self._doubt_at = now + spent / _COST, now + spent / _COST_IN_DOUBT
        self._interval = min(1.5 * self._interval, MOST_SECONDS if limit is None else WATCHED_SECONDS)
        self.next_at = now + max(self._interval, (listed - began) / _COST)

    def news(self, units: int) -> Usage | None:
        """What is known of a running attempt, if its profile is complete and this is more than was said before."""
        if not self._profiled:
            return None
        usage, before = self.usage(time.monotonic(), units=units), self._measured
        if before is not None and not _is_more(usage, before):
            return None
        self._measured = usage
        return usage

    def usage(self, now: float, *, cpu: float = 0.0, units: int = 0) -> Usage:
        """What the attempt used from its start until ``now`` (monotonic).

        Args:
            cpu: processor seconds of the child and of what it waited for, where it has ended.
            units: how many it has done; where it has no loop over ``trial.steps()``, in all its time.
        """
        figures, share = self._figures, self.share
        figures.read()
        cpu = max(cpu, self._cpu)
        seconds, spent = now - self._started, cpu
        mark, spent_before = figures.mark
        if mark and now - mark >= _SHORT_SECONDS and cpu > spent_before:
            seconds, spent = now - mark, cpu - spent_before
        trained = figures.unit_ended - figures.began if figures.began else now - self._started
        peak = figures.peak if self._looks <= _FEW_LOOKS else figures.memory
        return Usage(
            memory=max(self.memory, figures.memory, peak),
            cores=round(min(spent / max(seconds, 1e-6), float(os.cpu_count() or 1)), 3),
            startup_seconds=round(max(0.0, figures.began - self._started), 6) if figures.began else 0.0,
            unit_seconds=round(max(0.0, trained) / units, 9) if units else 0.0,
            device_memory=figures.device_memory or None,
            architecture="" if share is None else share.architecture,
            device="" if share is None else share.device,
            share=None if share is None else share.amounts,
        )

    def _lower(self, processes: Iterable[int]) -> int:
        """Less than the attempt holds, known at little cost: a large peak between two exact looks is seen."""
        largest = 0
        for pid in processes:
            with contextlib.suppress(OSError, ValueError):  # it ended meanwhile
                largest = max(largest, anonymous(pid))
        return largest - anonymous("self")

    def _upper(self, processes: Iterable[int]) -> int:
        """More than the attempt can hold, known at little cost: what processes share counts for each of them."""
        held = 0
        for pid in processes:
            with contextlib.suppress(OSError, ValueError):  # it ended meanwhile
                held += resident(pid)
        return max(0, held - resident("self"))

    def _memory(self, processes: Iterable[int]) -> int:
        try:
            own = pages("self")
        except OSError:  # a kernel that has no such file
            own = None
        if own is None:
            return self._upper(processes)
        held = 0
        for pid in processes:
            try:
                part = pages(pid)
            except (OSError, ValueError):  # ended meanwhile, or another user's by now
                continue
            held += 0 if part is None else part.proportional
        # what all others take of the zygote's pages is what the zygote's proportional size lacks
        return max(0, held - (own.held - own.proportional))


def _is_more(usage: Usage, before: Usage) -> bool:
    """Whether a peak grew, or something became known."""
    return (
        usage.memory > before.memory
        or (usage.device_memory or 0) > (before.device_memory or 0)
        or bool(usage.unit_seconds) > bool(before.unit_seconds)
    )
