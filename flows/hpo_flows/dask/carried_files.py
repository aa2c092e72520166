"""Files that go with a job where its worker does not see the study's folder: there and back on Dask's connections.

The study's folder stays the place of record. A worker without it gets the checkpoint that the job begins with, trains
in a folder of its own, and returns the checkpoint that it wrote and its log with the report. The report counts once
both are in the study's folder. So a computer that is lost takes only what ran there with it.

A worker sees the folder if it finds the study's token there. Until a job has come back from a worker that does not, no
file is sent; a job that lacks its checkpoint there is not begun, and is sent again with it.
"""

from __future__ import annotations

import contextlib
import hashlib
import shutil
import threading
import uuid
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import msgspec

from hpo_core.checkpoints.files import file_of, write_chunks
from hpo_core.checkpoints.storage import attempt_files, remove
from hpo_core.model.errors import CheckpointError, StorageError
from hpo_core.model.trial import Outcome, Report
from hpo_core.security.private_files import open_private, private_folder, write_private
from hpo_core.spec.sent_functions import digest_of
from hpo_core.training.by_value import FOLDER as CODE
from hpo_core.training.by_value import placed
from hpo_core.training.request import JobRequest, decode_report, decode_request, encode_report, encode_request
from hpo_core.training.worker import train_job

TOKEN = "token"
"""File in the study's folder by which a worker sees that it is the same folder."""
MOST_BYTES = 1 << 30
"""Size of the largest checkpoint that is carried: it lies in the memory of worker, scheduler and controller."""
warnings.filterwarnings("ignore", "Sending large graph", UserWarning)


class Carried(msgspec.Struct, frozen=True):
    """What goes with a job, or with the question whether the objective can be imported."""

    folder: str
    """The study's folder, where the controller runs."""
    token: str
    files: dict[str, bytes] = {}
    """Content by path in the study's folder; empty until a worker is known to need it."""


class Returned(msgspec.Struct, frozen=True):
    """What comes back from a worker that does not see the study's folder."""

    checkpoint: bytes | None = None
    log: bytes = b""
    lacks: bool = False
    """The job was not begun: its checkpoint, or its function, is not there."""


# Where the controller runs.


class CarriedFiles:
    """Sends and takes the files of one study.

    Args:
        folder: absolute study folder.
        functions: the study's functions, of which some may have been sent by value.
    """

    def __init__(self, folder: str | Path, functions: Iterable[str] = ()) -> None:
        self._folder = Path(folder)
        self._code = [digest for name in functions if (digest := digest_of(name)) is not None]
        self._needed = False
        """Whether some worker does not see the folder."""
        self._log_lock = threading.Lock()
        path = private_folder(self._folder) / TOKEN
        with contextlib.suppress(FileExistsError), open_private(path, "xb") as file:
            file.write(uuid.uuid4().hex.encode())
        with open_private(path, "rb") as file:
            self._token = file.read(64).decode("ascii", "replace")

    def code(self) -> Carried:
        """The functions that were sent by value."""
        files = {}
        for name in (f"{CODE}/{digest}.{kind}" for digest in self._code for kind in ("pkl", "py")):
            with contextlib.suppress(FileNotFoundError), open_private(self._folder / name, "rb") as file:
                files[name] = file.read()
        return Carried(str(self._folder), self._token, files)

    def of(self, request: JobRequest) -> Carried:
        """What goes with a job.

        Raises:
            StorageError: its checkpoint cannot be read here, or is too large.
        """
        if not self._needed:
            return Carried(str(self._folder), self._token)
        carried, start = self.code(), request.job.checkpoint
        if start is None or "://" in start.uri:
            return carried
        _refuse_large(start.size)
        path = file_of(self._folder, start.uri)
        assert path is not None
        try:
            content = path.read_bytes()
        except FileNotFoundError:
            content = b""  # a checkpoint that is bad, as any other worker would find
        except OSError as error:
            raise StorageError(f"Checkpoint {path} cannot be read: {error.strerror or error}.") from error
        return msgspec.structs.replace(carried, files=carried.files | {start.uri: content})

    def take(self, request: JobRequest, report: Report, returned: Returned | None) -> Report | None:
        """Write what came back into the study's folder; the report that counts then.

        Args:
            returned: None: the worker sees the folder.

        Returns:
            None: send the job again, with its files.
        """
        if returned is None:
            return report
        self._needed = True
        if returned.lacks:
            return None
        self._append_log(request, returned.log)
        if report.checkpoint is None or report.checkpoint == request.job.checkpoint or "://" in report.checkpoint.uri:
            return report
        try:
            self._write(request, report, returned.checkpoint or b"")
        except (StorageError, CheckpointError) as error:
            facts = {"started": report.started, "ended": report.ended, "worker": report.worker, "usage": report.usage}
            return request.report(Outcome.STORAGE, str(error), **facts)
        return report

    def _write(self, request: JobRequest, report: Report, content: bytes) -> None:
        told, unit = report.checkpoint, request.job.unit
        assert told is not None
        if told.uri != request.checkpoint_path:
            raise StorageError(f"Worker {report.worker} returned a checkpoint as {told.uri!r}, which is not its place.")
        written = write_chunks(
            self._folder,
            told.uri,
            [memoryview(content)],
            resource=told.resource,
            parent=told.parent,
            durable=unit is None or unit.durable,
        )
        if written.digest != told.digest:
            raise StorageError(
                f"Checkpoint {told.uri} came from worker {report.worker} with other bytes than it wrote."
            )

    def _append_log(self, request: JobRequest, content: bytes) -> None:
        """A log that cannot be written costs no result."""
        path = self._folder / request.log_path
        with self._log_lock, contextlib.suppress(OSError, StorageError):
            private_folder(path.parent, below=self._folder)
            with open_private(path, "ab") as file:
                file.write(content)


