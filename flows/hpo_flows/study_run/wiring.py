"""The one place that assembles a run: which placer and executors a study gets, as its settings say."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from hpo_core.execution.executor import RunParts
from hpo_core.journal.protocol import Owner
from hpo_core.journal.retrying import RetryingJournal
from hpo_core.model.features import feature
from hpo_core.spec import StudySpec
from hpo_core.study import Study
from hpo_core.tracking.trackers import Trackers
from hpo_flows.dask.executor import DaskExecutor

ASKED: tuple[tuple[Callable[[StudySpec], bool], str, str], ...] = (
    (lambda spec: spec.packs, "packing", "packed_run"),
    (lambda spec: spec.shares, "sharing", "executor"),
    (lambda spec: spec.hops, "hopping", "hopping_executor"),
)
"""True if a study asks for a feature, and the module whose function of that name adds its part; in this order."""

TRACKERS = (
    Trackers,  # MLflow
)
"""Copies of each study for other eyes."""


def wire(
    study: Study,
    cluster: DaskExecutor,
    *,
    folder: Path,
    journal: RetryingJournal,
    owner: Owner,
    tell: Callable[[str], None],
) -> RunParts:
    """Assemble the run of a study on a cluster that was started for it."""
    parts = RunParts(
        study=study,
        folder=folder,
        journal=journal,
        owner=owner,
        tell=tell,
        executor=cluster,
        meter=cluster,
        threads=cluster.room.threads,
    )
    cluster.follow(study.demand)
    parts.news(cluster.news)
    for asks, name, module in ASKED:
        if asks(study.spec):
            getattr(feature(name, module), name)(parts)
    return parts
