"""``hpo project``: bring a study's copies in MLflow and Optuna up to date by hand."""

from __future__ import annotations

import logging
import socket

import psutil

from hpo_core.home import Home
from hpo_core.journal.protocol import Journal, Owner, StudyInfo
from hpo_core.model.errors import HpoError
from hpo_core.spec import StudySpec
from hpo_core.tracking.credential_scope import credentials_for
from hpo_core.tracking.mlflow_client import prepare_environment
from hpo_core.tracking.mlflow_links import reason_of, shown_uri
from hpo_core.tracking.mlflow_projection import MlflowProjection
from hpo_core.tracking.projection import DivergedError, FollowedProjection

log = logging.getLogger("hpo.tracking")


class TrackerError(HpoError):
    """The tracker cannot be reached or refuses; the study is not concerned."""


def project_study(home: Home, journal: Journal, name: str, *, rebuild: bool = False) -> str:
    """Project one study wherever it is copied to; returns lines for people. Doing it twice changes nothing.

    Raises:
        StudyNotFoundError: no such study.
        ProjectionBusyError: its follower does this already.
        TrackerError: the study is copied nowhere, or where it is cannot be reached, or refuses.
    """
    info = journal.info(name)
    spec = StudySpec.from_journal(next(iter(journal.entries(name, 0, 1))).stimulus.spec)  # type: ignore[union-attr]
    uri, storage = home.tracking_uri(spec), home.optuna_storage(spec)
    if uri is None and storage is None:
        raise TrackerError(
            f"Study {name!r} has tracking.mlflow = 'off' and is copied nowhere. To copy studies, name a tracking "
            "URI there (or nothing, for a store in the home folder) when they are created."
        )
    prepare_environment()
    folder = home.study_folder(name, create=True)
    projections: list[FollowedProjection] = []
    if uri is not None:
        projections.append(MlflowProjection(name, uri, spec.tracking.experiment, folder, home.artifact_location(spec)))
    if storage is not None:
        from hpo_core.tracking.optuna.optuna_projection import OptunaProjection

        projections.append(OptunaProjection(name, storage, folder))
    lines, errors = [], []
    for projection in projections:  # each for itself: one that cannot be reached holds up no other
        try:
            lines.append(_catch_up(projection, journal, info, rebuild=rebuild))
        except HpoError as error:
            errors.append(error)
    if errors:
        raise errors[0]
    return "\n".join(lines)


def _catch_up(projection: FollowedProjection, journal: Journal, info: StudyInfo, *, rebuild: bool) -> str:
    name, where = projection.study_name, f"{projection.tracker} at {shown_uri(projection.tracking_uri)}"
    try:
        with credentials_for(projection.tracking_uri):
            count = project_all(projection, journal, info.entries, rebuild=rebuild)
            if not has_other_controller(info.owner):
                projection.finish()
        url, deleted = projection.url, projection.deleted
    except HpoError:
        raise
    except Exception as error:
        raise TrackerError(
            f"Study {name!r} was not copied to {where} ({reason_of(error)}). "
            "Check that it runs, then do this again; the study itself is not concerned."
        ) from error
    finally:
        projection.close()
    if deleted:
        return f"{name}: its run was deleted from {where} and stays so; `hpo project {name} --rebuild` makes it anew"
    return f"{name}: {count} new entries of {info.entries} copied; {url}"


def project_all(projection: FollowedProjection, journal: Journal, length: int, *, rebuild: bool = False) -> int:
    """Copy what is new of a journal of ``length`` entries; all anew where what was copied is no more.

    Returns how many entries the tracker did not hold before.
    """
    name = projection.study_name
    try:
        if projection.next_seq > length:
            raise DivergedError(f"Study {name!r}: its journal had {projection.next_seq} entries and has {length} now.")
        start = 0 if rebuild else projection.next_seq
        return projection.project(journal.entries(name, start, length), rebuild=rebuild, length=length)
    except DivergedError as error:
        log.warning("%s It is copied to %s anew; the former copy is deleted there.", error, projection.tracker)
        projection.supersede()
        return projection.project(journal.entries(name, 0, length), rebuild=True, length=length)


def has_other_controller(owner: Owner | None, mine: int | None = None) -> bool:
    """Whether another living controller than process ``mine`` runs the study."""
    if owner is None or owner.host != socket.gethostname() or owner.pid == mine:
        return False
    try:
        return abs(psutil.Process(owner.pid).create_time() - owner.born) < 1.0
    except psutil.Error:
        return False
