"""Tabulated learning curves as an objective: real training, played back."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import numpy.typing as npt

from hpo_core.model.errors import SpecError
from hpo_core.model.events import Event
from hpo_core.model.rng import Stream
from hpo_core.model.trial import Job, Params, Point


class CurveTable:
    """Learning curves of many configurations, one row each.

    Attributes:
        losses: [configurations, resources] float64; smaller is better; column ``k`` is after ``k + 1`` units.
        seconds: [configurations, resources] float64, cumulative; one second per unit where not measured.
        mode: of the original metric; ``losses`` has ``max`` flipped already.
    """

    def __init__(self, name: str, losses: npt.NDArray[np.float64], seconds: npt.NDArray[np.float64], mode: str) -> None:
        self.name = name
        self.losses = losses
        self.seconds = seconds
        self.mode = mode
        final = np.where(np.isfinite(losses[:, -1]), losses[:, -1], np.inf)
        self.final = final
        self.best_final = float(final.min())
        self.median_final = float(np.median(final))

    @classmethod
    def load(cls, path: Path) -> CurveTable:
        """Read an ``.npz`` curve file (``meta_json`` names metric and direction).

        Raises:
            SpecError: the file is absent or not in that format.
        """
        try:
            with np.load(path) as data:
                meta = json.loads(str(data["meta_json"]))
                losses = np.asarray(data[meta["primary_metric"]], dtype=np.float64)
                times = np.asarray(data["time_s"], dtype=np.float64) if "time_s" in data else None
                lengths = np.asarray(data["n_points"]) if "n_points" in data else None
                untrained = float(data["fidelity"][0]) == 0.0
        except (OSError, KeyError, ValueError) as error:
            raise SpecError(f"{path} holds no learning curves ({error}). Give an .npz file with meta_json.") from error
        if meta["direction"] == "max":
            losses = -losses
        if untrained:  # point 0 is before training
            losses = losses[:, 1:]
            times = None if times is None else times[:, 1:] - times[:, :1]
        if lengths is not None:  # runs that ended early by their own rule keep their best and cost no more
            losses = np.fmin.accumulate(losses, axis=1)
        if times is not None:
            times = _held(times, path)
        else:
            units = np.arange(1.0, losses.shape[1] + 1)
            times = np.broadcast_to(units, losses.shape).copy()
            if lengths is not None:
                times = np.minimum(times, lengths[:, None].astype(np.float64))
        return cls(path.stem, losses, times, meta["direction"])

    @property
    def max_resource(self) -> int:
        return int(self.losses.shape[1])

    def train(self, job: Job) -> dict[str, float]:
        """Metrics of ``job.params["row"]`` at the job's target."""
        return {"loss": float(self.losses[job.params["row"], job.target - 1])}

    def curve(self, job: Job) -> list[Point]:
        """The metrics on the way from the job's checkpoint to its target, for methods that read curves."""
        row = self.losses[job.params["row"]]
        start = job.checkpoint.resource if job.checkpoint else 0
        return [Point(unit + 1, {"loss": float(row[unit])}) for unit in range(start, job.target)]

    def cost(self, job: Job) -> float:
        """Seconds from the job's checkpoint to its target."""
        row = self.seconds[job.params["row"]]
        start = job.checkpoint.resource if job.checkpoint else 0
        return max(0.0, float(row[job.target - 1] - (row[start - 1] if start else 0.0)))

    def regret(self, row: int) -> float:
        """Normalised regret of a configuration fully trained: 0 the best of the table, 1 its median or worse."""
        return min(1.0, (float(self.final[row]) - self.best_final) / (self.median_final - self.best_final))


def _held(times: npt.NDArray[np.float64], path: Path) -> npt.NDArray[np.float64]:
    """Measured times; after the last one of a run that ended early, that one: it costs no more.

    Raises:
        SpecError: a time is missing before the last one.
    """
    known = np.isfinite(times)
    last = np.where(known.any(axis=1), times.shape[1] - 1 - np.argmax(known[:, ::-1], axis=1), -1)
    columns = np.arange(times.shape[1])
    if (gaps := ~known & (columns <= last[:, None])).any() or (last < 0).any():
        row = int(np.argmax(gaps.any(axis=1) | (last < 0)))
        raise SpecError(
            f"{path}: row {row} of time_s has no time where it has one later, or none at all; a training whose "
            "duration is not known would cost nothing. Fill in the cumulative seconds, or drop the row."
        )
    held: npt.NDArray[np.float64] = np.take_along_axis(times, np.minimum(columns, last[:, None]), axis=1)
    return held


class TableSampler:
    """Rows of a table in a random order, each at most once."""

    def __init__(self, rows: int, seed: int) -> None:
        self._order = Stream(seed, "table", 0).shuffled(range(rows))

    def propose(self, number: int) -> Params:
        return {"row": self._order[number]}

    def apply(self, event: Event) -> None:
        """A random order learns nothing."""
