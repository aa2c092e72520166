"""A study's trials on MLflow's page of an experiment: columns of the table, its order, charts. Pure.

MLflow keeps what its button "Share" stores as a tag of the experiment, in JSON, and a link names that tag. Seen with
MLflow 3.17; a version that does not know it shows its usual table.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Mapping
from typing import Any

from hpo_core.spec import StudySpec
from hpo_core.tracking.mlflow_names import LONGEST_TAG, legal_key

_TAG = "mlflow.sharedViewState."
_SECTION = "hpo"
_MOST_CHARTS = 6
_MOST_PARAMETERS = 12
"""More columns than a screen shows."""


def table_tag(identity: Mapping[str, str]) -> str:
    """The experiment's tag that holds the table of one study."""
    return _TAG + _key(identity)


def table_link(identity: Mapping[str, str], experiment_id: str, *, charts: bool = False) -> str:
    """A link from any page of the same MLflow, to the table or to the charts of the same trials."""
    link = f"#/experiments/{experiment_id}/runs?viewStateShareKey={_key(identity)}&workflowType=machine_learning"
    return link + "&compareRunsMode=CHART" if charts else link


def trial_table(spec: StudySpec, identity: Mapping[str, str], logarithmic: Collection[str] = ()) -> str:
    """What the tag holds: the trials of this study alone, best final value first, and its charts.

    Args:
        logarithmic: objectives whose curves have a logarithmic axis.
    """
    finals = [_column("metrics", legal_key(f"final_{metric.name}")) for metric in spec.objectives]
    names = [legal_key(name) for name in list(spec.space)[:_MOST_PARAMETERS]]
    tags = ["hpo.state", "hpo.rung", *(["hpo.pareto"] if len(finals) > 1 else [])]
    columns = [*finals, _column("metrics", "trained_to"), *(_column("params", name) for name in names)]
    which = {**identity, "hpo.kind": "trial"}
    table = {
        "searchFilter": " and ".join(f"tags.`{key}` = '{value}'" for key, value in which.items()),
        "orderByKey": finals[0],
        "orderByAsc": spec.objectives[0].mode == "min",
        "selectedColumns": columns + [_column("tags", tag) for tag in tags],
        "columnOrder": [],
        "runsHiddenMode": "SHOW_ALL" if len(finals) > 1 else "FIRST_20_RUNS",  # the front may be longer
    }
    charts = {
        "compareRunCharts": _charts(spec, logarithmic),
        "compareRunSections": [_section(_SECTION), _section("Model metrics"), _section("System metrics")],
        "isAccordionReordered": True,  # else MLflow sorts the sections by name
    }
    whole = json.dumps(table | charts)
    return whole if len(whole) <= LONGEST_TAG else json.dumps(table)


def _charts(spec: StudySpec, logarithmic: Collection[str]) -> list[dict[str, Any]]:
    """The objectives against each other, and the curve of each; MLflow adds a chart of every other metric."""
    finals = [legal_key(f"final_{metric.name}") for metric in spec.objectives]
    charts: list[dict[str, Any]] = []
    if len(finals) > 1:
        axes = {axis: {"key": key, "type": "METRIC"} for axis, key in zip(("xaxis", "yaxis"), finals, strict=False)}
        charts.append({"type": "SCATTER", **axes, "runsCountToCompare": 100})
    if len(finals) > 2:
        chosen = {"selectedMetrics": finals[:_MOST_PARAMETERS], "selectedParams": [], "showAllRuns": True}
        charts.append({"type": "PARALLEL", **chosen})
    charts += [_curve(metric.name, metric.name in logarithmic) for metric in spec.objectives[:_MOST_CHARTS]]
    common = {"metricSectionId": _SECTION, "deleted": False, "isGenerated": False}
    return [{"uuid": f"{_SECTION}-{number}", **common, **chart} for number, chart in enumerate(charts)]


def _curve(metric: str, logarithmic: bool) -> dict[str, Any]:
    return {
        "type": "LINE",
        "metricKey": legal_key(metric),
        "scaleType": "log" if logarithmic else "linear",
        "range": {},
        "xAxisKey": "step",
        "xAxisScaleType": "linear",
        "lineSmoothness": 0,
        "useGlobalXaxisKey": True,
        "useGlobalLineSmoothing": True,
    }


def _section(name: str) -> dict[str, Any]:
    return {"uuid": name, "name": name, "display": True, "isReordered": False, "isGenerated": True}


def _column(kind: str, name: str) -> str:
    return f"{kind}.`{name}`"


def _key(identity: Mapping[str, str]) -> str:
    return hashlib.sha256(json.dumps(dict(identity), sort_keys=True).encode()).hexdigest()[:20]
