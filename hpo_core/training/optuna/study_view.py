"""ObjectiveStudy: the read-only ``trial.study`` of an Optuna objective; and its ``trial.storage``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hpo_core.model.errors import ObjectiveError

_OTHER_TRIALS = frozenset(
    {"best_params", "best_trial", "best_trials", "best_value", "get_trials", "trials", "trials_dataframe"}
)
_OF_THE_STUDY = frozenset(
    {
        "add_trial", "add_trials", "ask", "enqueue_trial", "optimize", "pruner", "sampler", "set_metric_names",
        "set_system_attr", "set_user_attr", "stop", "tell",
    }
)  # fmt: skip


class ObjectiveStorage:
    """The ``trial.storage`` of an objective: system attributes of its own trial, as long as it trains.

    Functions of Optuna such as ``report_cross_validation_scores`` write there.
    """

    def __init__(self) -> None:
        self._attrs: dict[str, Any] = {}

    def set_trial_system_attr(self, trial_id: int, key: str, value: Any) -> None:
        self._attrs[key] = value

    def get_trial_system_attrs(self, trial_id: int) -> dict[str, Any]:
        return dict(self._attrs)

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(
            f"trial.storage.{name} is not there: an objective has no Optuna storage, and can set and read the "
            "system attributes of its own trial alone."
        )


class ObjectiveStudy:
    """What an objective may know of its study while it trains: name and directions.

    Args:
        name: of the study.
        metrics: names of the objectives.
        modes: ``min`` or ``max`` for each of them.
    """

    _storage = None  # no pruning callback finds a database to write to

    def __init__(self, name: str, metrics: Sequence[str], modes: Sequence[str]) -> None:
        self.study_name = name
        self._metrics = list(metrics)
        self._modes = list(modes)

    @property
    def direction(self) -> Any:
        """The ``optuna.study.StudyDirection`` of the one objective.

        Raises:
            RuntimeError: there are several objectives, as in Optuna.
        """
        if len(self._modes) > 1:
            raise RuntimeError("A study with several objectives has no single direction; use trial.study.directions.")
        return self.directions[0]

    @property
    def directions(self) -> list[Any]:
        """The ``optuna.study.StudyDirection`` of each objective."""
        from optuna.study import StudyDirection

        return [StudyDirection.MAXIMIZE if mode == "max" else StudyDirection.MINIMIZE for mode in self._modes]

    @property
    def metric_names(self) -> list[str]:
        """Names of the objectives."""
        return list(self._metrics)

    @property
    def user_attrs(self) -> dict[str, Any]:
        """Empty: a study here has none."""
        return {}

    @property
    def system_attrs(self) -> dict[str, Any]:
        """Empty: a study here has none."""
        return {}

    def __getattr__(self, name: str) -> Any:
        if name in _OTHER_TRIALS:
            raise ObjectiveError(
                f"trial.study.{name} is not known while a trial trains: a trial must come to the same result whatever "
                "others run beside it. Look at them afterwards (`hpo show`), or compute it in the objective."
            )
        if name in _OF_THE_STUDY:
            raise ObjectiveError(
                f"trial.study.{name} is not there for an objective: trial.study can only be read. Say it in the study "
                "file, or with `hpo` at the command line."
            )
        raise AttributeError(
            f"trial.study.{name} is not there: an objective sees study_name, direction, directions, metric_names and "
            "user_attrs of its study."
        )