def _refuse_large(size: int) -> None:
    if size > MOST_BYTES:
        raise StorageError(
            f"A checkpoint of {size:,} bytes is not carried between workers that have no folder in common: more than "
            f"{MOST_BYTES:,} would lie in the scheduler's memory. Set checkpoints.folder to a URL, or mount the home "
            "folder on every worker; then resume the study."
        )


# On a worker.

_in_use: Counter[Path] = Counter()
"""Files that jobs of this process begin with: members of a population may begin with one."""
_lock = threading.Lock()


def sees(carried: Carried) -> bool:
    """Whether this computer sees the study's folder."""
    try:
        return Path(carried.folder, TOKEN).read_text() == carried.token
    except (OSError, ValueError):
        return False


def own_folder(carried: Carried, scratch: str) -> Path:
    """The folder that stands for the study's on a worker that does not see it.

    Args:
        scratch: private folder of the worker.
    """
    name = hashlib.sha256(f"{carried.folder}\0{carried.token}".encode()).hexdigest()[:16]
    return Path(scratch) / f"hpo-{name}"


def objective_here(objective: str, carried: Carried, scratch: str) -> str:
    """What a trainer of this worker loads; writes the functions that were sent by value."""
    if sees(carried):
        return objective
    folder = own_folder(carried, scratch)
    for name, content in carried.files.items():
        if name.startswith(f"{CODE}/"):
            private_folder((folder / name).parent, below=folder)
            write_private(folder / name, content)
    return _placed_here(objective, folder)


def forget_folder(carried: Carried, scratch: str) -> None:
    """Remove the folder that stood for the study's."""
    shutil.rmtree(own_folder(carried, scratch), ignore_errors=True)


def _placed_here(objective: str, folder: Path) -> str:
    name = _sent_name(objective)
    return objective if name is None else placed(name, folder)


def _sent_name(objective: str) -> str | None:
    """Name of a function that was sent by value; None for any other."""
    name = objective.rpartition("/")[2]
    return None if digest_of(name) is None else name


def train_apart(
    encoded: bytes, carried: Carried, scratch: str, *, worker: str = "", on_free: Callable[[], None] = lambda: None
) -> tuple[bytes, Returned]:
    """Train a job on a worker that does not see the study's folder."""
    request, folder = decode_request(encoded), own_folder(carried, scratch)
    start = request.job.checkpoint
    if request.gang is not None:
        message = (
            f"training.gang: this worker does not see the study's folder {carried.folder}, where the ranks of a gang "
            "find each other. Mount the home folder there under the same path, then resume the study."
        )
        return encode_report(request.report(Outcome.STORAGE, message)), Returned()
    brought = None if start is None or "://" in start.uri else start.uri
    sent = [f"{CODE}/{digest_of(name)}.pkl" for name in map(_sent_name, (request.objective, request.load)) if name]
    needed = [name for name in sent if not (folder / name).is_file()] + ([brought] if brought else [])
    if any(name not in carried.files for name in needed):
        return encode_report(request.report(Outcome.LOST)), Returned(lacks=True)
    objective, load = (objective_here(name, carried, scratch) for name in (request.objective, request.load))
    here = encode_request(msgspec.structs.replace(request, objective=objective, load=load))
    private_folder(folder)
    with _brought(folder, brought, carried):
        try:
            report = decode_report(train_job(here, on_free, worker=worker, folder=str(folder)))
            return _with_files(request, report, folder)
        finally:
            base, job = request.checkpoint_base, request.job
            if "://" not in base:
                for uri in {request.checkpoint_path, *attempt_files(folder, base, job.trial, job.attempt)} - {brought}:
                    remove(folder, uri)
            (folder / request.log_path).unlink(missing_ok=True)


@contextlib.contextmanager
def _brought(folder: Path, uri: str | None, carried: Carried) -> Iterator[None]:
    """Context manager: the checkpoint that came with the job, as a file."""
    if uri is None:
        yield
        return
    path = folder / uri
    with _lock:
        _in_use[path] += 1
        if _in_use[path] == 1 and (content := carried.files[uri]):
            private_folder(path.parent, below=folder)
            write_private(path, content)
    try:
        yield
    finally:
        with _lock:
            _in_use[path] -= 1
            if not _in_use[path]:
                del _in_use[path]
                path.unlink(missing_ok=True)


def _with_files(request: JobRequest, report: Report, folder: Path) -> tuple[bytes, Returned]:
    """The report, and the files that it names."""
    saved, content = report.checkpoint, None
    try:
        if saved is not None and saved != request.job.checkpoint and "://" not in saved.uri:
            _refuse_large(saved.size)
            content = (folder / saved.uri).read_bytes()
    except (OSError, StorageError) as error:
        facts = {"started": report.started, "ended": report.ended, "usage": report.usage}
        report = request.report(Outcome.STORAGE, str(error), **facts)
    log = b""
    with contextlib.suppress(OSError):
        log = (folder / request.log_path).read_bytes()
    return encode_report(report), Returned(content, log)
