"""A comparison of studies as a run in MLflow, with links to MLflow's own comparison."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpo_core.security.masking import without_credentials
from hpo_core.tracking.mlflow_client import RunStore, open_client
from hpo_core.tracking.tracked_study import MetricPoint
from hpo_core.tracking.tracker_links import compare_url, legal_key, run_url, tag_value
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


def log_comparison(
    facts: dict[str, Any], page: Path, studies: Sequence[Tracked]
) -> tuple[dict[str, str], dict[str, str]]:
    """Log a comparison (:meth:`hpo_core.report.comparison.Comparison.facts`) and its page.

    It is logged in ``EXPERIMENT-comparisons``, EXPERIMENT being that of the first study that is tracked: beside the
    studies it would lie among them in MLflow's lists and charts. MLflow's own page compares the trials of all
    that are tracked by the same MLflow, whatever their experiments. Compared again, the same studies are a new run:
    they may have gone on since.

    Returns:
        Links by title, empty where no study is tracked; and by study without runs on MLflow's own page: why.
    """
    missing = {study.study: "its tracking is off" for study in studies if study.tracking_uri is None}
    tracked = [(study, study.tracking_uri) for study in studies if study.tracking_uri is not None]
    if not tracked:
        return {}, missing
    first, uri = tracked[0]
    missing |= {
        study.study: f"it is tracked at {without_credentials(place)}" for study, place in tracked if place != uri
    }
    here = [study for study, place in tracked if place == uri]
    experiments: dict[str, None] = {}
    trials: list[str] = []
    store = RunStore(open_client(uri), uri, f"{first.experiment}-comparisons", first.artifact_location)
    names = [row["study"] for row in facts["studies"]]
    now = time.time()
    tags = {"hpo.kind": "comparison", "hpo.studies": tag_value(json.dumps(names))}
    run = store.create(f"compare {listed(names, 2)}", now, tags)
    store.log(run, points=_points(facts, now))
    store.upload(run, page)
    store.write_text(run, json.dumps(facts, indent=1), "comparison.json")
    store.set_status(run, "FINISHED", time.time())
    for study in here:
        experiment = store.experiment_of(study.experiment) or ""
        found = _best_trials(store, experiment, study, facts, share=COMPARED // len(here)) if experiment else []
        if not found:
            missing[study.study] = f"no trial of it is in experiment {study.experiment!r}: `hpo project {study.study}`"
            continue
        trials += found
        experiments[experiment] = None
    links = {"MLflow run": run_url(uri, store.experiment_id, run.run_id)}
    if len(trials) > 1:
        links["MLflow comparison"] = compare_url(uri, list(experiments), trials)
    return links, missing


def _points(facts: dict[str, Any], now: float) -> list[MetricPoint]:
    quality = {key: f"{key}_{facts['metric']}" for key in ("median", "least", "most")}
    names = quality | {key: key for key in ("resource", "seconds", "worker_seconds", "utilization")}
    return [
        MetricPoint(legal_key(f"{row['group']}/{name}"), float(row[key]), now, 0)
        for row in facts["groups"]
        for key, name in names.items()
        if row[key] is not None
    ]


def _best_trials(store: RunStore, experiment: str, study: Tracked, facts: dict[str, Any], *, share: int) -> list[str]:
    """Runs of a study's furthest and then best trials."""
    final = legal_key(f"final_{facts['metric']}")
    order = ["metrics.trained_to DESC", f"metrics.`{final}` {'DESC' if facts['mode'] == 'max' else 'ASC'}"]
    tags = {"hpo.kind": "trial", "hpo.study": study.study, "hpo.created": repr(study.created)}
    found = store.find(tags, deleted=False, experiment=experiment, order=order, most=max(1, share))
    return [run.run_id for run in found]
