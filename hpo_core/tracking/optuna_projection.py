"""A study in an Optuna storage, for Optuna's dashboard and figures, and for whoever works with Optuna.

What an Optuna trial shows is a function of the journal (:mod:`hpo_core.study.optuna_trials`); here it is compared with
what the storage holds, and the difference is written. The cursor goes last, so a crash after any call is made good by
the next attempt. Optuna changes no trial that has ended. Where one goes on all the same (a resumed study), the
whole copy is deleted and made anew.
"""

from __future__ import annotations

import json
import logging
import warnings
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from optuna.storages import BaseStorage
from optuna.trial import FrozenTrial, TrialState

from hpo_core.model.errors import HpoError
from hpo_core.model.events import Entry
from hpo_core.samplers.sampler import RecordedSampler
from hpo_core.security.masking import without_credentials
from hpo_core.study import Study
from hpo_core.study.optuna_trials import TRIAL, OptunaTrials, directions_of
from hpo_core.tracking.projection import DivergedError, Projection
from hpo_core.tracking.tracker_links import dashboard_command

if TYPE_CHECKING:
    from optuna.storages import RDBStorage


_OPTUNAS = {"studies", "trials", "version_info"}
_SECONDS = 10
"""How long a database may take to answer; the follower tries again."""


def open_storage(url: str) -> RDBStorage:
    """The storage at a database URL; its tables are made where there are none.

    Raises:
        HpoError: the database holds tables of something else.
        Exception: whatever the database raises.
    """
    import optuna
    from sqlalchemy import create_engine, inspect

    for name in ("alembic", "optuna"):
        logging.getLogger(name).setLevel(logging.ERROR)
    arguments = {"timeout" if url.startswith("sqlite") else "connect_timeout": _SECONDS}
    engine = create_engine(url, connect_args=arguments)
    try:
        tables = set(inspect(engine).get_table_names())
    finally:
        engine.dispose()
    if tables and not tables >= _OPTUNAS:
        raise HpoError(
            f"{without_credentials(url)} holds tables of something else ({', '.join(sorted(tables)[:3])}, ...), and "
            "Optuna shares a database with nothing. Name another one in tracking.optuna."
        )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return optuna.storages.RDBStorage(plain_url(url), engine_kwargs={"connect_args": arguments})


def plain_url(url: str) -> str:
    """A database URL for Optuna, which formats it: braces in the name of a file are no fields."""
    return url.replace("{", "{{").replace("}", "}}")


CREATED = "hpo.created"
"""System attribute of the study: time of entry 0, which tells it from another study of the same name."""
CURSOR = "hpo.projected_seq"
DIGEST = "hpo.projected_digest"
METRIC_NAMES = "study:metric_names"
"""System attribute in which Optuna's ``Study.set_metric_names`` keeps names."""

log = logging.getLogger(__name__)


