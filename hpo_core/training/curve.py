"""Curve: the metrics of one attempt over its steps, downsampled so that a million steps stay small."""

from __future__ import annotations

from hpo_core.model.trial import CURVE_POINTS, Metrics, Point

_MAX_POINTS = 64 * CURVE_POINTS


class Curve:
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
        """At most ``CURVE_POINTS`` points, evenly spread; the last point is always among them."""
        points = self.kept()
        if len(points) <= CURVE_POINTS:
            return tuple(points)
        last = len(points) - 1
        return tuple(points[round(i * last / (CURVE_POINTS - 1))] for i in range(CURVE_POINTS))
