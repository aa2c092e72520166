"""Expected needs of jobs: stated, the largest measured of its key, or the whole device to measure it on.

HyperSack (Section IV): known models are taken from the history, the others are profiled first, each once.
"""

from __future__ import annotations

import contextlib
import logging
import math
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, Literal, NamedTuple

import msgspec

from hpo_core.model.devices.inventory import Demand
from hpo_core.model.devices.measurement import Measurement, Usage, deciding_values, is_cpu, key_of
from hpo_core.model.errors import SpecError
from hpo_core.packing.learned_ratio import LearnedRatios, RatioSeen
from hpo_core.packing.room import WHOLE, SharedDevice
from hpo_core.security.masking import without_urls_credentials
from hpo_core.spec.packing import StatedDemand
from hpo_core.study import Study

log = logging.getLogger("hpo.packing")

UNMEASURED = 4
"""A part that is not known beside a memory that is, such as the compute of a MIG slice, is one of so many."""
ALLOWANCE = 1.05
"""A known key gets so many times the largest memory that was measured."""

Source = Literal["stated", "measured", "profile"]


class Estimate(msgspec.Struct, frozen=True, kw_only=True):
    """The expected need of a job, and how that is known."""

    need: Demand
    source: Source
    """``profile``: nothing is known of this key, and it gets a whole device on which it is measured."""


class NeedFigures(NamedTuple):
    """Figures of one key; None where nothing is known."""

    memory: float | None = None
    """Bytes: the largest peak."""
    compute: float | None = None
    """Mean share of a GPU's time."""
    cores: float | None = None
    unit_seconds: float | None = None
    startup_seconds: float | None = None


class KnownNeed:
    """Measured need of one key on one architecture: the largest memory and the means of the rest, in any order."""

    def __init__(self) -> None:
        self.measurements = 0
        """Attempts that ended."""
        self._running = NeedFigures()
        self._memory = 0
        self.failed = 0
        """Most bytes that an attempt had when it ran out of memory; 0: none did."""
        self._failed_peak = 0
        self._compute: list[float] = []
        self._sums = dict.fromkeys(("cores", "unit_seconds", "startup_seconds"), 0.0)

    def add(self, one: Measurement) -> None:
        if one.out_of_memory:
            self.failed = max(self.failed, one.out_of_memory)
            self._failed_peak = max(self._failed_peak, one.peak)
            return
        self.measurements += 1
        self._memory = max(self._memory, one.peak)
        if one.compute is not None:
            self._compute.append(one.compute)
        for name in self._sums:
            self._sums[name] += getattr(one, name)

    def observe(self, running: NeedFigures) -> None:
        """Take what a running attempt was seen to use; it counts until one has ended."""
        memory = max(running.memory or 0, self._running.memory or 0) or None
        self._running = running._replace(memory=memory)

    @property
    def is_known(self) -> bool:
        return self.measurements > 0 or self._running != NeedFigures()

    @property
    def figures(self) -> NeedFigures:
        """As measured; nothing where it was not."""
        count = self.measurements
        if not count:
            return self._running
        return NeedFigures(
            memory=self._memory or None,
            compute=math.fsum(self._compute) / len(self._compute) if self._compute else None,
            **{name: total / count for name, total in self._sums.items()},
        )

    def memory_after_failure(self, capacity: int) -> int:
        """Bytes without which it is not tried again after it ran out of memory; 0 where it did not.

        Twice what it had, or what it was seen to have if that is more, within the capacity of its device, and never
        below what it had. Once a job of the key ended well with as much, that measurement is enough.
        """
        if self._memory >= self.failed:
            return 0
        return max(self.failed, min(max(2 * self.failed, self._failed_peak), capacity))