class OptunaProjection(Projection):
    """Copies one study into one Optuna storage, as the Optuna study of the same name.

    An Optuna study of that name that is not ours is never touched: ours is then called ``NAME (time of creation)``.
    A copy that somebody deleted is made anew.

    Args:
        study_name: name of the study.
        url: of the storage.
        study_folder: holds the lock.
        storage: an open storage, in place of the one at ``url``.
    """

    tracker: ClassVar[str] = "Optuna"
    writes_each_chunk: ClassVar[bool] = False
    """A trial that goes on later has not ended: Optuna would not change it any more."""

    def __init__(
        self, study_name: str, url: str, study_folder: str | Path, *, storage: BaseStorage | None = None
    ) -> None:
        self._given = storage
        self._storage: BaseStorage | None = None
        super().__init__(study_name, url, study_folder, target=f"optuna {url}")

    def _begin_anew(self) -> None:
        super()._begin_anew()
        self._study: Study | None = None
        self._trials: OptunaTrials | None = None
        self._touched: dict[int, None] = {}

    def _connect(self) -> None:
        if self._storage is None:
            self._storage = self._given if self._given is not None else open_storage(self.tracking_uri)

    def _disconnect(self) -> None:
        super()._disconnect()
        storage, self._storage = self._storage, None
        if storage is not None and storage is not self._given:
            storage.remove_session()
            storage.engine.dispose()  # type: ignore[attr-defined]
        self._copy: int | None = None
        self.copy_name = ""
        """Name of the Optuna study."""
        self._held: dict[int, FrozenTrial] = {}
        self._attributes: dict[str, Any] = {}
        self._system: dict[str, Any] = {}

    @property
    def url(self) -> str | None:
        """The command that shows the copy, once there is one."""
        return dashboard_command(self.tracking_uri) if self._copy is not None else None

    @property
    def trials(self) -> int:
        return 0 if self._study is None else len(self._study.state.trials)

    def _fold_in(self, entry: Entry) -> None:
        if self._study is None:
            self._study = Study.from_entries([entry], sampler=RecordedSampler([]))
            self._trials = OptunaTrials(self._study.spec, self._study.state)
        else:
            self._study.replay(entry)
        assert self._trials is not None
        self._touched.update(dict.fromkeys(sorted(self._trials.add(entry))))

    def _clear_changes(self) -> None:
        self._touched = {}

    def _find_copy(self) -> None:
        """Find the copy, and how far it is; a rebuild deletes it."""
        storage = self._storage
        assert self._study is not None and storage is not None
        found = {study.study_name: study for study in storage.get_all_studies()}
        directions = directions_of(self._study.spec)
        at = datetime.fromtimestamp(self.created or 0.0, UTC)
        names = [self.study_name, f"{self.study_name} ({at:%Y-%m-%d %H:%M:%S} UTC)"]
        for name in names:
            study = found.get(name)
            if study is None:
                self.copy_name = name
                break
            empty = not study.system_attrs and not storage.get_all_trials(study._study_id, deepcopy=False)
            ours = study.system_attrs.get(CREATED) == repr(self.created)
            if (ours or empty) and list(study.directions) == directions:
                self.copy_name, self._copy = name, study._study_id
                break
        else:
            raise HpoError(
                f"{without_credentials(self.tracking_uri)} holds other studies by the names {' and '.join(names)}. "
                "Name another storage in tracking.optuna."
            )
        if self._anew and self._copy is not None:
            storage.delete_study(self._copy)
            self._copy = None
        self._anew = False
        attributes = {} if self._copy is None else storage.get_study_system_attrs(self._copy)
        held = int(attributes.get(CURSOR, -1))
        if self._cursor is not None and held < self._cursor:
            raise DivergedError(f"Study {self.study_name!r}: its copy was deleted from Optuna's storage.")
        self._cursor, self._expected = held, attributes.get(DIGEST, "")
        self._system = dict(attributes)
        if self._copy is not None:
            self._attributes = dict(storage.get_study_user_attrs(self._copy))
            for trial in storage.get_all_trials(self._copy, deepcopy=False):
                if (number := trial.user_attrs.get(TRIAL)) is not None:
                    self._held.setdefault(number, trial)

    def _write_end(self) -> None:
        """Prune what is paused, where the search is over."""
        assert self._study is not None
        self._touched.update(dict.fromkeys(range(len(self._study.state.trials))))
        self._write()

    def _write_changes(self) -> None:
        """Write what differs; the cursor last."""
        storage = self._storage
        assert self._study is not None and self._trials is not None and storage is not None
        if self._copy is None:
            self._copy = storage.create_new_study(directions_of(self._study.spec), self.copy_name)
        self._set_system(storage, CREATED, repr(self.created))
        ended = not self.has_controller and self._study.status != "open"
        for number in self._touched:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of ranges whose end is on no step
                self._write_trial(storage, self._trials.frozen(number, ended=ended))
        names = [metric.name for metric in self._study.spec.objectives]
        self._set_system(storage, METRIC_NAMES, names)
        for key, value in self._study_attributes().items():
            if key not in self._attributes or self._attributes[key] != value:
                storage.set_study_user_attr(self._copy, key, value)
                self._attributes[key] = value
        self._set_system(storage, DIGEST, self._digest.hex())
        self._set_system(storage, CURSOR, self.next_seq - 1)

    def _set_system(self, storage: BaseStorage, key: str, value: Any) -> None:
        assert self._copy is not None
        if self._system.get(key) != value:
            storage.set_study_system_attr(self._copy, key, value)
            self._system[key] = value

    def _write_trial(self, storage: BaseStorage, wanted: FrozenTrial) -> None:
        assert self._copy is not None
        held = self._held.get(wanted.number)
        if held is None:
            wanted._trial_id = storage.create_new_trial(self._copy, template_trial=wanted)
        elif held.state.is_finished():
            if not _same(_content(held), _content(wanted)):
                raise DivergedError(
                    f"Study {self.study_name!r}: trial {wanted.number} went on, and Optuna changes no trial that has "
                    "ended."
                )
            return
        else:
            wanted._trial_id = held._trial_id
            for step, value in wanted.intermediate_values.items():
                if step not in held.intermediate_values or not _same(held.intermediate_values[step], value):
                    storage.set_trial_intermediate_value(held._trial_id, step, value)
            for key, value in wanted.user_attrs.items():
                if held.user_attrs.get(key) != value:
                    storage.set_trial_user_attr(held._trial_id, key, value)
            for key, value in wanted.system_attrs.items():
                if held.system_attrs.get(key) != value:
                    storage.set_trial_system_attr(held._trial_id, key, value)
            if wanted.state is not TrialState.RUNNING:
                storage.set_trial_state_values(held._trial_id, wanted.state, wanted.values)
        self._held[wanted.number] = wanted

    def _study_attributes(self) -> dict[str, Any]:
        """What the study's page shows beside its trials."""
        study = self._study
        assert study is not None
        spec, best = study.spec, study.best
        status = study.status
        if status == "open":
            status = "running" if self.has_controller else "interrupted"
        found: dict[str, Any] = {
            "hpo.status": status,
            "hpo.search": spec.search.method,
            "hpo.sampler": spec.sampler.name,
            "hpo.constraints": list(spec.constraints) or None,
        }
        if best is not None and len(spec.objectives) == 1:
            found |= {
                "hpo.best_trial": best.trial,
                "hpo.best_value": study.metric_value(best.loss),
                "hpo.best_resource": best.resource,
                "hpo.best_params": json.dumps(study.state.trials[best.trial].params),
            }
        return {key: value for key, value in found.items() if value is not None}


def _content(trial: FrozenTrial) -> list[Any]:
    """What must not differ in a trial that has ended."""
    steps = sorted(trial.intermediate_values.items())
    return [trial.state, trial.values, *[value for step in steps for value in step]]


def _same(one: Any, other: Any) -> bool:
    """Equal, with NaN equal to itself."""
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_same, one, other))
    return bool(one == other or (one != one and other != other))
