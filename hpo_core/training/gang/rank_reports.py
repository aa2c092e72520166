"""One report of a gang from those of its ranks."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from hpo_core.model.trial import RESULTS, Outcome, Report
from hpo_core.training.child.process_state import HANGING, WAITED
from hpo_core.training.resources.merging import usage_of_ranks

LOST_PEER = "lost its connection to the other ranks"
"""In the message of a rank that ended because another one did."""


def gang_report(reports: Sequence[Report]) -> Report:
    """How the gang ended.

    Rank 0's report where all ranks have a result. Else that of the rank that ended it, with its number in the message:
    not one that was cancelled for it, or lost its connection by it; of several, the one that ended first.

    Args:
        reports: of all ranks, by rank.
    """
    usage = usage_of_ranks(reports)
    started = min(report.started or report.ended for report in reports)
    ended = max(report.ended for report in reports)
    failed = [(rank, report) for rank, report in enumerate(reports) if report.outcome not in RESULTS]
    if not failed:
        return msgspec.structs.replace(reports[0], started=started, ended=ended, usage=usage)
    rank, cause = min(failed, key=lambda one: (_distance(one[1]), one[1].ended, one[0]))
    if all(report.message == cause.message for report in reports):  # what they found together
        return msgspec.structs.replace(cause, checkpoint=None, started=started, ended=ended, usage=usage)
    others = [
        f"rank {number}: {report.outcome.value}{': ' if report.message else ''}{report.message}"
        for number, report in enumerate(reports)
        if number != rank
    ]
    waits = cause.outcome is Outcome.HUNG and WAITED in cause.message
    why = " All ranks wait for each other: not all of them make the same collective calls." if waits else ""
    return msgspec.structs.replace(
        cause,
        message=f"Rank {rank} of {len(reports)}: {cause.message}{why}",
        detail="\n".join(filter(None, (cause.detail, "The other ranks:", *others))),
        checkpoint=None,
        started=started,
        ended=ended,
        usage=usage,
    )


def _distance(report: Report) -> int:
    """How far a failure is from what ended the gang; 0: it may well be that itself."""
    if report.outcome is Outcome.PREEMPTED:
        return 9
    if report.doubt is not msgspec.UNSET:  # its partition was gone, whatever its peers made of that
        return 0
    if report.outcome is Outcome.LOST:
        return 8 if LOST_PEER in report.message else 2
    if report.outcome is Outcome.HUNG:
        return 3 + next((place for place, words in enumerate(HANGING) if words in report.message), len(HANGING))
    return 1
