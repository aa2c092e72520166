"""The jobs that run on shared devices: what each holds, and what it gives back once it is measured."""

from __future__ import annotations

import math
from collections.abc import Iterator

import msgspec

from hpo_core.model.devices.inventory import Demand, Portion, Slot
from hpo_core.model.devices.memory_words import memory_words
from hpo_core.model.devices.usage import Usage
from hpo_core.model.events import JobPlaced
from hpo_core.model.trial import Job, JobKey, Outcome, Report
from hpo_core.placement.packing.room import WHOLE, Room
from hpo_core.placement.shared_room import JobNeeds, SharedRoom


class HeldJob(msgspec.Struct, frozen=True):
    """What a running job holds."""

    job: Job
    slot: Slot
    need: Demand
    is_guess: bool
    """Whether it was placed before its need was known."""
    began: float
    """Seconds of the study's clock; 0: not known."""
    ended: float = math.inf
    """As its report says."""
    usage: Usage | None = None
    """What it was seen to use so far."""

    @property
    def portion(self) -> Portion:
        """As it was given when it began."""
        assert self.slot.portion is not None
        return self.slot.portion


class RunningJobs:
    """Jobs and their shares, which shrink to what jobs are measured to need.

    Args:
        needs: of the study's jobs.
        room: the devices that are there.
    """

    def __init__(self, needs: JobNeeds, room: SharedRoom) -> None:
        self._needs = needs
        self._room = room
        self._held: dict[JobKey, HeldJob] = {}
        self._ended: list[HeldJob] = []
        """Jobs that ended while one ran that is still there."""
        self._new: dict[JobKey, JobPlaced] = {}
        """Placements that nobody asked for yet."""

    def __len__(self) -> int:
        return len(self._held)

    def __iter__(self) -> Iterator[HeldJob]:
        return iter(self._held.values())

    def get(self, key: JobKey) -> HeldJob | None:
        """None where it does not run here."""
        return self._held.get(key)

    def beside(self, held: HeldJob) -> list[HeldJob]:
        """The other jobs on its device."""
        return [other for other in self if other.slot.name == held.slot.name and other is not held]

    def free_number(self, device: str) -> int:
        """The smallest number that no job on a device has."""
        used = {held.slot.number for held in self if held.slot.name == device}
        return next(number for number in range(len(used) + 1) if number not in used)

    def begin(self, job: Job, slot: Slot, need: Demand, *, is_guess: bool, now: float | None) -> None:
        """A job begins with this share; one that is a guess is being measured."""
        held = HeldJob(job, slot, need, is_guess, 0.0 if now is None else now)
        self._held[job.key] = held
        self._note(held, held.portion.memory)
        if is_guess:
            self._needs.estimates.profile_begins(self._needs.parameters(job), held.portion.architecture)

    def end(self, key: JobKey) -> bool:
        """It ended; returns whether it held anything."""
        held = self._held.pop(key, None)
        self._new.pop(key, None)
        if held is not None and held.is_guess:
            self._needs.estimates.profile_ends(self._needs.parameters(held.job), held.portion.architecture)
        if held is not None and held.ended < math.inf:
            self._ended.append(held)
        since: dict[str, float] = {}
        for one in self:
            since[one.slot.name] = min(since.get(one.slot.name, math.inf), one.began)
        self._ended = [one for one in self._ended if one.ended > since.get(one.slot.name, math.inf)]
        return held is not None

    def with_load(self, report: Report, usage: Usage) -> Usage:
        """The usage of an attempt that ended, with what was on its device while it trained.

        Nothing is said of an attempt whose times are not known, nor of one that had its device to itself on purpose.
        """
        key = report.trial, report.attempt
        held = self._held[key]
        if not report.ended > report.started > 0:
            return usage
        self._held[key] = msgspec.structs.replace(held, began=report.started, ended=report.ended)
        begin, end = report.started + usage.startup_seconds, report.ended
        if not end > begin or held.portion.alone:
            return usage
        load, jobs = float(held.need.compute), 1.0
        for one in (*self._ended, *self):
            if one.slot.name == held.slot.name and one.job.key != key:
                part = max(0.0, min(one.ended, end) - max(one.began, begin)) / (end - begin)
                load, jobs = load + part * one.need.compute, jobs + part
        return msgspec.structs.replace(usage, load=round(load), jobs=round(jobs, 3))

    def left_of(self, empty: Room) -> Room:
        """The room that running jobs leave."""
        room = empty.copy()
        places = {device.name: place for place, device in enumerate(empty.devices)}
        for held in self:
            if (place := places.get(held.slot.name)) is not None:
                room.take(held.need, place)
            else:  # it is to be given back, or is gone: of its computer the job still has the cores
                room.take_cores(held.need.cores, self._room.node_of(held.slot.name))
        return room

    def see(self, key: JobKey, usage: Usage) -> int | None:
        """A running attempt was measured: it holds what it needs from now on, instead of what was guessed.

        Returns:
            The bytes that it may use from now on, where these are fewer than before.
        """
        held = self._held.get(key)
        if held is None:
            return None
        held = self._held[key] = msgspec.structs.replace(held, usage=usage)
        share, estimates = held.portion, self._needs.estimates
        measured = (usage.device_memory if share.gpu else usage.memory) or 0
        params = self._needs.parameters(held.job)
        if held.is_guess and not share.alone and estimates.observe(params, usage, architecture=share.architecture):
            estimates.profile_ends(params, share.architecture)
            device = self._room.device(held.slot.name)
            if device is not None:
                need = self._needs.need(held.job, device)
                self._held[key] = msgspec.structs.replace(held, need=need, is_guess=False)
                if need.memory < share.memory:
                    self._note(held, need.memory)
                    return need.memory
        elif measured > held.need.memory:
            need = msgspec.structs.replace(held.need, memory=measured)
            self._held[key] = msgspec.structs.replace(held, need=need)
        return None

    def _note(self, held: HeldJob, memory: int) -> None:
        share = held.portion
        amounts = share.compute, memory, share.cores
        self._new[held.job.key] = JobPlaced(
            *held.job.key, share.device, share.architecture, share=amounts, began=held.began
        )

    def new_placements(self) -> list[JobPlaced]:
        """Placements since this was asked last, of jobs that still run: others are told by their reports."""
        found, self._new = list(self._new.values()), {}
        return found


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
        usage = self._running.with_load(report, usage)
        report = msgspec.structs.replace(report, usage=usage)
        if report.outcome is not Outcome.OUT_OF_MEMORY:  # what it used then is not what it needs
            self._needs.estimates.learn(
                self._needs.parameters(held.job),
                self._uncontended(held, usage),
                at=report.ended,
                architecture=share.architecture,
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

    def _judge_out_of_memory(self, report: Report, held: HeldJob, usage: Usage) -> Report:
        """Raise the need of the job's key; the job is tried again alone, or once others leave more of the device."""
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

    def _uncontended(self, held: HeldJob, usage: Usage) -> Usage:
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
