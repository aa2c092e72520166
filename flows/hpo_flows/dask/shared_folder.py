"""The study's folder on a worker: seen there, or not needed since code is installed and checkpoints are at a URL."""

from __future__ import annotations

import contextlib
import hashlib
import uuid
from pathlib import Path

import msgspec

from hpo_core.checkpoints.storage import is_remote
from hpo_core.model.errors import StorageError
from hpo_core.security.private_files import open_private, private_folder
from hpo_core.spec.sent_functions import digest_of

TOKEN = "token"
"""File in the study's folder by which a worker sees that it is the same folder."""


class SharedFolder(msgspec.Struct, frozen=True):
    """The study's folder, as a worker is told of it."""

    path: str
    token: str

    @classmethod
    def of(cls, folder: str) -> SharedFolder:
        path = private_folder(Path(folder)) / TOKEN
        with contextlib.suppress(FileExistsError), open_private(path, "xb") as file:
            file.write(uuid.uuid4().hex.encode())
        with open_private(path, "rb") as file:
            return cls(folder, file.read(64).decode("ascii", "replace"))

    def is_seen(self) -> bool:
        try:
            return Path(self.path, TOKEN).read_text() == self.token
        except (OSError, ValueError):
            return False

    def check_not_needed(self, base: str, functions: tuple[str, ...], *, gang: bool = False) -> None:
        """Refuse to train without it what needs it.

        Args:
            base: of the study's checkpoints.
            functions: names of the objective and of ``data.load``; empty ones are none.

        Raises:
            StorageError: with the cure.
        """
        if is_remote(base) and not gang and not any(_is_sent(name) for name in functions):
            return
        raise StorageError(
            f"This worker does not see the study's folder {self.path}. Mount the home folder there under the same path "
            "(a shared file system). Or install the code on the workers as a package and set checkpoints.folder to a "
            "URL; gangs need the folder all the same."
        )

    def instead(self, scratch: str) -> str:
        """The folder for logs on a worker that does not see the study's.

        Args:
            scratch: private folder of the worker.
        """
        name = hashlib.sha256(f"{self.path}\0{self.token}".encode()).hexdigest()[:16]
        return str(Path(scratch) / f"hpo-{name}")


def _is_sent(name: str) -> bool:
    return digest_of(name.rpartition("/")[2]) is not None
