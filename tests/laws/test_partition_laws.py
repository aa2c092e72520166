"""Laws of splitting: every example once, counts that differ by one at most, of each class too, the same for a seed."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from hpo_core.partitioning.splitting import Split, partition_data, split


@st.composite
def splits(draw: st.DrawFn) -> tuple[dict[str, Any], np.ndarray[Any, Any] | None]:
    count = draw(st.integers(1, 300))
    validation = draw(st.integers(0, count - 1))
    arguments = {
        "count": count,
        "parts": draw(st.integers(1, count - validation)),
        "validation": validation,
        "validation_parts": draw(st.integers(1, validation)) if validation else 0,
        "seed": draw(st.integers(0, 2**40)),
    }
    if not draw(st.booleans()):
        return arguments, None
    return arguments, np.array(draw(st.lists(st.integers(0, 5), min_size=count, max_size=count)), np.int64)


def made(case: tuple[dict[str, Any], np.ndarray[Any, Any] | None]) -> Split:
    arguments, classes = case
    rest = {name: value for name, value in arguments.items() if name not in ("count", "parts")}
    return split(arguments["count"], arguments["parts"], classes=classes, **rest)


def differ_by_one(counts: list[int]) -> bool:
    return not counts or max(counts) - min(counts) <= 1


@given(splits())
@settings(max_examples=20, deadline=None)
def test_every_example_is_in_one_partition(case: Any) -> None:
    found = made(case)
    arguments = case[0]
    assert len(found.partitions) == arguments["parts"] and len(found.validation) == arguments["validation_parts"]
    everything = np.concatenate([*found.partitions, *found.validation])
    assert sorted(everything.tolist()) == list(range(arguments["count"]))
    assert sum(map(len, found.validation)) == arguments["validation"]
    assert all(len(rows) for rows in (*found.partitions, *found.validation)), "none is empty"


@given(splits())
@settings(max_examples=20, deadline=None)
def test_counts_differ_by_one_at_most_and_those_of_each_class_too(case: Any) -> None:
    found = made(case)
    arguments, classes = case
    for files in (found.partitions, found.validation):
        assert differ_by_one([len(rows) for rows in files])
    if classes is None:
        return
    for one in np.unique(classes):
        for files in (found.partitions, found.validation):
            assert differ_by_one([int((classes[rows] == one).sum()) for rows in files])
        share = (classes == one).sum() * arguments["validation"] / arguments["count"]
        held_back = sum(int((classes[rows] == one).sum()) for rows in found.validation)
        assert abs(held_back - share) < 1 + 1e-9, "of each class its share is for validation"


def test_classes_are_mixed_within_a_partition() -> None:
    """A model that saw one class after the other would forget the first."""
    classes = np.repeat(np.arange(4), 250)
    for rows in split(1000, 4, classes=classes).partitions:
        changes = sum(one != other for one, other in pairwise(classes[rows].tolist()))
        assert changes > 150, "about three quarters of 249"


def test_another_seed_is_another_order() -> None:
    first, second = (split(1000, 2, seed=seed).partitions[0] for seed in (0, 1))
    assert len(set(first.tolist()) & set(second.tolist())) < 350
    assert not np.array_equal(first, np.sort(first))


def test_the_order_of_a_seed_is_kept_between_versions() -> None:
    """Of numpy and of this package: who splits again on another machine gets the same files."""
    found = [rows.tolist() for rows in split(12, 3, seed=7).partitions]
    assert found == [[6, 4, 0, 7], [3, 10, 2, 5], [11, 9, 8, 1]]


@given(st.integers(1, 40), st.integers(1, 5), st.integers(0, 1000), st.booleans())
@settings(max_examples=12, deadline=None)
def test_files_hold_the_rows_of_their_source_byte_for_byte_again(
    count: int, parts: int, seed: int, stratified: bool
) -> None:
    parts = min(parts, count)
    source = {"x": np.arange(count * 3, dtype=np.float32).reshape(count, 3), "y": np.arange(count) % 3}
    stratify = "y" if stratified else None
    with TemporaryDirectory() as name:
        folders = [Path(name) / "a", Path(name) / "b"]
        first, again = (partition_data(source, folder, parts=parts, seed=seed, stratify=stratify) for folder in folders)
        assert first == again, "counts, sizes and digests"
        rows: Counter[tuple[Any, ...]] = Counter()
        for file in first.partitions:
            with np.load(folders[0] / file.name) as found:
                assert len(found["x"]) == file.count and found["x"].dtype == np.float32
                rows.update((*map(float, x), int(y)) for x, y in zip(found["x"], found["y"], strict=True))
    assert rows == Counter((*map(float, x), int(y)) for x, y in zip(source["x"], source["y"], strict=True))
