"""Metrics that a training function reports: real numbers, those of the study at its target."""

from __future__ import annotations

from typing import Any

from hpo_core.model.errors import ObjectiveError
from hpo_core.model.short_text import shown
from hpo_core.model.trial import CURVE_POINTS, Metrics, Point, real_number, refused_name
from hpo_core.training.request import StudySetup


def reported_value(name: str, value: Any) -> float:
    """A metric as a float.

    Raises:
        ObjectiveError: it is no real number, or too large for a float; or the name is that of a column of the results.
    """
    if refusal := refused_name(name):
        raise ObjectiveError(f"trial.report({name}=...): {name!r} {refusal}.")
    if (number := real_number(value)) is not None:
        return number
    shape = getattr(value, "shape", None)
    shape = f" of shape {tuple(shape)}" if isinstance(shape, tuple) else ""
    raise ObjectiveError(
        f"trial.report({name}=...) got a {type(value).__module__}.{type(value).__qualname__}{shape}; a metric "
        "is one real number: int, float, numpy scalar or tensor without dimensions. Reduce it first, for example with "
        "float(x) or x.mean()."
    )


def check_required(setup: StudySetup, metrics: Metrics, target: int, returned: object = None) -> None:
    """Refuse metrics that lack an objective or a constraint of the study.

    Args:
        returned: what the training function returned, as in other libraries.

    Raises:
        ObjectiveError: an objective or a constraint of the study is missing.
    """
    names, required = setup.metrics, setup.required
    missing = [name for name in names if name not in metrics]
    if missing and required != "none" and (required == "all" or len(missing) == len(names)):
        seen = ", ".join(map(repr, metrics)) or "nothing"
        several = len(names) > 1
        ignored = (
            ""
            if returned is None
            else (f' It returned {shown(returned)}: only of an Optuna objective (style="optuna") is that the metric.')
        )
        one = "; one of them suffices in pbt" if required == "any" and several else ""
        raise ObjectiveError(
            f"Metric {missing[0]!r} was not reported at the target (step {target}); reported there: {seen}.{ignored} "
            f"Call trial.report({missing[0]}=...) in every step{one}, or "
            f"{'drop it from metrics' if several else 'name what is reported in metric'} of the study and start a new "
            "one: a study keeps its metrics."
        )

    unset = [name for name in setup.constraints if name not in metrics]
    if unset:
        raise ObjectiveError(
            f"Constraint {unset[0]!r} was not reported at the target (step {target}); call "
            f"trial.report({unset[0]}=...) in every step, or drop it from constraints of the study."
        )


_MAX_POINTS = 64 * CURVE_POINTS


class ReportedCurve:
    """Points by ascending resource; metrics reported at the same resource merge into one point."""

    def __init__(self) -> None:
        self._points: list[Point] = []
        self._stride = 1
        self._count = 0
        self._last: Point | None = None

    def add(self, resource: int, metrics: Metrics) -> None:
        """Add ``metrics`` at ``resource``, which is the latest one or a later one."""
        if self._last is not None and self._last.resource == resource:
            self._last.metrics.update(metrics)
            return
        self._last = Point(resource, dict(metrics))
        if self._count % self._stride == 0:
            self._points.append(self._last)
        self._count += 1
        if len(self._points) >= _MAX_POINTS:
            self._points = self._points[::2]
            self._stride *= 2

    def at(self, resource: int) -> Metrics:
        """Metrics at ``resource`` if it is the latest one; else empty."""
        return self._last.metrics if self._last is not None and self._last.resource == resource else {}

    def kept(self) -> list[Point]:
        """All points that are kept, the latest among them; their metrics may be changed."""
        points = list(self._points)
        if self._last is not None and points[-1] is not self._last:
            points.append(self._last)
        return points

    def downsampled(self) -> tuple[Point, ...]:
        """Evenly spread points, at most ``CURVE_POINTS``; the last point is always among them."""
        points = self.kept()
        if len(points) <= CURVE_POINTS:
            return tuple(points)
        last = len(points) - 1
        return tuple(points[round(i * last / (CURVE_POINTS - 1))] for i in range(CURVE_POINTS))
