"""Make a study that trains again along another one's recorded grants (ASHA 5.4)."""

from __future__ import annotations

from collections.abc import Sequence

from hpo_core.errors import SpecError
from hpo_core.events import Entry, JobGranted, StudyCreated, TrialCreated
from hpo_core.spec import StudySpec


def rerun_spec(entries: Sequence[Entry], name: str) -> StudySpec:
    """The spec of a rerun: same space, seed and training, grants and parameters as recorded.

    Grants that only repeated a failed attempt are left out: the rerun has its own failures and retries.

    Raises:
        SpecError: the source granted nothing, or ``name`` is no valid name.
    """
    source: dict[str, object] = {}
    params = []
    grants = []
    for entry in entries:
        for event in entry.events:
            if isinstance(event, StudyCreated):
                source = event.spec
            elif isinstance(event, TrialCreated):
                params.append(event.params)
            elif isinstance(event, JobGranted) and not event.retry:
                grants.append(
                    {"trial": event.trial, "bracket": event.bracket, "rung": event.rung, "target": event.target}
                )
    if not grants:
        raise SpecError(f"Study {source.get('study')!r} granted no job yet; there is nothing to train again.")
    search = {
        "method": "recorded",
        "source": source["study"],
        "grants": grants,
        "params": params,
        "max_resource": max(grant["target"] for grant in grants),
    }
    return StudySpec.from_plain(source | {"study": name, "search": search, "sampler": {"name": "random"}}, "rerun")
