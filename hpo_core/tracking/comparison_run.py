"""A comparison of studies as a run in MLflow, with links to MLflow's own comparison."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpo_core.tracking.credential_scope import credentials_for
from hpo_core.tracking.mlflow_client import RunStore, open_client
from hpo_core.tracking.tracked_study import MetricPoint
from hpo_core.tracking.tracker_links import compare_url, legal_key, run_url, shown_uri, tag_value
from hpo_core.views.formatting import listed

COMPARED = 50
"""Trials on MLflow's own page, over all studies; more make it slow."""


@dataclass(frozen=True, slots=True)
class Tracked:
    """Place of a study's runs."""

    study: str
    created: float
    """Tells it from a deleted study of the same name."""
    tracking_uri: str | None
    """Address of the tracker; None: tracking is off."""
    experiment: str
    artifact_location: str | None = None


@dataclass(frozen=True, slots=True)
class Logged:
    """What came of a comparison in MLflow."""

    links: dict[str, str]
    """Links by title; empty where no study is tracked."""
    missing: dict[str, str]
    """Studies without runs on MLflow's own page, and why."""


def log_comparison(facts: dict[str, Any], page: Path, studies: Sequence[Tracked]) -> Logged:
    """Log a comparison (:meth:`hpo_core.report.comparison.Comparison.facts`) and its page.

    It is logged in the experiment of the first study that is tracked. MLflow's own page compares the trials of all
    that are tracked by the same MLflow, whatever their experiments. Compared again, the same studies are a new run:
    they may have gone on since.
    """
    missing = {study.study: "its tracking is off" for study in studies if study.tracking_uri is None}
    first = next((study for study in studies if study.tracking_uri is not None), None)
    if first is None or first.tracking_uri is None:
        return Logged({}, missing)
    with credentials_for(first.tracking_uri):
        return _log(facts, page, studies, first=first, uri=first.tracking_uri, missing=missing)


def _log(
    facts: dict[str, Any], page: Path, studies: Sequence[Tracked], *, first: Tracked, uri: str, missing: dict[str, str]
) -> Logged:
    store = RunStore(open_client(uri), uri, first.experiment, first.artifact_location)
    names = [row["study"] for row in facts["studies"]]
    now = time.time()
    tags = {"hpo.kind": "comparison", "hpo.studies": tag_value(json.dumps(names))}
    run = store.create(f"compare {titled(names)}", now, tags)
    store.log(run, points=_points(facts, now))
    if store.takes_files(run):
        store.files(run).log_artifact(str(page))
        store.write_text(run, json.dumps(facts, indent=1), "comparison.json")
    store.set_status(run, "FINISHED", time.time())
    links = {"MLflow run": run_url(uri, store.experiment_id, run.run_id)}
    here = [study for study in studies if study.tracking_uri == uri]
    experiments: list[str] = []
    trials: list[str] = []
    for study in here:
        experiment = store.experiment_of(study.experiment)
        found = (
            []
            if experiment is None
            else _best_trials(store, experiment, study, facts=facts, share=COMPARED // len(here))
        )
        if experiment is None or not found:
            missing[study.study] = f"no trial of it is in experiment {study.experiment!r}: `hpo project {study.study}`"
            continue
        trials += found
        if experiment not in experiments:
            experiments.append(experiment)
    elsewhere = [study for study in studies if study.tracking_uri not in (uri, None)]
    missing |= {study.study: f"it is tracked at {shown_uri(study.tracking_uri or '')}" for study in elsewhere}
    if len(trials) > 1:
        links["MLflow comparison"] = compare_url(uri, experiments, trials)
    return Logged(links, missing)


def titled(names: Sequence[str]) -> str:
    """Two names, and how many more.

    >>> titled(["a", "b", "c"])
    'a, b and 1 more'
    """
    return listed(names, 2)


def _points(facts: dict[str, Any], now: float) -> list[MetricPoint]:
    quality = {key: f"{key}_{facts['metric']}" for key in ("median", "least", "most")}
    names = quality | {key: key for key in ("resource", "seconds", "worker_seconds", "utilization")}
    return [
        MetricPoint(legal_key(f"{row['group']}/{name}"), float(row[key]), now, 0)
        for row in facts["groups"]
        for key, name in names.items()
        if row[key] is not None
    ]


def _best_trials(store: RunStore, experiment: str, study: Tracked, *, facts: dict[str, Any], share: int) -> list[str]:
    """Runs of a study's furthest and then best trials."""
    final = legal_key(f"final_{facts['metric']}")
    order = ["metrics.trained_to DESC", f"metrics.`{final}` {'DESC' if facts['mode'] == 'max' else 'ASC'}"]
    tags = {"hpo.kind": "trial", "hpo.study": study.study, "hpo.created": repr(study.created)}
    text = " and ".join(f"tags.`{key}` = '{value}'" for key, value in tags.items())
    page = store.client.search_runs([experiment], text, max_results=max(1, share), order_by=order)
    return [run.info.run_id for run in page]
