"""Stimuli (what was noticed), events (what is now so), and entries (both as an atom).

The union is closed: a journal that holds another tag was written by a newer version and is refused with that
explanation, never guessed at. A new shape gets a new ``FORMAT``, a step in ``hpo_core.journal.codec.decode_entry`` that
reads the one before, and golden journals in ``tests/golden``, all in the same commit.
"""

from __future__ import annotations

from typing import Any

import msgspec

from hpo_core.model.devices.inventory import ONE_SLOT, Demand, Inventory
from hpo_core.model.devices.measurement import UsageField
from hpo_core.model.trial import Checkpoint, Metrics, Outcome, Params, Report, Stage, VisitsField

FORMAT = 1


class _Fact(msgspec.Struct, frozen=True, tag_field="is", tag=True, gc=False):
    """Base: frozen, tagged with its class name. No fact refers back, so the cycle collector may skip them."""


class JobPlaced(_Fact, frozen=True):
    """A running attempt has a share of a device that jobs share; until then it waits. No search rule reads it."""

    trial: int
    attempt: int
    device: str
    """A GPU's UUID, or the name of a computer whose processors are shared."""
    architecture: str
    """Such as ``A100``, or ``CPU``."""
    share: tuple[int, int, int]
    """(compute in permille, memory in bytes, cores in thousandths); a later fact of the same attempt replaces it."""
    began: float
    """When it was placed: seconds since the epoch (virtual seconds in a simulation)."""


# What was noticed.


class StudyRequested(_Fact, frozen=True):
    """Somebody asked for a study; ``spec`` is the validated StudySpec as plain data."""

    spec: dict[str, Any]


class ControllerStarted(_Fact, frozen=True, omit_defaults=True):
    """A controller took the study; attempts of the one before it are lost."""

    controller: str
    objective: str = ""
    """Training function from here on, where a person gave another one; empty: the same as before."""


class CapacityNoticed(_Fact, frozen=True):
    """The slots or devices that jobs can run on have changed."""

    inventory: Inventory


class JobAsked(_Fact, frozen=True):
    """Somebody asked for one job by hand."""


class PlacementsNoticed(_Fact, frozen=True):
    """Jobs began on devices that they share; many at once, for each entry costs the disk a transaction."""

    placements: tuple[JobPlaced, ...]


class StateCopied(_Fact, frozen=True):
    """An attempt trained to its end, and its state was copied; its report follows once the checkpoint is written."""

    trial: int
    attempt: int


class AttemptReported(_Fact, frozen=True):
    """An attempt came back, good or bad."""

    report: Report


class ConfigurationRequested(_Fact, frozen=True):
    """A person wants this configuration tried next; the sampler completes it."""

    params: Params
    request: str | msgspec.UnsetType = msgspec.UNSET
    """Name of another process's request, in journals of a time when running studies took some."""


class ExtensionRequested(_Fact, frozen=True):
    """A person wants more configurations."""

    configs: int


class StopRequested(_Fact, frozen=True):
    """A person or a rule wants no further jobs."""

    reason: str


class AbandonRequested(_Fact, frozen=True):
    """A person gives a trial up."""

    trial: int


class ClockTicked(_Fact, frozen=True, omit_defaults=True):
    """Time passed, and a rule about time may be due."""

    stood_still: float = 0.0
    """Seconds before it in which the controller did not run (SIGSTOP, a machine that slept): no rule counts them."""


Stimulus = (
    StudyRequested
    | ControllerStarted
    | CapacityNoticed
    | JobAsked
    | PlacementsNoticed
    | StateCopied
    | AttemptReported
    | ConfigurationRequested
    | ExtensionRequested
    | StopRequested
    | AbandonRequested
    | ClockTicked
)

# What is now so.


class StudyCreated(_Fact, frozen=True):
    """The study exists."""

    spec: dict[str, Any]


class ControllerChanged(_Fact, frozen=True, omit_defaults=True):
    """Another process runs the study from here on."""

    controller: str
    objective: str = ""
    """Training function from here on; empty: the same as before."""


class CapacityChanged(_Fact, frozen=True):
    """Jobs have these slots or devices from here on."""

    inventory: Inventory


class ConfigurationEnqueued(_Fact, frozen=True):
    """The next configuration that the search samples has these values, after those enqueued before."""

    params: Params
    request: str | msgspec.UnsetType = msgspec.UNSET
    """As in :class:`ConfigurationRequested`: it is taken once."""


class TrialCreated(_Fact, frozen=True):
    """A new identity with fixed parameters. ``parent`` is set where it continues another trial."""

    trial: int
    bracket: int
    params: Params
    parent: int | None = None
    queued: bool | msgspec.UnsetType = msgspec.UNSET  # msgspec below 0.22 takes no Literal[True]
    """True: values come from the queue (``start_with``, ``enqueue``). Else left out, also from the journal."""


class Reproduced(_Fact, frozen=True):
    """Origin of a trial of a later generation (PBT): follows its :class:`TrialCreated`.

    ``initiator`` met ``opponent`` (None: it met nobody); the fitter one is ``parent`` (None: begun anew).
    """

    child: int
    initiator: int
    opponent: int | None
    parent: int | None
    member: int
    """The place in the population, that of the initiator."""
    generation: int
    """From 0; trials without this event are of generation 0."""


class _JobFact(_Fact, frozen=True):
    """Base of facts about one attempt."""

    trial: int
    attempt: int
    stage: Stage

    @property
    def bracket(self) -> int:
        return self.stage.bracket

    @property
    def rung(self) -> int:
        return self.stage.rung


