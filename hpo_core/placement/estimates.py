"""What a job will need: stated, measured before, predicted from others, or a share to profile it on.

HyperSack (Section IV): known models are taken from the history, the others are profiled first, each once.
"""

from __future__ import annotations

import contextlib
import logging
import math
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, Literal

import msgspec

from hpo_core.model.devices.inventory import Demand
from hpo_core.model.devices.measurement import Measurement, Usage, deciding_values, is_cpu, key_of
from hpo_core.model.devices.stated_demand import StatedDemand
from hpo_core.model.errors import SpecError
from hpo_core.placement.known_need import QUANTILE, KnownNeed, KnownNeeds, NeedFigures
from hpo_core.placement.learned_ratio import LearnedRatios
from hpo_core.placement.room import WHOLE, SharedDevice
from hpo_core.security.masking import without_urls_credentials

log = logging.getLogger("hpo.packing")

PROFILES = 4
"""Jobs that are profiled on one device at once; each gets that part of it."""

Source = Literal["stated", "measured", "predicted", "profile"]


class Estimate(msgspec.Struct, frozen=True, kw_only=True):
    """What a job will need, and how that is known."""

    need: Demand
    source: Source
    """``profile``: nothing is known of this key, and it gets a share on which it is measured."""
    measurements: int = 0
    """Ended attempts that it rests on."""
    guessed: tuple[str, ...] = ()
    """Which of ``memory``, ``compute`` and ``cores`` are guesses: the share of the first, unmeasured attempts."""


