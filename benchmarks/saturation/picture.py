"""The picture of benchmarks/scale.md, and the table of rates behind it, from the results of scale.py."""

from __future__ import annotations

from typing import Any

import result_file

Layers = dict[str, Any]


def _row(known: Layers, layer: str, **case: Any) -> dict[str, Any]:
    return next((row for row in known.get(layer, {}).get("rows", ()) if row["case"] == case), {})


def _bound(milliseconds: float | None) -> float | None:
    """Jobs a second of one free core."""
    return None if not milliseconds else 1000.0 / milliseconds


def rates(known: Layers) -> list[tuple[str, float, float | None]]:
    """(layer, jobs a second by the processor time of what fills first, jobs a second reached where it was loaded)."""
    found: list[tuple[str, float | None, float | None]] = []

    def add(name: str, row: dict[str, Any], *times: str, unit: float = 1.0, reached: float | None = None) -> None:
        longest = max((row.get(time, 0.0) for time in times), default=0.0)
        found.append((name, _bound(longest * unit), reached))

    add("decisions", _row(known, "decisions", results=1_000_000, slots=10_000), "cpu_us", unit=1e-3)
    for name, store in (("journal, SQLite", "sqlite, one file"), ("journal, PostgreSQL", "postgresql")):
        row = _row(known, "journal", store=store, writers=1)
        add(name, row, "cpu_us", unit=1e-3, reached=row.get("per_second"))
    add("Dask's scheduler", _row(known, "dask", what="executor", tasks=200), "scheduler_ms")
    add("Dask's client", _row(known, "dask", what="executor", tasks=200), "client_ms")
    row = _row(known, "checkpoints", kilobytes=4, durable=True)
    add("checkpoints of 4 kB, one writer", row, "cpu_ms", reached=row.get("per_second"))
    for name, grain, jobs in (("Prefect, a task run a rung", "rung", 4_000), ("Prefect, a task run a job", "job", 400)):
        row = _row(known, "prefect", grain=grain, jobs=jobs)
        add(name, row, "server_ms", "client_ms", reached=row.get("per_second"))
    row = _row(known, "mlflow", store="sqlite", results=600)
    jobs = 600 / row["trials"] if row else 1.0
    add("MLflow, SQLite", row, "client_ms", unit=1 / jobs, reached=row and row["per_second"] * jobs)
    return sorted(((name, rate, here) for name, rate, here in found if rate), key=lambda entry: -entry[1])


def draw(known: Layers) -> None:
    """Print the table and write ``results/scale.png``."""
    from plot_style import BLUE, GOLD, GREEN, MUTED, RUST, keep, log_axis, panels

    found = rates(known)
    head = ["layer", "jobs a second, free core", "reached here", "10,000 workers: jobs of at least"]
    rows = [[name, f"{rate:,.0f}", here and f"{here:,.0f}", f"{10_000 / rate:,.0f} s"] for name, rate, here in found]
    result_file.table(head, rows)
    figure, axes = panels(1, 3, 14.5, 4.6, width_ratios=[1.9, 1, 1])
    left, middle, right = axes[0]
    left.barh([name for name, *_ in found], [rate for _, rate, _ in found], color=BLUE, height=0.55)
    left.invert_yaxis()
    log_axis(left.xaxis, (1,))
    left.set_xlim(5, 60_000)
    for place, (_, rate, here) in enumerate(found):
        left.text(rate * 1.1, place, f"{rate:,.0f}", va="center", fontsize=9)
        if here:
            left.plot(
                [here],
                [place],
                "o",
                color=GOLD,
                label="reached on this machine" if place == len(found) - 1 else None,
            )
    left.axvline(10_000 / 600, color=GREEN, linestyle="--", linewidth=1.2, label="10,000 workers, jobs of 10 min")
    left.axvline(10_000 / 60, color=RUST, linestyle="--", linewidth=1.2, label="10,000 workers, jobs of 1 min")
    left.legend(loc="lower right", fontsize=8)
    left.set_title("Jobs a second that one free core of a layer takes")
    for slots, colour in ((9, BLUE), (10_000, RUST)):
        rows = [row for row in known.get("decisions", {}).get("rows", ()) if row["case"]["slots"] == slots]
        middle.plot([row["case"]["results"] for row in rows], [row["cpu_us"] for row in rows], "o-", color=colour,
                    label=f"{slots:,} slots")  # fmt: skip
    log_axis(middle.xaxis, (1,))
    middle.set_ylim(0)
    middle.set_title("A decision, microseconds of CPU")
    middle.set_xlabel("results")
    middle.legend()
    for workers, colour in ((100, GOLD), (1_000, BLUE), (10_000, RUST)):
        rows = [row for row in known.get("simulator", {}).get("rows", ()) if row["case"]["workers"] == workers]
        where = [row["case"]["trials"] for row in rows]
        right.plot(where, [row["cpu_seconds"] for row in rows], "o-", color=colour, label=f"{workers:,} workers")
    log_axis(right.xaxis, (1,))
    log_axis(right.yaxis, (1,))
    right.set_title("A simulation, seconds of CPU")
    right.set_xlabel("trials")
    right.legend()
    right.tick_params(colors=MUTED)
    keep(figure, result_file.RESULTS / "scale.png")
