"""AttemptJudge: what the end of an attempt says of its need, and who is to blame for it."""

from __future__ import annotations

import msgspec

from hpo_core.model.devices.inventory import Portion
from hpo_core.model.devices.memory_words import memory_words
from hpo_core.model.devices.usage import Usage
from hpo_core.model.trial import Outcome, Report
from hpo_core.placement.job_needs import JobNeeds
from hpo_core.placement.packing.need import WHOLE
from hpo_core.placement.running_jobs import RunningJob, RunningJobs
from hpo_core.placement.shared_room import SharedRoom

BLAME_SECONDS = 1.0
"""Attempts that die beside one that ran out of memory, within this time of it, are not to blame."""
FAIR = 0.9
"""Share of a device's memory that counts as the device: a job that runs out of so much alone needs a larger one."""
MOST_BLAMELESS = 3
"""How often that is said of one trial: one that dies whoever is beside it must not be trained for ever."""
_MAY_BE_COLLATERAL = {Outcome.CRASHED, Outcome.ERROR, Outcome.OUT_OF_MEMORY}


class AttemptJudge:
    """Learns from attempts that end; a neighbour of one that ran out of memory is not blamed.

    Args:
        needs: of the study's jobs, which learn.
        running: the jobs that run, with those that are judged.
        room: the devices that are there.
    """

    def __init__(self, needs: JobNeeds, running: RunningJobs, room: SharedRoom) -> None:
        self._needs = needs
        self._running = running
        self._room = room
        self._blameless: dict[int, int] = {}
        self._last_out_of_memory: dict[str, Report] = {}
        """By device: of the attempt that ran out of memory there last."""

    def judge(self, report: Report) -> Report:
        """What the study is told of how an attempt ended."""
        held = self._running.get((report.trial, report.attempt))
        if held is None:
            return report
        share = held.portion
        measured = report.usage if isinstance(report.usage, Usage) else Usage()
        usage = msgspec.structs.replace(
            measured,
            device=share.device,
            architecture=share.architecture,
            share=(held.need.compute, held.need.memory, held.need.cores),  # smaller by now where it began as a guess
        )
        usage, beside = self._running.neighbours.judge(report, usage)
        if share.alone:  # it claimed all of the device, so that nobody is beside it
            usage = msgspec.structs.replace(usage, load=None)
        report = msgspec.structs.replace(report, usage=usage)
        if report.outcome is not Outcome.OUT_OF_MEMORY:  # what it used then is not what it needs
            self._needs.estimates.learn(
                self._needs.parameters(held.job),
                self._uncontended(held, usage),
                at=report.ended,
                architecture=share.architecture,
                beside=[(self._needs.parameters(job), permille) for job, permille in beside],
            )
        if self._is_collateral(report, share, usage):
            self._blameless[report.trial] = self._blameless.get(report.trial, 0) + 1
            return msgspec.structs.replace(
                report,
                outcome=Outcome.PREEMPTED,
                message=f"Another job on {share.device} ran out of memory in the same second, and this one ended "
                f"with: {report.message}",
            )
        if report.outcome is Outcome.OUT_OF_MEMORY:
            return self._judge_out_of_memory(report, held, usage)
        if report.outcome in (Outcome.COMPLETED, Outcome.DIVERGED):
            self._needs.alone.discard(report.trial)
        return report

    def is_doubtful(self, report: Report) -> bool:
        """Whether a neighbour, whose report is on its way, may be why this attempt failed."""
        held = self._running.get((report.trial, report.attempt))
        if held is None or held.portion.alone:
            return False
        usage = report.usage if isinstance(report.usage, Usage) else Usage()
        return bool(self._running.beside(held)) and self._may_be_collateral(report, held.portion, usage)

    def _judge_out_of_memory(self, report: Report, held: RunningJob, usage: Usage) -> Report:
        """Its key gets more; it is tried again alone, or once others leave more of the device."""
        share, device = held.portion, self._room.device(held.portion.device)
        whole = share.capacity if device is None else device.memory
        used = (usage.device_memory if share.gpu else usage.memory) or 0
        self._needs.estimates.raise_after_out_of_memory(
            self._needs.parameters(held.job), share.architecture, had=share.allowed, at=report.ended, measured=used
        )
        self._last_out_of_memory[share.device] = report
        had_all_that_others_left = share.allowed >= share.capacity and share.capacity < FAIR * whole
        if had_all_that_others_left:
            words = f"Others used {memory_words(whole - share.capacity)} of {share.device}. It waits for more"
            message = f"{words}. {report.message}"
            return msgspec.structs.replace(report, outcome=Outcome.PREEMPTED, message=message)
        self._needs.alone.add(report.trial)
        return report

    def _uncontended(self, held: RunningJob, usage: Usage) -> Usage:
        """What an attempt would use if it did not have to wait for others, as far as that is known.

        Where jobs claim more compute than there is, each gets less than it would use. Were that learned, the next ones
        would be placed by it: still more of them, each of which gets still less.
        """
        device = self._room.device(held.slot.name)
        if device is None or held.portion.alone or held.is_guess:
            return usage
        if usage.load is not None and usage.load <= WHOLE:
            return usage
        together = [held, *self._running.beside(held)]
        if sum(self._needs.estimate(one.job, device).need.compute for one in together) <= WHOLE:
            return usage
        known = self._needs.estimate(held.job, device).need
        compute = None if usage.compute is None else max(usage.compute, known.compute / WHOLE)
        cores = usage.cores if held.portion.gpu else max(usage.cores, known.cores / WHOLE)
        return msgspec.structs.replace(usage, compute=compute, cores=cores)

    def _is_collateral(self, report: Report, share: Portion, usage: Usage) -> bool:
        other = self._last_out_of_memory.get(share.device)
        if other is None or other.trial == report.trial or abs(report.ended - other.ended) > BLAME_SECONDS:
            return False
        if report.started >= other.ended or other.started >= report.ended:  # one after the other
            return False
        enough = self._blameless.get(report.trial, 0) >= MOST_BLAMELESS
        return not enough and self._may_be_collateral(report, share, usage)

    @staticmethod
    def _may_be_collateral(report: Report, share: Portion, usage: Usage) -> bool:
        """Whether somebody else's memory may be why it died."""
        if report.outcome not in _MAY_BE_COLLATERAL or share.alone:
            return False
        if report.outcome is Outcome.ERROR and not (share.gpu and "CUDA" in report.message):
            return False
        return ((usage.device_memory if share.gpu else usage.memory) or 0) <= share.memory
