"""A study's trials as a table on MLflow's page of an experiment: which columns, sorted by which. Pure.

MLflow keeps what its button "Share" stores as a tag of the experiment, in JSON, and a link names that tag. Seen with
MLflow 3.17; a version that does not know it shows its usual table.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping

from hpo_core.spec import StudySpec
from hpo_core.tracking.mlflow_names import legal_key

_TAG = "mlflow.sharedViewState."
_MOST_PARAMETERS = 12
"""More columns than a screen shows; and MLflow limits the length of a tag."""


def table_tag(identity: Mapping[str, str]) -> str:
    """The experiment's tag that holds the table of one study."""
    return _TAG + _key(identity)


def table_link(identity: Mapping[str, str], experiment_id: str) -> str:
    """A link from any page of the same MLflow."""
    return f"#/experiments/{experiment_id}/runs?viewStateShareKey={_key(identity)}&workflowType=machine_learning"


def trial_table(spec: StudySpec, identity: Mapping[str, str]) -> str:
    """What the tag holds: the trials of this study alone, best final value first."""
    finals = [_column("metrics", legal_key(f"final_{metric.name}")) for metric in spec.objectives]
    names = [legal_key(name) for name in list(spec.space)[:_MOST_PARAMETERS]]
    tags = ["hpo.state", "hpo.rung", *(["hpo.pareto"] if len(finals) > 1 else [])]
    columns = [*finals, _column("metrics", "trained_to"), *(_column("params", name) for name in names)]
    which = {**identity, "hpo.kind": "trial"}
    return json.dumps(
        {
            "searchFilter": " and ".join(f"tags.`{key}` = '{value}'" for key, value in which.items()),
            "orderByKey": finals[0],
            "orderByAsc": spec.objectives[0].mode == "min",
            "selectedColumns": columns + [_column("tags", tag) for tag in tags],
            "columnOrder": [],
        }
    )


def _column(kind: str, name: str) -> str:
    return f"{kind}.`{name}`"


def _key(identity: Mapping[str, str]) -> str:
    return hashlib.sha256(json.dumps(dict(identity), sort_keys=True).encode()).hexdigest()[:20]
