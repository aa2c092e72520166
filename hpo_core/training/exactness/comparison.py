"""Compares two training states bit by bit, and says where they differ."""

from __future__ import annotations

import struct
import sys
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec
import numpy as np

PARTS_SHOWN = 3
"""A difference names so many of its parts."""


class Difference(msgspec.Struct, frozen=True):
    """One tracked object, random generator or metric that differs."""

    name: str
    what: str
    """Where and by how much."""


def different_parts(one: Any, other: Any, path: str = "") -> Iterator[tuple[str, str]]:
    """The leaves in which two trees differ: path and how; values are compared by their bits, so NaN equals NaN."""
    if type(one) is not type(other):
        yield path, f"{type(one).__name__} and {type(other).__name__}"
    elif isinstance(one, Mapping):
        for key in [*one, *(key for key in other if key not in one)]:
            inner = f"{path}.{key}".lstrip(".")
            if key in one and key in other:
                yield from different_parts(one[key], other[key], inner)
            else:
                yield inner, "only in one of both"
    elif isinstance(one, list | tuple):
        if len(one) != len(other):
            yield path, f"{len(one):,} and {len(other):,} items"
        elif not all(isinstance(item, int) for item in one):
            for place, (a, b) in enumerate(zip(one, other, strict=True)):
                yield from different_parts(a, b, f"{path}.{place}".lstrip("."))
        elif one != other:
            yield path, "other values"
    elif isinstance(one, np.ndarray):
        yield from _different_arrays(one, other, path)
    elif _is_tensor(one):
        yield from _different_tensors(one, other, path)
    elif isinstance(one, float):
        if struct.pack(">d", one) != struct.pack(">d", other):
            yield path, f"{one!r} and {other!r}"
    elif one != other:
        yield path, _pair(one, other)


def differences(one: Mapping[str, Any], other: Mapping[str, Any]) -> tuple[Difference, ...]:
    """One for each name whose states differ."""
    found = []
    for name in [*one, *(name for name in other if name not in one)]:
        if name not in one or name not in other:
            found.append(Difference(name, "only in one of both checkpoints"))
        elif parts := list(different_parts(one[name], other[name])):
            shown = [f"{path}: {how}" if path else how for path, how in parts[:PARTS_SHOWN]]
            more = f"; and {len(parts) - PARTS_SHOWN:,} parts more" if len(parts) > PARTS_SHOWN else ""
            found.append(Difference(name, "; ".join(shown) + more))
    return tuple(found)


def different_metrics(
    one: Mapping[int, Mapping[str, float]], other: Mapping[int, Mapping[str, float]]
) -> dict[str, tuple[int, float | None, float | None]]:
    """Metrics that differ: the first step at which they do, and both values there (None: not reported)."""
    found: dict[str, tuple[int, float | None, float | None]] = {}
    for step in sorted({*one, *other}):
        here, there = one.get(step, {}), other.get(step, {})
        for name in [*here, *(name for name in there if name not in here)]:
            a, b = here.get(name), there.get(name)
            if name not in found and (a is None or b is None or struct.pack(">d", a) != struct.pack(">d", b)):
                found[name] = step, a, b
    return found


def _different_arrays(one: np.ndarray[Any, Any], other: np.ndarray[Any, Any], path: str) -> Iterator[tuple[str, str]]:
    if (one.dtype, one.shape) != (other.dtype, other.shape):
        yield path, f"{one.dtype}{list(one.shape)} and {other.dtype}{list(other.shape)}"
    elif one.tobytes() != other.tobytes():
        yield path, _by_how_much(one, other)


def _different_tensors(one: Any, other: Any, path: str) -> Iterator[tuple[str, str]]:
    import torch

    if (one.dtype, one.shape) != (other.dtype, other.shape):
        yield path, f"{one.dtype}{list(one.shape)} and {other.dtype}{list(other.shape)}"
        return
    bytes_of = [tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8) for tensor in (one, other)]
    if not torch.equal(*bytes_of):
        wide = torch.complex128 if one.dtype.is_complex else torch.float64
        yield path, _by_how_much(one.detach().cpu().to(wide).numpy(), other.detach().cpu().to(wide).numpy())


def _by_how_much(one: np.ndarray[Any, Any], other: np.ndarray[Any, Any]) -> str:
    different = int(np.sum((one != other) & ~((one != one) & (other != other))))
    if one.dtype.kind not in "biuf" or one.dtype.kind == "b" or not different:
        return f"{max(different, 1):,} of {one.size:,} values"
    with np.errstate(all="ignore"):
        most = np.nanmax(np.abs(one.astype(np.float64) - other.astype(np.float64)))
    return f"{different:,} of {one.size:,} values, by at most {most:.2g}"


def _is_tensor(value: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def _pair(one: Any, other: Any) -> str:
    texts = [repr(one), repr(other)]
    return " and ".join(texts) if sum(map(len, texts)) < 100 else "other values"
