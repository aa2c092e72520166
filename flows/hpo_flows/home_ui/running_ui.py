"""The ``hpo ui`` that serves a home now, as other processes find it: by the lock that it holds."""

from __future__ import annotations

import fcntl
import json
import os
import socket
from pathlib import Path
from typing import Any

from hpo_core.home import Home
from hpo_core.security.private_files import LockFile
from hpo_core.tracking.tracker_links import ProjectionPlace, run_url


def ui_lock(folder: Path) -> LockFile:
    """The lock that is held while a home is served on this machine; its text says where.

    Args:
        folder: ``HOME/ui``.
    """
    return LockFile(folder / f"ui-{socket.gethostname()}.lock", "`hpo ui`")


def said_by(lock: LockFile) -> dict[str, Any]:
    """What the holder of the lock wrote: ``said``, lines for a person, and ``mlflow``, its address."""
    text = lock.read()
    found: dict[str, Any] = json.loads(text) if text.startswith("{") else {}
    return found


def mlflow_page(home: Home, place: ProjectionPlace) -> str:
    """Where a study's run in MLflow is seen: in the ``hpo ui`` that runs now, else as its projection noted."""
    folder = home.folder / "ui"
    if not place.tracking_uri.startswith("sqlite:") or place.tracking_uri != home.default_tracking_uri:
        return place.url
    if not os.access(folder, os.R_OK | os.W_OK):
        return place.url
    lock = ui_lock(folder)
    try:
        if lock.take(fcntl.LOCK_SH):  # nobody serves it
            return place.url
        address = said_by(lock).get("mlflow")
    finally:
        lock.close()
    return place.url if not address else run_url(address, place.experiment_id, place.run_id)
