"""Links to trackers, names that MLflow accepts, and files that say where a copy is. Imports no tracker."""

from __future__ import annotations

import contextlib
import hashlib
import posixpath
import re
import shlex
from functools import lru_cache
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec

from hpo_core.model.devices.measurement import Usage
from hpo_core.security.masking import masked, without_credentials
from hpo_core.security.private_files import write_private
from hpo_core.security.untrusted_text import terminal_text

_KIND = "workflowType=machine_learning"
"""MLflow 3 opens in its GenAI mode, where runs are hard to find, unless a link says otherwise."""


def run_url(tracking_uri: str, experiment_id: str, run_id: str) -> str:
    """The page of a run; for a store without a server, the command that starts one."""
    server = without_credentials(tracking_uri)
    if urlsplit(tracking_uri).scheme in ("http", "https"):
        return f"{server.rstrip('/')}/#/experiments/{experiment_id}/runs/{run_id}?{_KIND}"
    return f"mlflow ui --backend-store-uri {shlex.quote(server)}"


def reason_of(error: BaseException) -> str:
    text = masked(" ".join(str(error).split()))
    short = text if len(text) <= 300 else f"{text[:150]} ... {text[-145:]}"  # a chain of causes ends with the first one
    return f"{type(error).__name__}: {short}"


_LONGEST_KEY = 250
_LONGEST_PARAM = 6000
LONGEST_TAG = 5000  # 8000 in MLflow's own store; older servers and other ones take 5000
_FORBIDDEN = re.compile(r"[^\w/. \-]")


@lru_cache(maxsize=4096)
def legal_key(name: str) -> str:
    """``name`` where MLflow takes it, else a likeness that no other name is turned into.

    >>> legal_key("val/loss"), legal_key("f1@5")
    ('val/loss', 'f1_5-d78748')
    """
    path = posixpath.normpath(name)
    if (
        name == path
        and name != "."
        and not name.startswith(("..", "/"))
        and len(name) <= _LONGEST_KEY
        and not _FORBIDDEN.search(name)
    ):
        return name
    likeness = _FORBIDDEN.sub("_", name).replace("/", "_").strip(".")[: _LONGEST_KEY - 10]
    return f"{likeness or 'unnamed'}-{hashlib.sha256(name.encode()).hexdigest()[:6]}"


def param_value(value: Any) -> str:
    """A parameter's value as text; PostgreSQL takes no NUL, and nobody a half of a character."""
    return _cut(terminal_text(str(value), lines=True), _LONGEST_PARAM)


def tag_value(value: Any) -> str:
    return _cut(terminal_text(str(value), lines=True), LONGEST_TAG)


def milliseconds(seconds: float) -> int:
    """A time as MLflow wants it; never 0, which it takes for "now"."""
    return max(1, round(seconds * 1000))


def _cut(text: str, longest: int) -> str:
    return text if len(text) <= longest else text[: longest - 4] + " ..."


def usage_metrics(usage: Usage) -> dict[str, float]:
    """Usage of an attempt, named as MLflow names its own system metrics, where it has one.

    >>> usage_metrics(Usage(memory=212_000_000, cores=1.5, compute=0.25))
    {'system/system_memory_usage_megabytes': 212.0, 'system/cpu_utilization_percentage': 150.0, \
'system/gpu_0_utilization_percentage': 25.0}
    """
    known = {
        "system/system_memory_usage_megabytes": usage.memory / 1e6,
        "system/cpu_utilization_percentage": usage.cores * 100,
        "system/gpu_0_memory_usage_megabytes": None if usage.device_memory is None else usage.device_memory / 1e6,
        "system/gpu_0_utilization_percentage": None if usage.compute is None else usage.compute * 100,
        "system/startup_seconds": usage.startup_seconds,
        "system/seconds_per_unit": usage.unit_seconds,
    }
    return {key: value for key, value in known.items() if value}


_NAME = "mlflow.json"


class ProjectionPlace(msgspec.Struct, frozen=True):
    """Where a study's run in MLflow is."""

    tracking_uri: str
    """Address without its password."""
    experiment_id: str
    run_id: str
    url: str
    """A web page, or the command that serves one."""


def write_place(folder: Path, place: ProjectionPlace) -> None:
    write_private(folder / _NAME, msgspec.json.encode(place))


def read_place(folder: Path) -> ProjectionPlace | None:
    """Place that was left there; None if nothing readable was."""
    try:
        return msgspec.json.decode((folder / _NAME).read_bytes(), type=ProjectionPlace)
    except (OSError, msgspec.MsgspecError):
        return None


def study_links(folder: Path) -> dict[str, str]:
    """Link to the copy in MLflow of the study with this folder, where it has one."""
    run = read_place(folder)
    return {} if run is None else {"MLflow": run.url}


_COPY_NAME = "mlflow.copy"


class CopyProgress(msgspec.Struct, frozen=True, kw_only=True):
    """Part of a study that MLflow holds."""

    trials: int = 0
    """Trials whose runs hold everything that was read of the journal."""
    entries: int = 0
    """Entries of the journal that it holds."""
    complete: bool = False
    """It holds the whole journal, last statuses and files included, of a study that nobody drives."""
    trouble: str = ""
    """Why the last attempt to reach it failed; empty where it did not."""
    process: int = 0
    """The process that says so; 0: one that is about to begin."""

    def words(self, of: int) -> str:
        """Such as ``copying to MLflow: 31 of 60 trials``."""
        if self.trouble:
            return f"copying to MLflow: not now ({self.trouble}); it is tried again"
        files = ", files are left" if 0 < of <= self.trials else ""
        return f"copying to MLflow: {min(self.trials, of):,} of {of:,} trials{files}"


def note_progress(folder: Path, progress: CopyProgress) -> None:
    with contextlib.suppress(OSError):
        write_private(folder / _COPY_NAME, msgspec.json.encode(progress))


def read_progress(folder: Path) -> CopyProgress | None:
    try:
        return msgspec.json.decode((folder / _COPY_NAME).read_bytes(), type=CopyProgress)
    except (OSError, msgspec.MsgspecError):
        return None


def incomplete_copies(studies: Path) -> list[str]:
    """Studies of a home whose copy somebody began and nobody completed.

    Args:
        studies: the home's folder of all studies.
    """
    return [
        file.parent.name
        for file in sorted(studies.glob(f"*/{_COPY_NAME}"))
        if (progress := read_progress(file.parent)) is not None and not progress.complete
    ]


def in_trouble(folder: Path) -> bool:
    found = read_progress(folder)
    return found is not None and bool(found.trouble)
