"""Configurations for a running study: one process asks, the controller enqueues.

A request is a file in the study's folder, for a journal has one writer. Its name goes into the journal with the
configuration, so whoever finds the file after that enqueues nothing again. It stays until a controller takes it.
"""

from __future__ import annotations

import json
import logging
import re
import time
import uuid
from pathlib import Path
from typing import Any

from hpo_core.model.errors import FencedError, HpoError, JournalError, StorageError
from hpo_core.model.limits import FILE_BYTES
from hpo_core.model.trial import Params
from hpo_core.security.private_files import open_private, private_folder, write_private
from hpo_core.study import Study

_ASKED, _REFUSED = ".asked", ".refused"
_NAME = re.compile("[0-9]{20}-[0-9a-f]{32}")
"""Name of a request's file: time and number. It goes into the journal; files of other names are no requests."""
LOOK_SECONDS = 0.1
"""Between two looks of who asked."""


class EnqueueRequests:
    """Takes the requests of one study; its loop has it look about once a second.

    Args:
        folder: of the study.
    """

    def __init__(self, study: Study, folder: Path) -> None:
        self._study = study
        self._folder = _folder_of(folder)
        self._left: set[Path] = set()
        """Refused, and could not be removed."""

    def on_tick(self) -> None:
        for path in self._requests():
            refusal = self._enqueue(path)
            try:
                if refusal:
                    write_private(path.with_suffix(_REFUSED), refusal.encode(errors="backslashreplace"))
                path.unlink(missing_ok=True)
            except (OSError, StorageError) as error:  # a study does not end because of who asks something of it
                self._left.add(path)
                logging.getLogger(__name__).warning("Request %s cannot be answered or removed: %s", path, error)

    def _requests(self) -> list[Path]:
        found = self._folder.glob(f"*{_ASKED}")
        return sorted(path for path in found if _NAME.fullmatch(path.stem) and path not in self._left)

    def _enqueue(self, path: Path) -> str:
        if path.stem in self._study.state.requests:
            return ""
        try:
            asked = _read(path)
            self._study.enqueue(asked["params"], skip_if_exists=bool(asked.get("skip_if_exists")), request=path.stem)
        except (FencedError, JournalError):
            raise  # the study's own trouble; the next controller takes the request
        except (HpoError, OSError, ValueError, RecursionError) as error:
            return str(error)
        return ""


def _read(path: Path) -> dict[str, Any]:
    with open_private(path, "rb") as file:
        asked = json.loads(file.read(FILE_BYTES))
    if not isinstance(asked, dict) or not isinstance(asked.get("params"), dict):
        raise HpoError(f"Request {path.name} to enqueue holds no parameters.")
    return asked


def _folder_of(study_folder: Path) -> Path:
    return study_folder / "requests"


class EnqueueRequest:
    """A request to whoever drives the study.

    Args:
        folder: of the study.
    """

    def __init__(self, folder: Path, params: Params, *, skip_if_exists: bool = False) -> None:
        place = private_folder(_folder_of(folder), below=folder)
        self._path = place / f"{time.time_ns():020d}-{uuid.uuid4().hex}{_ASKED}"
        asked = {"params": params, "skip_if_exists": skip_if_exists}
        write_private(self._path, json.dumps(asked).encode(), durable=True)

    def wait(self, seconds: float) -> bool:
        """True if it was enqueued in that time.

        Raises:
            HpoError: the controller refused it, with its reason.
        """
        end = time.monotonic() + seconds
        while self._path.exists():
            if time.monotonic() >= end:
                return False
            time.sleep(LOOK_SECONDS)
        refused = self._path.with_suffix(_REFUSED)
        if refused.exists():
            with open_private(refused, "rb") as file:
                reason = file.read(FILE_BYTES).decode("utf-8", "replace")
            refused.unlink()
            raise HpoError(reason)
        return True

    @property
    def name(self) -> str:
        return self._path.stem

    def remove(self) -> None:
        self._path.unlink(missing_ok=True)
