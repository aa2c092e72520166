"""Measurements as a file that people take elsewhere: JSON or CSV, and back.

A file that is read is not trusted: its size is limited, each figure is checked, and none may be from the future.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec

from hpo_core.model.devices.measurement import Measurement, key_of
from hpo_core.model.errors import SpecError
from hpo_core.model.short_text import meant_or_known, shown

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
    """By the end of the file's name; None where that says nothing."""
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
    """What a file holds.

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