class Estimates:
    """Estimates for the jobs of one study, which learn from each attempt.

    Args:
        objective: ``module:function``.
        code: digest of its source.
        study: its name, for what is learned.
        by: the parameters that decide what a job needs.
        stated: what a user says; it wins over what is measured, part by part.
        past: measurements of this objective and source, by earlier studies.
    """

    def __init__(
        self,
        *,
        objective: str,
        code: str,
        study: str,
        by: tuple[str, ...],
        stated: StatedDemand | None = None,
        past: Iterable[Measurement] = (),
    ) -> None:
        self._objective = objective
        self._code = code
        self._study = study
        self._by = by
        self._stated = stated or StatedDemand()
        self._is_told = False
        self._known: dict[str, dict[str, KnownNeed]] = {}
        """By architecture and key."""
        self.ratios = LearnedRatios()
        """Multiples of a device's compute that jobs may claim together."""
        self._seen: set[str] = set()
        self._new: list[Measurement] = []
        self._profiling: Counter[tuple[str, str]] = Counter()
        for one in past:
            if (one.objective, one.code) == (objective, code):
                self._take(one)
        self._new.clear()

    def _values(self, params: Mapping[str, Any]) -> dict[str, Any]:
        # Values of the deciding parameters, which are kept and exported: a URL loses its credentials.
        known = {name: params[name] for name in self._by if name in params}
        for name, value in known.items():
            if isinstance(value, str) and "://" in value:
                known[name] = without_urls_credentials(value)
        return deciding_values(known, self._by)

    def _find(self, architecture: str, key: str) -> KnownNeed | None:
        return self._known.get(architecture, {}).get(key)

    def _of(self, architecture: str, key: str) -> KnownNeed:
        return self._known.setdefault(architecture, {}).setdefault(key, KnownNeed())

    def key(self, params: Mapping[str, Any]) -> str:
        return key_of(self._values(params))

    def least_memory(self, params: Mapping[str, Any], architecture: str) -> int | None:
        """Bytes from which on a job may be tried alone where there is less than it is estimated to need.

        What it was measured to use, without any allowance; else twice what it ran out of memory with. None: a person
        stated what it needs, and that was never too little.
        """
        known = self._find(architecture, self.key(params))
        if "memory" in self._stated_for(params) and (known is None or not known.failed):
            return None
        if known is None:
            return 0
        measured = int(known.figures.memory or 0)
        return measured if measured >= known.failed else 2 * known.failed

    def is_known(self, params: Mapping[str, Any], architecture: str) -> bool:
        known = self._find(architecture, self.key(params))
        return known is not None and known.is_known

    def of(
        self,
        params: Mapping[str, Any],
        *,
        units: int,
        device: SharedDevice,
        node_cores: int,
        devices_on_node: int = 1,
    ) -> Estimate:
        """Estimate what a job needs on a device.

        What is not measured (the allowance, twice what ran out of memory) is never more than the whole device, so that
        the job can at least run there alone. What was measured or is stated can be.

        Args:
            params: its parameters and the study's constants.
            units: of training.
            node_cores: CPU cores of the device's node, in thousandths.
            devices_on_node: over which they are spread.
        """
        known = self._find(device.architecture, self.key(params)) or KnownNeed()
        figures, stated = known.figures, self._stated_for(params)
        parts = UNMEASURED if known.is_known or "memory" in stated else 1
        guesses = {
            "memory": device.memory // parts,
            "compute": WHOLE // parts,
            "cores": node_cores // (devices_on_node * parts),
        }
        found = {
            "memory": self._memory(stated.get("memory"), figures, known, device),
            "cores": _whole(stated.get("cores"), figures.cores, node_cores),
            "compute": _compute(stated, figures, device, node_cores),
        }
        amounts = {part: max(guesses[part], 1) if value is None else value for part, value in found.items()}
        amounts["memory"] = max(amounts["memory"], known.memory_after_failure(device.memory))
        return Estimate(
            need=Demand(
                compute=amounts["compute"],
                memory=amounts["memory"],
                cores=amounts["cores"],
                seconds=self._seconds(figures, device, units),
            ),
            source="stated" if "memory" in stated else "measured" if known.is_known else "profile",
        )

    def _stated_for(self, params: Mapping[str, Any]) -> dict[str, float]:
        try:
            return self._stated.of(params)
        except SpecError as error:
            if not self._is_told:
                self._is_told = True
                log.warning("%s Such jobs are placed by what is measured.", error)
            return self._stated.amounts

    def _memory(self, stated: float | None, figures: NeedFigures, known: KnownNeed, device: SharedDevice) -> int | None:
        if stated is not None and not known.failed:
            return math.ceil(stated)
        if figures.memory is None:
            return None if stated is None else math.ceil(stated)
        measured = max(min(math.ceil(ALLOWANCE * figures.memory), device.memory), math.ceil(figures.memory))
        return max(measured, math.ceil(stated or 0.0))  # what is stated was too little once

    def _seconds(self, figures: NeedFigures, device: SharedDevice, units: int) -> float:
        # Expected seconds of an attempt: start-up and units; the mean of all keys where nothing else is known.
        startup, unit = figures.startup_seconds, figures.unit_seconds
        if startup is None or unit is None:
            keys = self._known.get(device.architecture, {}).values()
            found = [known.figures for known in keys if known.measurements]
            startup, unit = (
                math.fsum(getattr(one, name) or 0.0 for one in found) / max(len(found), 1) for name in _SECONDS
            )
        return startup + units * unit

    def learn(
        self,
        params: Mapping[str, Any],
        usage: Usage,
        *,
        at: float,
        architecture: str | None = None,
    ) -> bool:
        """Take up what an attempt used. It counts at once.

        Args:
            params: its parameters and the study's constants.
            at: time of the entry that records it, so that the same attempt learned again adds nothing.
            architecture: where it ran; default: as its usage says, or ``CPU`` where it had no device.

        Returns:
            Whether it says anything: an attempt that trained no unit has not shown what it needs.
        """
        where = architecture or usage.architecture or ("CPU" if usage.device_memory is None else "")
        if not where or not usage.unit_seconds > 0:
            return False
        one = self._measurement(params, usage, where, at=at)
        return one is not None and self._take(one)

    def observe(self, params: Mapping[str, Any], usage: Usage, *, architecture: str) -> bool:
        """Take what a running attempt was seen to use, such as the first iterations of a profile.

        It counts for jobs of its key until one has ended; it is not kept for later studies.

        Returns:
            Whether its memory is known.
        """
        one = self._measurement(params, usage, architecture, at=0.0)
        if one is None or not one.peak:
            return False
        seen = NeedFigures(one.peak, one.compute, one.cores, one.unit_seconds or None, one.startup_seconds)
        self._of(architecture, one.key).observe(seen)
        return True

    def raise_after_out_of_memory(
        self, params: Mapping[str, Any], architecture: str, *, had: int, at: float, measured: int = 0
    ) -> None:
        """A job ran out of memory: its key gets twice as much, or what was measured if that is more.

        It holds over a stated memory, too, and until a job of the key ended well with at least what failed.

        Args:
            had: bytes of its share.
            at: as of :meth:`learn`.
            measured: bytes at its peak.
        """
        seen = max(measured, 0)
        usage = Usage(memory=seen) if is_cpu(architecture) else Usage(device_memory=seen)
        if (one := self._measurement(params, usage, architecture, at=at, out_of_memory=max(had, 1))) is not None:
            self._take(one)

    def _measurement(
        self,
        params: Mapping[str, Any],
        usage: Usage,
        architecture: str,
        *,
        at: float,
        out_of_memory: int = 0,
    ) -> Measurement | None:
        taken = ("memory", "device_memory", "cores", "startup_seconds", "unit_seconds", "jobs")
        with contextlib.suppress(ValueError):
            return Measurement(
                objective=self._objective,
                code=self._code,
                architecture=architecture,
                params=self._values(params),
                compute=None if usage.compute is None else min(usage.compute, 1.0),
                out_of_memory=out_of_memory,
                study=self._study,
                measured_at=at,
                load=None if usage.load is None else usage.load / WHOLE,
                **{name: getattr(usage, name) for name in taken},
            )
        return None

    def _take(self, one: Measurement) -> bool:
        # an attempt is known by its moment: what the journal says of it may differ from what was learned when it ended
        attempt = f"{one.architecture} {one.measured_at!r} {bool(one.out_of_memory)} {one.key}"
        if one.identity in self._seen or (one.measured_at and attempt in self._seen):
            return False
        self._seen |= {one.identity, attempt}
        self._new.append(one)
        values = self._values(one.params)  # another study may have named other parameters
        self._of(one.architecture, key_of(values)).add(one)
        self.ratios.add(one.architecture, key_of(values), one)
        return True

    def new_measurements(self) -> list[Measurement]:
        found, self._new = self._new, []
        return found

    def profile_begins(self, params: Mapping[str, Any], architecture: str) -> None:
        self._profiling[architecture, self.key(params)] += 1

    def profile_ends(self, params: Mapping[str, Any], architecture: str) -> None:
        found = architecture, self.key(params)
        self._profiling[found] = max(self._profiling[found] - 1, 0)

    def is_profiling(self, params: Mapping[str, Any], architecture: str) -> bool:
        """True if a job of the same key is being profiled: another one would learn nothing new."""
        return self._profiling[architecture, self.key(params)] > 0