class JobGranted(_JobFact, frozen=True, omit_defaults=True):
    """The study wants ``trial`` trained to ``target``.

    ``retry`` is true where an earlier attempt at the same target failed; such a grant is no promotion.
    """

    target: int
    checkpoint: Checkpoint | None
    retry: bool = False
    demand: Demand = ONE_SLOT


NO_VIOLATION = 0.0
"""All constraints are satisfied. msgspec leaves a number out where it is this very object, not one of equal value."""


class JobCompleted(_JobFact, frozen=True, omit_defaults=True):
    """The target was reached.

    ``loss`` is the (first) metric with ``mode: max`` flipped; None if any objective is not finite.
    """

    resource: int
    loss: float | None
    metrics: Metrics
    checkpoint: Checkpoint | None
    worker: str
    started: float
    ended: float
    losses: tuple[float, ...] = ()
    """All objectives as losses, in the spec's order, where there are several and all are finite."""
    curve: tuple[tuple[int, float], ...] = ()
    """(resource, loss) on the way to the target, for methods that read curves (PASHA); else empty."""
    violation: float = NO_VIOLATION
    """Total violation of the study's constraints."""
    usage: UsageField = msgspec.UNSET
    """Measured use of the machine; not set where nothing was measured."""
    visits: VisitsField = msgspec.UNSET
    """Where models hop: which partition the trial saw where and when, in that order; a rerun follows it."""


CONTROLLER_GONE = "the controller that ran this attempt is gone"
"""Message of attempts that ended with their controller: it was interrupted, or killed."""


class AttemptFailed(_JobFact, frozen=True):
    """An attempt ended without a result; the job is wanted again unless the trial is abandoned."""

    target: int
    outcome: Outcome
    message: str
    worker: str = ""
    started: float = 0.0
    ended: float = 0.0
    usage: UsageField = msgspec.UNSET
    """As in :class:`JobCompleted`."""
    visits: VisitsField = msgspec.UNSET
    """Units that had ended; where the job goes on after them, its next attempt has them as well."""


class CheckpointCondemned(_Fact, frozen=True):
    """The trial's checkpoint at ``resource`` cannot be loaded and will not be used again."""

    trial: int
    resource: int


class TrialAbandoned(_Fact, frozen=True):
    """No further attempt will be made; ranks last in the rung it was heading for, or where its result stands."""

    trial: int
    bracket: int
    rung: int
    reason: str


class CheckpointRemoved(_Fact, frozen=True):
    """The trial's checkpoint at ``resource`` goes, to stay within the study's budget for checkpoints.

    ``chance`` is the estimated probability that the trial is promoted after all; it would then go back to an
    older checkpoint, or start from scratch. 0 for a trial's second newest: it keeps the newest.
    """

    trial: int
    resource: int
    chance: float


class TrialStopped(_Fact, frozen=True):
    """The trial stood at place ``rank`` (from 1) of ``results`` results of its rung, and does not go on."""

    trial: int
    bracket: int
    rung: int
    rank: int
    results: int


class CeilingRaised(_Fact, frozen=True):
    """The ranking of the two top rungs was not stable, so the rung above them opens (PASHA).

    At place ``place`` (from 1) of the top rung stands ``trial``; of the rung below, only ``expected`` have
    losses within ``tolerance`` of the one at that place.
    """

    bracket: int
    rung: int
    """The rung that opens."""
    level: int
    tolerance: float
    place: int
    trial: int
    expected: tuple[int, ...]


class ReportIgnored(_Fact, frozen=True):
    """A report from an attempt that is not the current one; noted, changes nothing."""

    trial: int
    attempt: int
    reason: str


class StudyExtended(_Fact, frozen=True):
    """The search tries more configurations."""

    configs: int


class SamplerExhausted(_Fact, frozen=True):
    """The sampler proposed all its configurations, so none is drawn any more; trials that exist go on."""

    trials: int
    """Number of trials."""


class StudyHalted(_Fact, frozen=True):
    """No further jobs are granted until the study is resumed."""

    reason: str
    rule: str = ""
    """The stop rule that was met (``total_resource``, ``seconds``, ``target``), if one was."""


class SlotFreed(_Fact, frozen=True):
    """A running attempt has no slot any more: its checkpoint is being written."""

    trial: int
    attempt: int


class StudyReopened(_Fact, frozen=True):
    """A halted study may grant jobs again."""


Event = (
    StudyCreated
    | ControllerChanged
    | CapacityChanged
    | ConfigurationEnqueued
    | TrialCreated
    | Reproduced
    | JobGranted
    | JobPlaced
    | SlotFreed
    | JobCompleted
    | AttemptFailed
    | CheckpointCondemned
    | TrialAbandoned
    | CheckpointRemoved
    | TrialStopped
    | CeilingRaised
    | ReportIgnored
    | StudyExtended
    | SamplerExhausted
    | StudyHalted
    | StudyReopened
)


class Entry(msgspec.Struct, frozen=True, gc=False):
    """One atom of the journal: the stimulus and all that was decided from it."""

    seq: int
    """0 for the entry that created the study, then without a gap."""
    time: float
    """Seconds since the epoch (virtual seconds in a simulation)."""
    epoch: int
    """Number of the controller that wrote it (grows by one with every takeover)."""
    stimulus: Stimulus
    events: tuple[Event, ...]
    format: int = FORMAT