class Estimates:
    """Estimates for the jobs of one study, which learn from each attempt.

    Args:
        objective: ``module:function``.
        code: digest of its source.
        study: its name, for what is learned.
        by: the parameters that decide what a job needs.
        stated: what a user says; it wins over what is measured, part by part.
        quantile: share of past configurations that a predicted memory would have covered.
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
        quantile: float = QUANTILE,
        past: Iterable[Measurement] = (),
    ) -> None:
        self._objective = objective
        self._code = code
        self._study = study
        self._by = by
        self._stated = stated or StatedDemand()
        self._is_told = False
        self.is_fixed = False
        """Whether nothing is learned any more."""
        self._known = KnownNeeds(quantile)
        self.ratios = LearnedRatios()
        """How much of a device's compute jobs may claim together."""
        self._seen: set[str] = set()
        self._new: list[Measurement] = []
        self._profiling: Counter[tuple[str, str]] = Counter()
        for one in past:
            if (one.objective, one.code) == (objective, code):
                self._take(one)
        self._new.clear()

    def _values(self, params: Mapping[str, Any]) -> dict[str, Any]:
        """Values of the deciding parameters, which are kept and exported: a URL loses its credentials."""
        known = {name: params[name] for name in self._by if name in params}
        for name, value in known.items():
            if isinstance(value, str) and "://" in value:
                known[name] = without_urls_credentials(value)
        return deciding_values(known, self._by)

    def key(self, params: Mapping[str, Any]) -> str:
        """Equal for jobs with the same need."""
        return key_of(self._values(params))

    def least_memory(self, params: Mapping[str, Any], architecture: str) -> int | None:
        """Bytes from which on a job may be tried alone where there is less than it is estimated to need.

        What it was measured to use, without any allowance; else twice what it ran out of memory with. None: a person
        stated what it needs, and that was never too little.
        """
        known = self._known.find(architecture, self.key(params))
        if "memory" in self._stated.parts and (known is None or not known.failed):
            return None
        if known is None:
            return 0
        measured = int(known.figures.memory or 0)
        return measured if measured >= known.failed else 2 * known.failed

    def is_known(self, params: Mapping[str, Any], architecture: str) -> bool:
        """Whether a job of this key was measured on this architecture."""
        known = self._known.find(architecture, self.key(params))
        return known is not None and known.is_known

    def unit_seconds(self, params: Mapping[str, Any], architecture: str) -> float | None:
        """Seconds of a unit of training, measured or predicted; None where nothing is known."""
        values = self._values(params)
        known = self._known.find(architecture, key_of(values))
        if known is not None and known.measurements:
            return known.figures.unit_seconds
        return self._known.expected(architecture, "unit_seconds", values)

    def of(
        self,
        params: Mapping[str, Any],
        *,
        units: int,
        device: SharedDevice,
        node_cores: int,
        devices_on_node: int = 1,
    ) -> Estimate:
        """What a job needs on a device.

        What is guessed (the allowance, a prediction, a profile's share, twice what ran out of memory) is never more
        than the whole device, so that the job can at least run there alone. What was measured or is stated can be.

        Args:
            params: its parameters and the study's constants.
            units: of training.
            node_cores: CPU cores of the device's node, in thousandths.
            devices_on_node: over which they are spread.
        """
        values = self._values(params)
        known = self._known.find(device.architecture, key_of(values)) or KnownNeed(values)
        source: Source = "measured"
        figures, rests_on = known.figures, known.measurements
        if not known.is_known:
            figures = self._known.predicted(device.architecture, values)
            source = "profile" if figures.memory is None else "predicted"
            rests_on = 0 if figures.memory is None else self._known.measurements(device.architecture)
        stated = self._stated_for(params)
        guesses = {
            "memory": device.memory // PROFILES,
            "compute": WHOLE // PROFILES,
            "cores": node_cores // (devices_on_node * PROFILES),
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
                seconds=self._seconds(stated.get("unit_seconds"), figures, device, units),
            ),
            source="stated" if "memory" in stated else source,
            measurements=rests_on,
            guessed=tuple(part for part in guesses if found[part] is None),
        )

    def _stated_for(self, params: Mapping[str, Any]) -> dict[str, float]:
        """Amounts by part. An expression that has no value for these parameters counts as not stated.

        The ends of the parameters' ranges were tried before the study began, and not what lies between them.
        """
        found = {}
        for part in self._stated.parts:
            try:
                value = self._stated.value(part, params)
            except SpecError as error:
                if not self._is_told:
                    self._is_told = True
                    log.warning("%s Such jobs are placed by what is measured.", error)
                continue
            if value is not None:
                found[part] = value
        return found

    def _memory(self, stated: float | None, figures: NeedFigures, known: KnownNeed, device: SharedDevice) -> int | None:
        if stated is not None and not known.failed:
            return math.ceil(stated)
        if figures.memory is None:
            return None if stated is None else math.ceil(stated)
        if not known.is_known:
            return min(math.ceil(figures.memory), device.memory)
        wanted = math.ceil(self._known.next_memory(device.architecture, known))
        measured = max(min(wanted, device.memory), math.ceil(figures.memory))
        return max(measured, math.ceil(stated or 0.0))  # what is stated was too little once

    def _seconds(self, stated: float | None, figures: NeedFigures, device: SharedDevice, units: int) -> float:
        """Expected seconds of an attempt: start-up and units; the mean of all keys where nothing else is known."""
        startup, unit = figures.startup_seconds, figures.unit_seconds
        if startup is None or unit is None:
            startup, unit = self._known.mean_seconds(device.architecture)
        return startup + units * (unit if stated is None else stated)

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
        known = self._known.of(architecture, one.key, one.params)
        known.observe(NeedFigures(one.peak, one.compute, one.cores, one.unit_seconds or None, one.startup_seconds))
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
        """None where a figure is one that no computer has."""
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
        if self.is_fixed:
            return False
        # an attempt is known by its moment: what the journal says of it may differ from what was learned when it ended
        attempt = f"{one.architecture} {one.measured_at!r} {bool(one.out_of_memory)} {one.key}"
        if one.identity in self._seen or (one.measured_at and attempt in self._seen):
            return False
        self._seen |= {one.identity, attempt}
        self._new.append(one)
        values = self._values(one.params)  # another study may have named other parameters
        self._known.add(one.architecture, key_of(values), values, one)
        self.ratios.add(one.architecture, key_of(values), one)
        return True

    def new_measurements(self) -> list[Measurement]:
        """What was learned since the last call, to be kept for later studies."""
        found, self._new = self._new, []
        return found

    def profile_begins(self, params: Mapping[str, Any], architecture: str) -> None:
        """A job begins on the share of a profile."""
        self._profiling[architecture, self.key(params)] += 1

    def profile_ends(self, params: Mapping[str, Any], architecture: str) -> None:
        """It ended, or learned already what it needs."""
        found = architecture, self.key(params)
        self._profiling[found] = max(self._profiling[found] - 1, 0)

    def is_profiling(self, params: Mapping[str, Any], architecture: str) -> bool:
        """Whether a job of the same key is being profiled: another one would learn nothing new."""
        return self._profiling[architecture, self.key(params)] > 0


def _compute(
    stated: Mapping[str, float | None], figures: NeedFigures, device: SharedDevice, node_cores: int
) -> int | None:
    """Permille of the device; of processors the part of the node's cores."""
    percent, share = stated.get("compute"), figures.compute
    if is_cpu(device.architecture):
        cores = figures.cores if stated.get("cores") is None else stated["cores"]
        share = None if cores is None else cores * WHOLE / max(node_cores, 1)
    return _whole(None if percent is None else percent / 100, share, WHOLE)


def _whole(stated: float | None, measured: float | None, most: int) -> int | None:
    """In thousandths, at least 1; what was measured is at most all there is."""
    if stated is not None:
        return max(math.ceil(stated * WHOLE - 1e-9), 1)
    return None if measured is None else max(min(math.ceil(measured * WHOLE - 1e-9), most), 1)
