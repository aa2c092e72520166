"""One usage for the seed repeats of a job, or for the ranks of a gang."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from hpo_core.model.devices.usage import Usage, UsageField
from hpo_core.model.trial import Report


def usage_of_repeats(reports: Sequence[Report]) -> UsageField:
    """Peaks are the largest of all repeats; means are over all of their time. Not set where none was measured.

    Start-up, and the seconds of a unit, are sums: so they add up to the time that the job takes.
    """
    known = [(one.usage, max(one.ended - one.started, 1e-6)) for one in reports if isinstance(one.usage, Usage)]
    if not known:
        return msgspec.UNSET
    last = known[-1][0]
    device = [one.device_memory for one, _ in known if one.device_memory is not None]
    return msgspec.structs.replace(
        last,
        memory=max(one.memory for one, _ in known),
        cores=round(_mean([(one.cores, seconds) for one, seconds in known]) or 0.0, 3),
        startup_seconds=sum(one.startup_seconds for one, _ in known),
        unit_seconds=sum(one.unit_seconds for one, _ in known),
        device_memory=max(device, default=None),
        compute=_mean([(one.compute, seconds) for one, seconds in known if one.compute is not None]),
    )


def usage_of_ranks(reports: Sequence[Report]) -> UsageField:
    """Memory and cores are sums over the ranks that were measured; times are those of the first of them."""
    known = [one.usage for one in reports if isinstance(one.usage, Usage)]
    if not known:
        return msgspec.UNSET
    device = [one.device_memory for one in known if one.device_memory is not None]
    return msgspec.structs.replace(
        known[0],
        memory=sum(one.memory for one in known),
        cores=round(sum(one.cores for one in known), 3),
        device_memory=sum(device) if device else None,
    )


def _mean(weighted: Sequence[tuple[float, float]]) -> float | None:
    weight = sum(seconds for _, seconds in weighted)
    return sum(value * seconds for value, seconds in weighted) / weight if weight else None
