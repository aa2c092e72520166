"""Links to MLflow's pages. Imports no MLflow."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from urllib.parse import quote, urlsplit

from hpo_core.security.masking import masked, without_credentials

_KIND = "workflowType=machine_learning"
"""MLflow 3 opens in its GenAI mode, where runs are hard to find, unless a link says otherwise."""


def run_url(tracking_uri: str, experiment_id: str, run_id: str) -> str:
    """The page of a run; for a store without a server, the command that starts one."""
    return _page(tracking_uri, f"/experiments/{experiment_id}/runs/{run_id}?{_KIND}")


def experiments_url(tracking_uri: str) -> str:
    """The page of all experiments, or the command as above."""
    return _page(tracking_uri, f"/experiments?{_KIND}")


def compare_url(tracking_uri: str, experiment_ids: str | Sequence[str], run_ids: Sequence[str]) -> str:
    """The page that compares runs (parallel coordinates, scatter, contour), or the command as above.

    Args:
        experiment_ids: all experiments the runs are in.
    """
    ids = [experiment_ids] if isinstance(experiment_ids, str) else list(experiment_ids)
    runs = quote(json.dumps(list(run_ids), separators=(",", ":")))
    experiments = quote(json.dumps(ids, separators=(",", ":")))
    return _page(tracking_uri, f"/compare-runs?runs={runs}&experiments={experiments}&{_KIND}")


def shown_uri(tracking_uri: str) -> str:
    """A tracking URI fit for a log: without its user and password."""
    return without_credentials(tracking_uri)


def reason_of(error: BaseException) -> str:
    """An error on one line of bounded length, without the credentials that MLflow's messages repeat."""
    text = masked(" ".join(str(error).split()))
    return f"{type(error).__name__}: {text[:300]}"


def _page(tracking_uri: str, place: str) -> str:
    if urlsplit(tracking_uri).scheme in ("http", "https"):
        return f"{shown_uri(tracking_uri).rstrip('/')}/#{place}"
    return f"mlflow ui --backend-store-uri {shlex.quote(shown_uri(tracking_uri))}"
