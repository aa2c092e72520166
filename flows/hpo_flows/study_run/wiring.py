"""The one place that assembles a run: which placer and executors a study gets, as its settings say."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from hpo_core.execution.enqueue_requests import EnqueueRequests
from hpo_core.execution.executor import RunParts
from hpo_core.execution.hopping.hopping_executor import hopping
from hpo_core.journal.protocol import Owner
from hpo_core.journal.retrying import RetryingJournal
from hpo_core.packing.packed_run import packing
from hpo_core.pool.executor import sharing
from hpo_core.spec import StudySpec
from hpo_core.study import Study
from hpo_core.tracking.trackers import Trackers
from hpo_flows.dask.executor import DaskExecutor

FEATURES: tuple[tuple[Callable[[StudySpec], bool], Callable[[RunParts], None]], ...] = (
    (lambda spec: spec.packs, packing),
    (lambda spec: spec.shares, sharing),
    (lambda spec: spec.hops, hopping),
)
"""Each feature: True if a study has it, and the function that adds its part to a run; in this order."""

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
        ticks=[EnqueueRequests(study, folder).on_tick],
    )
    cluster.follow(study.demand)
    parts.news(cluster.news)
    for asks, feature in FEATURES:
        if asks(study.spec):
            feature(parts)
    return parts