_SECONDS = ("startup_seconds", "unit_seconds")


def _compute(stated: Mapping[str, float], figures: NeedFigures, device: SharedDevice, node_cores: int) -> int | None:
    percent, share = stated.get("compute"), figures.compute
    if is_cpu(device.architecture):
        cores = figures.cores if stated.get("cores") is None else stated["cores"]
        share = None if cores is None else cores * WHOLE / max(node_cores, 1)
    return _whole(None if percent is None else percent / 100, share, WHOLE)


def _whole(stated: float | None, measured: float | None, most: int) -> int | None:
    if stated is not None:
        return max(math.ceil(stated * WHOLE - 1e-9), 1)
    return None if measured is None else max(min(math.ceil(measured * WHOLE - 1e-9), most), 1)


def measured_ratios(study: Study) -> dict[str, list[RatioSeen]]:
    """Ratios that this study's attempts say of each architecture for which it states none, by rising ratio."""
    spec = study.spec
    estimates = Estimates(objective="", code="", study=spec.study, by=spec.deciding)
    for trial in study.state.trials:
        params = {**spec.constants, **trial.params}
        for result in trial.results:
            if result.usage and result.usage.load is not None:
                estimates.learn(params, result.usage, at=result.ended)
    learned = estimates.ratios
    names = [name for name in learned.ratios() if spec.packing_settings.finds_ratio(name)]
    return {name: seen for name in names if (seen := learned.seen(name))}
