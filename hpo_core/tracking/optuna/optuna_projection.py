"""A study in an Optuna storage, for Optuna's dashboard and figures, and for whoever works with Optuna.

What an Optuna trial shows is a function of the journal (:mod:`hpo_core.study.optuna_trials`); here it is compared with
what the storage holds, and the difference is written. The cursor goes last, so a crash after any call is made good by
the next attempt. Optuna changes no trial that has ended. Where one goes on all the same (a resumed study, training
beyond the search), the whole copy is deleted and made anew.
"""

from __future__ import annotations

import json
import logging
import warnings
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, ClassVar

from optuna.storages import BaseStorage
from optuna.trial import FrozenTrial, TrialState

from hpo_core.model.errors import HpoError, JournalError
from hpo_core.model.events import Entry
from hpo_core.samplers.sampler import RecordedSampler
from hpo_core.study import Study
from hpo_core.study.optuna_trials import TRIAL, OptunaTrials, directions_of
from hpo_core.tracking.mlflow_links import shown_uri
from hpo_core.tracking.optuna.optuna_links import dashboard_command
from hpo_core.tracking.optuna.optuna_storage import close_storage, open_storage
from hpo_core.tracking.projection import DivergedError, chained
from hpo_core.tracking.projection_lock import ProcessLock

CREATED = "hpo.created"
"""System attribute of the study: time of entry 0, which tells it from another study of the same name."""
CURSOR = "hpo.projected_seq"
DIGEST = "hpo.projected_digest"
METRIC_NAMES = "study:metric_names"
"""Where Optuna's ``Study.set_metric_names`` puts them."""

log = logging.getLogger(__name__)


