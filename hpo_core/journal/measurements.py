"""The history of what jobs needed, beside the journal's studies.

One row is one measurement, so that studies which write at the same time lose nothing of each other's. The newest
:data:`PER_KEY` of each key (objective, code, architecture, deciding parameters) are kept, and :data:`PER_OBJECTIVE` of
each objective. It is a cache: a study goes on without it.
"""

from __future__ import annotations

import csv
import io
import logging
import re
import threading
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any, Literal, Protocol

import msgspec

from hpo_core.model.devices.measurement import Measurement, key_of
from hpo_core.model.errors import JournalError, SpecError
from hpo_core.model.short_text import meant_or_known, shown

PER_KEY = 50
PER_OBJECTIVE = 10_000
WAIT_SECONDS = 30.0
"""Seconds to wait for others who write to the same database; after that, nothing is written."""
WAIT_IN_LOOP = 2.0
"""Seconds that a study waits for others who write, for its loop stands still meanwhile."""
MOST_WAITING = 1_000
"""Measurements that wait for a database that does not answer."""

_Key = tuple[str, str, str, str]

log = logging.getLogger("hpo.history")


class Measurements(Protocol):
    """Measurements of many studies."""

    def read(self, objective: str, code: str) -> list[Measurement]:
        """Read the measurements of one objective with this source, the oldest first.

        Raises:
            JournalError: the database does not answer, or is damaged.
        """
        ...

    def all(self) -> list[Measurement]:
        """Read all measurements, the oldest first.

        Raises:
            JournalError: as above.
        """
        ...

    def add(self, found: Sequence[Measurement], *, wait: float = WAIT_SECONDS) -> int:
        """Keep these beside the others, and drop the oldest where there are too many. One that is there stays one.

        Args:
            wait: seconds for others who write at the same time.

        Returns:
            How many are new.

        Raises:
            JournalError: they could not be written; none was.
        """
        ...

    def forget(self, found: Collection[Measurement] | None) -> int:
        """Remove these, or all and what is damaged where it is None; returns how many were there.

        Raises:
            JournalError: as above.
        """
        ...


def newest_first(one: Measurement) -> tuple[float, str]:
    """Sorts the newest measurement first; equal times by content, the same everywhere."""
    return -one.measured_at, one.identity


class MemoryMeasurements:
    """Measurements in this process, as long as it runs; studies may run in several threads of it."""

    def __init__(self) -> None:
        self._kept: dict[str, tuple[_Key, Measurement]] = {}
        self._lock = threading.RLock()

    def read(self, objective: str, code: str) -> list[Measurement]:
        return [one for one in self.all() if (one.objective, one.code) == (objective, code)]

    def all(self) -> list[Measurement]:
        with self._lock:
            found = [one for _, one in self._kept.values()]
        return sorted(found, key=newest_first)[::-1]

    def add(self, found: Sequence[Measurement], *, wait: float = WAIT_SECONDS) -> int:
        with self._lock:
            new = {one.identity: one for one in found if one.identity not in self._kept}
            keys = {identity: (one.objective, one.code, one.architecture, one.key) for identity, one in new.items()}
            self._kept |= {identity: (keys[identity], one) for identity, one in new.items()}
            for key in set(keys.values()):
                self._keep_newest([one for found, one in self._kept.values() if found == key], PER_KEY)
            for group in {key[0] for key in keys.values()}:
                self._keep_newest([one for found, one in self._kept.values() if found[0] == group], PER_OBJECTIVE)
        return len(new)

    def _keep_newest(self, found: list[Measurement], count: int) -> None:
        if len(found) > count:
            self.forget(sorted(found, key=newest_first)[count:])

    def forget(self, found: Collection[Measurement] | None) -> int:
        with self._lock:
            found = self.all() if found is None else found
            return sum(self._kept.pop(one.identity, None) is not None for one in found)


class QuietMeasurements:
    """Measurements for a study, which goes on where they cannot be read or written; the first failure is logged."""

    def __init__(self, kept: Measurements) -> None:
        self._kept = kept
        self._waiting: list[Measurement] = []
        self._is_told = False

    def read(self, objective: str, code: str) -> list[Measurement]:
        """Read the measurements of one objective with this source; none where that fails."""
        try:
            return self._kept.read(objective, code)
        except JournalError as error:
            self._tell("read", error)
            return []

    def add(self, found: Sequence[Measurement]) -> None:
        """Keep these; where that fails they are tried again with the next, the newest :data:`MOST_WAITING`.

        Others who write are waited for :data:`WAIT_IN_LOOP` seconds.
        """
        self._waiting = [*self._waiting, *found][-MOST_WAITING:]
        try:
            if self._waiting:
                self._kept.add(self._waiting, wait=WAIT_IN_LOOP)
            self._waiting = []
        except JournalError as error:
            self._tell("written", error)

    def _tell(self, verb: str, error: JournalError) -> None:
        if not self._is_told:
            self._is_told = True
            log.warning("what jobs needed could not be %s, and the study goes on without: %s", verb, error)


