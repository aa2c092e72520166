"""Bytes moved against the formulas of the source, workers and partitions in numbers."""

from __future__ import annotations

from html import escape

from hpo_core.report.hopping.hop_lanes import units_of
from hpo_core.report.study.series import Series
from hpo_core.report.study.tables import table
from hpo_core.views.formatting import byte_count, duration, listed, plural
from hpo_core.views.hop_views import MovedBytes, WorkerUse, moved_bytes, partition_uses, worker_name, worker_uses

_WORKERS_NAMED = 8
"""In the row of a partition."""


def hop_tables(series: Series) -> str:
    """Three tables; empty where models do not hop, or no result is there yet."""
    data = series.study.spec.data
    units = units_of(series)
    moved = moved_bytes(series.study.spec, series.study.state, units)
    if data is None or moved is None:
        return ""
    name = escape(series.study.name)
    uses = worker_uses(units)
    files = [*data.files, *data.validation_files]
    partitions = [
        (
            use.name,
            "training" if use.trains else "validation",
            "" if use.count is None else f"{use.count:,}",
            "" if use.bytes is None else byte_count(use.bytes),
            use.units,
            duration(use.seconds),
            listed([worker_name(worker) for worker in use.workers], _WORKERS_NAMED),
        )
        for use in partition_uses(files, len(data.files), units)
    ]
    of_partitions = _card(
        "Partitions",
        "Where models visited them. Who else holds a copy is not in the journal.",
        table(("partition", "for", "examples", "size", "units", "time", "workers"), partitions),
        f"{name}-partitions.csv",
    )
    return _moved_card(moved, f"{name}-bytes.csv") + _workers_card(uses, f"{name}-workers.csv") + of_partitions


def _moved_card(moved: MovedBytes, file: str) -> str:
    unknown = "sizes of partitions are not known"
    model = byte_count(moved.model) if moved.model else "not known yet"
    known = bool(moved.model)
    rows = [
        ("moved here", byte_count(moved.moved), f"{plural(moved.hops, 'hop')}: a model comes with its state"),
        ("of that to another worker", byte_count(moved.moved_to_others), plural(moved.changed_worker, "hop")),
        ("model hopping", byte_count(moved.hopping) if known else "", "k m p |S| + m |S|"),
        (
            "data copied to each worker",
            unknown if moved.replication is None else byte_count(moved.replication),
            "w D + m |S|",
        ),
        (
            "data read anew each epoch",
            unknown if moved.remote_reads is None else byte_count(moved.remote_reads),
            "k |S| D + m |S|",
        ),
    ]
    each = f"k |S| = {moved.epochs:,} epochs of all trials, p = {moved.units // max(1, moved.epochs):,} partitions"
    data = "not known" if moved.data is None else byte_count(moved.data)
    caption = (
        f"What models moved, beside the formulas of Cerebro's Table 2: m = {model} (a model's state, in the mean), "
        f"{each}, w = {plural(moved.workers, 'worker')}, D = {data} (all partitions)."
    )
    return _card("Bytes moved", caption, table(("what", "bytes", "how"), rows), file)


def _workers_card(uses: list[WorkerUse], file: str) -> str:
    rows = [
        (
            worker_name(use.worker),
            use.units,
            use.partitions,
            duration(use.seconds),
            f"{100 * use.utilization:.0f}%",
            use.models,
            byte_count(use.received) if use.received else "",
        )
        for use in uses
    ]
    caption = (
        "Utilization is the share of the time from the first unit of any worker to the end of the last one. Models "
        "came from another worker."
    )
    head = ("worker", "units", "partitions", "time", "utilization", "models that came", "with")
    return _card("Workers", caption, table(head, rows), file)


def _card(title: str, caption: str, shown: str, file: str) -> str:
    return (
        f'<section class="card"><h2>{title}</h2><p class="caption">{caption}</p>'
        f'<div class="bar"><button data-csv="{file}">Download CSV</button></div>{shown}</section>'
    )
