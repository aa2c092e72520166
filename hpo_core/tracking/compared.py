"""A comparison of studies as a run in MLflow: its page, its figures, and a link to MLflow's own comparison."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hpo_core.tracking.fold import MetricPoint
from hpo_core.tracking.keys import legal_key, tag_value
from hpo_core.tracking.links import compare_url, run_url
from hpo_core.tracking.store import RunStore, open_client

COMPARED = 50
"""Trials on MLflow's own page, over all studies; more make it slow."""


def log_comparison(
    facts: dict[str, Any],
    page: Path,
    tracking_uri: str,
    experiment: str,
    artifact_location: str | None = None,
) -> dict[str, str]:
    """Log a comparison (:meth:`hpo_core.report.compared.Comparison.facts`) and its page; returns links by title.

    Compared again, the same studies are a new run: they may have gone on since.
    """
    store = RunStore(open_client(tracking_uri), tracking_uri, experiment, artifact_location)
    names = [row["study"] for row in facts["studies"]]
    now = time.time()
    tags = {"hpo.kind": "comparison", "hpo.studies": tag_value(json.dumps(names))}
    run = store.create(f"compare {titled(names)}", now, tags)
    store.log(run, points=_points(facts, now))
    store.client.log_artifact(run.run_id, str(page))
    store.client.log_text(run.run_id, json.dumps(facts, indent=1), "comparison.json")
    store.set_status(run, "FINISHED", time.time())
    links = {"MLflow run": run_url(tracking_uri, store.experiment_id, run.run_id)}
    trials = _best_trials(store, names, facts)
    if len(trials) > 1:
        links["MLflow comparison"] = compare_url(tracking_uri, store.experiment_id, trials)
    return links


def titled(names: Sequence[str]) -> str:
    """Two names, and how many more.

    >>> titled(["a", "b", "c"])
    'a, b and 1 more'
    """
    return ", ".join(names[:2]) + (f" and {len(names) - 2} more" if len(names) > 2 else "")


def _points(facts: dict[str, Any], now: float) -> list[MetricPoint]:
    quality = {key: f"{key}_{facts['metric']}" for key in ("median", "least", "most")}
    names = quality | {key: key for key in ("resource", "seconds", "worker_seconds", "utilization")}
    return [
        MetricPoint(legal_key(f"{row['group']}/{name}"), float(row[key]), now, 0)
        for row in facts["groups"]
        for key, name in names.items()
        if row[key] is not None
    ]


def _best_trials(store: RunStore, names: Sequence[str], facts: dict[str, Any]) -> list[str]:
    """Runs of the furthest and then best trials of each study, as many of each."""
    final = legal_key(f"final_{facts['metric']}")
    order = ["metrics.trained_to DESC", f"metrics.`{final}` {'DESC' if facts['mode'] == 'max' else 'ASC'}"]
    found: list[str] = []
    for name in names:
        text = f"tags.`hpo.kind` = 'trial' and tags.`hpo.study` = '{name}'"
        page = store.client.search_runs(
            [store.experiment_id], text, max_results=max(1, COMPARED // len(names)), order_by=order
        )
        found += [run.info.run_id for run in page]
    return found
