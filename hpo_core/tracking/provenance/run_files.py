"""RunFiles: the files of one run, fetched with a limit each and only from where they may be fetched."""

from __future__ import annotations

import contextlib
import re
import resource
from collections.abc import Iterator
from pathlib import Path

from hpo_core.model.errors import HpoError
from hpo_core.tracking.credential_scope import may_say_where
from hpo_core.tracking.mlflow_client import open_client
from hpo_core.tracking.mlflow_links import shown_uri

_RUN = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")


class RunFiles:
    """The files of one run, each with a limit."""

    def __init__(self, tracking_uri: str, run_id: str) -> None:
        if not _RUN.fullmatch(run_id):
            raise HpoError(f"{run_id[:100]!r} is no ID of an MLflow run. The page of the study's run shows it.")
        self.run_id = run_id
        self._client = open_client(tracking_uri)
        run = self._client.get_run(run_id)
        self.tags: dict[str, str] = dict(run.data.tags)
        self._where = shown_uri(tracking_uri)
        if self.tags.get("hpo.kind") != "study":
            raise HpoError(
                f"MLflow run {run_id} at {self._where} is not that of a study (tag hpo.kind = "
                f"{self.tags.get('hpo.kind')!r}). Give the run that holds the trials' runs, not one of a trial."
            )
        if not may_say_where(tracking_uri, str(run.info.artifact_uri)):
            raise HpoError(
                f"MLflow at {self._where} keeps the files of run {run_id} elsewhere ({run.info.artifact_uri}); "
                "this process would fetch them with its own credentials. If you trust that server, set "
                "MLFLOW_TRACKING_URI to it, or add it to HPO_ALLOWED_TRACKING."
            )

    def sizes(self, folder: str) -> dict[str, int]:
        """Files of a folder of the run, with their sizes."""
        found = self._client.list_artifacts(self.run_id, folder)
        return {str(item.path): int(item.file_size or 0) for item in found if not item.is_dir}

    def fetch(self, name: str, into: Path, limit: int) -> Path:
        """Download one file.

        Raises:
            HpoError: it is larger than ``limit`` bytes, or no file came.
        """
        said = self.sizes(name.rpartition("/")[0])
        if name not in said:
            raise HpoError(f"MLflow run {self.run_id} at {self._where} has no file {name}.")
        if said[name] <= limit:
            try:
                with _files_up_to(limit):
                    path = Path(self._client.download_artifacts(self.run_id, name, str(into)))
            except OSError as error:
                raise HpoError(f"{name} of MLflow run {self.run_id} cannot be fetched: {error}.") from error
            inside = path.resolve().is_relative_to(into.resolve()) and not path.is_symlink()
            if inside and path.is_file():
                return path
        raise HpoError(
            f"{name} of MLflow run {self.run_id} has {said[name]:,} bytes or is no file; at most {limit:,} are "
            "fetched. It was not written by this package."
        )


@contextlib.contextmanager
def _files_up_to(size: int) -> Iterator[None]:
    """While a file is downloaded: none becomes larger, whatever size the server said."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    limits = [limit for limit in (size, soft, hard) if limit != resource.RLIM_INFINITY]
    resource.setrlimit(resource.RLIMIT_FSIZE, (min(limits), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
