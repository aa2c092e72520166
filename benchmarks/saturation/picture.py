"""The picture of docs/scale.md, and the table of rates behind it, from the results of scale.py."""

from __future__ import annotations

from typing import Any

import result_file

Layers = dict[str, Any]


def _row(known: Layers, layer: str, **case: Any) -> dict[str, Any]:
    return next((row for row in known.get(layer, {}).get("rows", ()) if row["case"] == case), {})


def _per_second(milliseconds: float | None) -> float | None:
    return None if not milliseconds else 1000.0 / milliseconds


def rates(known: Layers) -> list[tuple[str, float]]:
    """(layer, jobs per second that it takes): of one process or thread where that is what fills first."""
    decision = _row(known, "decisions", results=1_000_000, slots=10_000).get("cpu_us")
    dask = max(filter(None, (_row(known, "dask", what="executor", tasks=200).get(f"{who}_ms")
                             for who in ("scheduler", "client"))), default=None)  # fmt: skip
    found = {
        "decisions\n(one controller)": _per_second(decision and decision / 1e3),
        "journal, PostgreSQL\n(4 studies)": _row(known, "journal", store="postgresql", writers=4).get("per_second"),
        "journal, PostgreSQL\n(one study)": _row(known, "journal", store="postgresql", writers=1).get("per_second"),
        "journal, SQLite\n(one study)": _row(known, "journal", store="sqlite, one file", writers=1).get("per_second"),
        "Prefect, a task run\na rung (log lines)": _row(known, "prefect", grain="rung", jobs=4_000).get("per_second"),
        "Dask\n(one scheduler)": _per_second(dask),
        "checkpoints, 4 kB\n(one disk, durable)": _row(known, "checkpoints", kilobytes=4, durable=True).get(
            "per_second"
        ),
        "Prefect, a task run\na job": _row(known, "prefect", grain="job", jobs=400).get("per_second"),
        "MLflow, SQLite": _row(known, "mlflow", store="sqlite", results=600).get("per_second"),
    }
    return sorted(((name, rate) for name, rate in found.items() if rate), key=lambda pair: -pair[1])


def draw(known: Layers) -> None:
    """Print the table and write ``results/scale.png``."""
    from plot_style import BLUE, GOLD, GREEN, MUTED, RUST, keep, log_axis, panels

    found = rates(known)
    head = ["layer", "jobs a second", "10,000 workers: jobs of at least", "1,000 workers"]
    result_file.table(
        head,
        [[n.replace("\n", " "), f"{r:,.0f}", f"{10_000 / r:,.0f} s", f"{1_000 / r:,.1f} s"] for n, r in found],
    )
    figure, axes = panels(1, 3, 14.5, 4.6, width_ratios=[1.7, 1, 1])
    left, middle, right = axes[0]
    left.barh([name for name, _ in found], [rate for _, rate in found], color=BLUE, height=0.6)
    left.invert_yaxis()
    log_axis(left.xaxis, (1,))
    left.set_xlim(1, 60_000)
    for place, (_, rate) in enumerate(found):
        left.text(rate * 1.1, place, f"{rate:,.0f}", va="center", fontsize=9)
    for workers, seconds, colour in ((1_000, 60, GREEN), (10_000, 600, GREEN), (10_000, 60, RUST)):
        left.axvline(workers / seconds, color=colour, linestyle="--", linewidth=1.2)
    left.text(
        16.7 * 0.93,
        len(found) - 0.42,
        "1,000 x 60 s,\n10,000 x 600 s",
        color=GREEN,
        fontsize=8,
        ha="right",
        va="bottom",
    )
    left.text(167 * 1.05, len(found) - 0.42, "10,000 workers x 60 s", color=RUST, fontsize=8, va="bottom")
    left.set_title("Jobs a second until a layer is full")
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
