"""Schedule: hyperparameters over training time, as a search found them, for scripts without this package.

This file needs only Python's standard library; it may be copied next to such a script::

    schedule = Schedule.from_json("schedule.json")
    for epoch in range(schedule.end):
        for group in optimizer.param_groups:
            group["lr"] = schedule.at(epoch)["learning_rate"]
        train_one_epoch(model, optimizer)
"""

from __future__ import annotations

import json
import math
import os
from bisect import bisect_right
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

FORMAT = "hpo-schedule"
VERSION = 1


class ScheduleError(ValueError):
    """A schedule has a gap or an invalid value, or does not cover the requested step."""


class Segment(NamedTuple):
    """The parameters of the units of training ``start`` to ``end - 1``."""

    start: int
    end: int
    params: dict[str, Any]
    trial: int
    """The trial of the search that was trained with them."""


class Schedule:
    """Parameters over units of training (epochs, steps), constant within each segment.

    >>> schedule = Schedule([(0, 2, {"lr": 0.1}, 4), (2, 5, {"lr": 0.08}, 9)])
    >>> schedule.at(1), schedule.at(2), schedule.end
    ({'lr': 0.1}, {'lr': 0.08}, 5)

    Args:
        segments: ``(start, end, params, trial)``, ascending from 0 without a gap. A parameter may be absent from some
            (where a condition makes it inactive).
        study: the study it comes from.

    Raises:
        ScheduleError: there is no segment, they do not join, or a value is no finite number, string, boolean or None.
    """

    def __init__(self, segments: Iterable[tuple[int, int, dict[str, Any], int]], *, study: str = "") -> None:
        self.study = study
        self.segments: tuple[Segment, ...] = tuple(_segment(i, item) for i, item in enumerate(segments))
        if not self.segments:
            raise ScheduleError("Schedule has no segment; give at least one (start, end, params, trial).")
        at = 0
        for i, segment in enumerate(self.segments):
            if segment.start != at:
                raise ScheduleError(
                    f"Schedule segment {i} starts at {segment.start} where {at} is due; segments follow each other "
                    "from 0 on without gap or overlap."
                )
            at = segment.end
        self._starts = [segment.start for segment in self.segments]

    @property
    def end(self) -> int:
        return self.segments[-1].end

    @property
    def names(self) -> tuple[str, ...]:
        """Names of all parameters, in order of first appearance."""
        return tuple(dict.fromkeys(name for segment in self.segments for name in segment.params))

    def segment(self, step: float) -> Segment:
        """The segment whose parameters train the unit that begins at ``step``; see :meth:`at`."""
        if not 0 <= step < self.end:  # also where it is NaN
            raise ScheduleError(
                f"Schedule.at({step}): it covers the steps from 0 up to, not including, {self.end}. To train on with "
                f"its last values, ask for at(min(step, {self.end - 1}))."
            )
        return self.segments[bisect_right(self._starts, step) - 1]

    def at(self, step: float) -> dict[str, Any]:
        """Parameters of the unit of training that begins after ``step`` units; at a border, the later ones.

        Fractions are allowed (``epoch + batch / batches``).

        Raises:
            ScheduleError: ``step`` is negative, or not below :attr:`end`.
        """
        return dict(self.segment(step).params)

    def values(self, name: str) -> list[tuple[int, int, Any]]:
        """``(start, end, value)`` of one parameter, equal neighbours joined; left out where it is absent.

        Raises:
            ScheduleError: no segment has it.
        """
        if name not in self.names:
            raise ScheduleError(f"Schedule has no parameter {name!r}; it has {', '.join(self.names) or 'none'}.")
        found: list[tuple[int, int, Any]] = []
        for start, end, params, _ in self.segments:
            if name not in params:
                continue
            value = params[name]
            if found and found[-1][1] == start and type(found[-1][2]) is type(value) and found[-1][2] == value:
                found[-1] = (found[-1][0], end, value)
            else:
                found.append((start, end, value))
        return found

    def to_json(self, path: str | os.PathLike[str] | None = None) -> str:
        """The schedule as JSON text; also written to ``path``, whole or not at all, where one is given."""
        plain = {
            "format": FORMAT,
            "version": VERSION,
            "study": self.study,
            "segments": [segment._asdict() for segment in self.segments],
        }
        text = json.dumps(plain, indent=1, allow_nan=False) + "\n"
        if path is not None:
            side = Path(f"{os.fspath(path)}.part")
            side.write_text(text, encoding="utf-8")
            side.replace(path)
        return text

    @classmethod
    def from_json(cls, source: str | os.PathLike[str]) -> Schedule:
        """Inverse of :meth:`to_json`: ``source`` is a path, or the text itself (which begins with a brace).

        Raises:
            ScheduleError: the text is no schedule, or of a newer version.
            OSError: the file cannot be read.
        """
        is_text = isinstance(source, str) and source.lstrip().startswith("{")
        where = "Schedule" if is_text else f"Schedule {os.fspath(source)}"
        text = str(source) if is_text else Path(source).read_text(encoding="utf-8")
        try:
            plain = json.loads(text, parse_constant=_refuse)
        except ValueError as error:
            raise ScheduleError(f"{where} is no JSON ({error}); export it again.") from None
        if not isinstance(plain, dict) or (plain.get("format"), plain.get("version")) != (FORMAT, VERSION):
            raise ScheduleError(f'{where} is something else: it lacks "format": "{FORMAT}", "version": {VERSION}.')
        try:
            return cls(
                (tuple(item[field] for field in Segment._fields) for item in plain["segments"]), study=plain["study"]
            )
        except (KeyError, TypeError) as error:
            raise ScheduleError(f"{where} was changed since it was exported ({error!r}); export it again.") from None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Schedule) and (self.study, self.segments) == (other.study, other.segments)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return (
            f"Schedule({self.study!r}: {', '.join(self.names)} over {self.end} units in {len(self.segments)} segments)"
        )


def _segment(number: int, item: Any) -> Segment:
    try:
        start, end, params, trial = item
    except (TypeError, ValueError):
        raise ScheduleError(f"Schedule segment {number} is {item!r}; it must be (start, end, params, trial).") from None
    if not all(type(one) is int for one in (start, end, trial)) or not 0 <= start < end or not isinstance(params, dict):
        raise ScheduleError(
            f"Schedule segment {number} is {item!r}; it needs whole numbers, start < end, and a mapping."
        )
    for name, value in params.items():
        if not isinstance(name, str) or not _is_plain(value):
            raise ScheduleError(
                f"Schedule segment {number}: {name!r} = {value!r}; names are strings, and values finite numbers, "
                "strings, booleans, None or lists of them."
            )
    return Segment(start, end, dict(params), trial)


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is no value of JSON")


def _is_plain(value: Any) -> bool:
    if isinstance(value, list):
        return all(map(_is_plain, value))
    return value is None or (
        type(value) in (bool, int, float, str) and (type(value) is not float or math.isfinite(value))
    )