Format = Literal["json", "csv"]

MOST_BYTES = 64 * 1024 * 1024
MOST_MEASUREMENTS = 100_000
_DAY = 86_400.0
_COLUMNS = Measurement.__struct_fields__
_FORMS = {
    "objective": re.compile(r"[^\W\d][\w.]*:[^\W\d][\w.]*"),
    "code": re.compile(r"[0-9a-f]{64}"),
    "architecture": re.compile(r"\w[\w .()+-]*"),
    "study": re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]*)?"),
}


def format_of(path: Path) -> Format | None:
    """Tell the format by the end of the file's name; None where that says nothing."""
    return {".json": "json", ".csv": "csv"}.get(path.suffix.lower())  # type: ignore[return-value]


def written(found: Sequence[Measurement], form: Format) -> str:
    """The text of a file: JSON with one measurement a line, or CSV with the parameters as JSON in one column."""
    if form == "json":
        lines = [msgspec.json.encode(_whole(one)).decode() for one in found]
        return "[\n" + ",\n".join(lines) + "\n]\n" if lines else "[]\n"
    text = io.StringIO()
    rows = csv.writer(text, lineterminator="\n")
    rows.writerow(_COLUMNS)
    for one in found:
        row = _whole(one) | {"params": key_of(one.params)}
        rows.writerow(["" if row[name] is None else row[name] for name in _COLUMNS])
    return text.getvalue()


def _whole(one: Measurement) -> dict[str, Any]:
    return {name: getattr(one, name) for name in _COLUMNS}


def read_file(path: Path, *, now: float) -> list[Measurement]:
    """Read the measurements in a file.

    Args:
        now: seconds since the epoch.

    Raises:
        SpecError: it cannot be read, is too large, or holds what no export wrote; with the place.
    """
    form = format_of(path)
    if form is None:
        raise SpecError(f"{path}: the name must end with .json or .csv, which says how to read it.")
    try:
        with path.open("rb") as file:
            content = file.read(MOST_BYTES + 1)
    except OSError as error:
        raise SpecError(f"{path} cannot be read: {error.strerror or error}.") from error
    if len(content) > MOST_BYTES:
        raise SpecError(f"{path} has more than {MOST_BYTES:,} bytes; export fewer measurements.")
    rows = _json_rows(path, content) if form == "json" else _csv_rows(path, content)
    if len(rows) > MOST_MEASUREMENTS:
        raise SpecError(f"{path} has {len(rows):,} measurements; at most {MOST_MEASUREMENTS:,} are read at once.")
    return [_checked(f"{path}: measurement {number}", row, now) for number, row in enumerate(rows, 1)]


def _json_rows(path: Path, content: bytes) -> list[Any]:
    try:
        rows = msgspec.json.decode(content)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise SpecError(f"{path} is no JSON: {error}. `hpo history export` writes such a file.") from None
    if not isinstance(rows, list):
        raise SpecError(f"{path} must hold a list of measurements, as `hpo history export` writes it.")
    return rows


def _csv_rows(path: Path, content: bytes) -> list[Any]:
    try:
        lines = list(csv.DictReader(io.StringIO(content.decode("utf-8-sig"), newline=""), strict=True))
    except (csv.Error, UnicodeDecodeError) as error:
        raise SpecError(f"{path} is no CSV: {error}. `hpo history export` writes such a file.") from None
    found = []
    for number, line in enumerate(lines, 1):
        row: dict[Any, Any] = {
            name: value for name, value in line.items() if value not in ("", None) or name == "study"
        }
        try:
            row["params"] = msgspec.json.decode(row.get("params", "null"))
        except (msgspec.DecodeError, RecursionError) as error:
            raise SpecError(f"{path}: measurement {number}: params is no JSON: {error}.") from None
        found.append(row)
    return found


def _checked(where: str, row: Any, now: float) -> Measurement:
    if isinstance(row, dict) and (unknown := [name for name in row if name not in _COLUMNS]):
        raise SpecError(f"{where}: unknown column {shown(unknown[0])}; {meant_or_known(unknown[0], _COLUMNS)}")
    try:
        one = msgspec.convert(row, Measurement, strict=False)
    except (msgspec.ValidationError, ValueError, RecursionError) as error:
        raise SpecError(f"{where}: {error}") from None
    for name, form in _FORMS.items():
        if not form.fullmatch(getattr(one, name)):
            raise SpecError(f"{where}: {name} = {shown(getattr(one, name))} is nothing that an export writes.")
    if one.measured_at > now + _DAY:
        raise SpecError(f"{where}: measured_at = {one.measured_at:.0f} lies in the future; set the clock right.")
    return one