class OptunaProjection:
    """Copies one study into one Optuna storage, as the Optuna study of the same name.

    An Optuna study of that name that is not ours is never touched: ours is then called ``NAME (time of creation)``.

    Args:
        storage: an open storage, in place of the one at ``url``.
    """

    tracker: ClassVar[str] = "Optuna"
    experiment: ClassVar[str] = ""
    deleted: ClassVar[bool] = False
    """A copy that somebody deleted is made anew."""

    def __init__(
        self, study_name: str, url: str, study_folder: str | Path, *, storage: BaseStorage | None = None
    ) -> None:
        self.study_name = study_name
        self.tracking_uri = url
        self.study_folder = Path(study_folder)
        self.has_controller = True
        self.lock = ProcessLock.of(self.study_folder, f"optuna {url}")
        self._given = storage
        self._storage: BaseStorage | None = None
        self._anew = False
        """Whether what the storage holds is to be deleted."""
        self._begin_anew()

    def _begin_anew(self) -> None:
        self._study: Study | None = None
        self._trials: OptunaTrials | None = None
        self._created = 0.0
        self._next_seq = 0
        self._chain = b""
        self._touched: dict[int, None] = {}
        self._disconnect()
        self._cursor: int | None = None

    def _disconnect(self) -> None:
        """Forget what the storage holds: after an error nobody knows whether the last call took place."""
        storage, self._storage = self._storage, None
        if storage is not None and storage is not self._given:
            close_storage(storage)
        self._copy: int | None = None
        self._copy_name = ""
        self._held: dict[int, FrozenTrial] = {}
        self._attributes: dict[str, Any] = {}
        self._system: dict[str, Any] = {}
        self._expected = ""
        self._looked_up = False

    # What callers may ask.

    @property
    def next_seq(self) -> int:
        """The first entry not taken in yet."""
        return self._next_seq

    @property
    def created(self) -> float | None:
        """Time of entry 0; None before it was taken in."""
        return self._created if self._next_seq else None

    @property
    def written_seq(self) -> int:
        """The last entry the storage surely holds (-1: none)."""
        return -1 if self._cursor is None else self._cursor

    @property
    def url(self) -> str | None:
        """The command that shows the copy, once there is one."""
        return dashboard_command(self.tracking_uri) if self._copy is not None else None

    @property
    def copy_name(self) -> str:
        """Name of the Optuna study."""
        return self._copy_name

    # The protocol.

    def project(self, entries: Iterable[Entry], *, rebuild: bool = False, length: int | None = None) -> int:
        """Copy what is new; returns how many entries the storage did not hold before.

        Raises:
            DivergedError: the copy has to be made anew (see :meth:`supersede`).
            ProjectionBusyError: another process copies this study.
            JournalError: entries are missing or out of order.
            Exception: whatever the storage raises; call again later.
        """
        self.lock.take()
        if rebuild:
            self._begin_anew()
            self._anew = True
        count = 0
        try:
            storage = self._connected()  # first: where it cannot be reached, no entry is read in vain
            for entry in entries:
                if entry.seq >= self._next_seq:
                    self.has_controller = True
                    self._take_in(entry, storage)
            if self._next_seq:
                self._look_up(storage)  # also where nothing is new: somebody may have deleted the copy
            if self.written_seq < self._next_seq - 1:
                count = self._next_seq - 1 - self.written_seq
                self._write(storage)
            if length is not None and self.written_seq >= length:
                raise DivergedError(
                    f"Study {self.study_name!r}: Optuna holds entries up to {self.written_seq}, the journal has "
                    f"{length}. An older journal was put back, it seems."
                )
        except BaseException:
            self._disconnect()
            raise
        return count

    def supersede(self) -> None:
        """Begin again at entry 0; a rebuild, which deletes the copy, follows."""
        self.lock.take()
        self._begin_anew()

    def finish(self) -> None:
        """Nobody drives the study any more: where its search is over, what is paused is pruned."""
        if not self._next_seq:
            return
        self.lock.take()
        self.has_controller = False
        self._touched.update(dict.fromkeys(range(len(self._state.trials))))
        try:
            self._write(self._connected())
        except BaseException:
            self._disconnect()
            raise

    def close(self) -> None:
        """Let another process project."""
        self._disconnect()
        self.lock.free()

    # Inside.

    @property
    def _state(self) -> Any:
        assert self._study is not None
        return self._study.state

    def _connected(self) -> BaseStorage:
        if self._storage is None:
            self._storage = self._given if self._given is not None else open_storage(self.tracking_uri)
        return self._storage

    def _take_in(self, entry: Entry, storage: BaseStorage) -> None:
        if entry.seq != self._next_seq:
            raise JournalError(
                f"Projection: entry {entry.seq} was given where entry {self._next_seq} is next. "
                "Give the journal's entries in order and without a gap."
            )
        if self._study is None:
            self._study = Study.from_entries([entry], sampler=RecordedSampler([]))
            self._trials = OptunaTrials(self._study.spec, self._study.state)
            self._created = entry.time
        else:
            self._study.replay(entry)
        assert self._trials is not None
        self._touched.update(dict.fromkeys(sorted(self._trials.add(entry))))
        self._chain = chained(self._chain, entry)
        self._next_seq += 1
        self._look_up(storage)
        if entry.seq == self.written_seq and self._expected not in ("", self._chain.hex()):
            raise DivergedError(
                f"Study {self.study_name!r}: what Optuna holds up to entry {entry.seq} is not what the journal holds. "
                "An older journal was put back, it seems."
            )
        if entry.seq <= self.written_seq:
            self._touched = {}

    def _look_up(self, storage: BaseStorage) -> None:
        """Find the copy, and how far it is."""
        if self._looked_up:
            return
        found = {study.study_name: study for study in storage.get_all_studies()}
        assert self._study is not None
        directions = directions_of(self._study.spec)
        for name in self._names():
            study = found.get(name)
            if study is None:
                self._copy_name = name
                break
            empty = not study.system_attrs and not storage.get_all_trials(study._study_id, deepcopy=False)
            ours = study.system_attrs.get(CREATED) == repr(self._created)
            if (ours or empty) and list(study.directions) == directions:
                self._copy_name, self._copy = name, study._study_id
                break
        else:
            raise HpoError(
                f"{shown_uri(self.tracking_uri)} holds other studies by the names {' and '.join(self._names())}. "
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
        self._looked_up = True

    def _names(self) -> list[str]:
        at = datetime.fromtimestamp(self._created, UTC)
        return [self.study_name, f"{self.study_name} ({at:%Y-%m-%d %H:%M:%S} UTC)"]

    def _write(self, storage: BaseStorage) -> None:
        """Write what differs; the cursor last."""
        assert self._study is not None and self._trials is not None
        self._look_up(storage)
        if self._copy is None:
            self._copy = storage.create_new_study(directions_of(self._study.spec), self._copy_name)
        self._set_system(storage, CREATED, repr(self._created))
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
        self._set_system(storage, DIGEST, self._chain.hex())
        self._set_system(storage, CURSOR, self._next_seq - 1)
        self._cursor = self._next_seq - 1
        self._touched = {}

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
