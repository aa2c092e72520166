"""Loaders and training functions to which something happens while they read a partition, or that are wrong themselves.

What happens is named in the environment: it happens once, when the file ``mishap`` beside the partition is there.
"""

from __future__ import annotations

import mmap
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.hopping.hopping_objectives import Linear
from tests.hopping.hopping_objectives import load as read


def _delete(path: Path) -> None:
    path.unlink()


def _truncate(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def _replace_with_a_copy(path: Path) -> None:
    content = path.read_bytes()
    path.unlink()
    path.write_bytes(content)


def _blink(path: Path) -> None:
    """Its whole folder is gone for a moment, as a mount that blinks; the file itself is the same before and after."""
    away = path.parent.with_suffix(".away")
    path.parent.rename(away)
    try:
        path.open().close()
    finally:
        away.rename(path.parent)


def _forbid(path: Path) -> None:
    path.chmod(0)
    raise PermissionError(13, "Permission denied", str(path))


def _nothing(path: Path) -> None:
    """The partition is intact: the function itself is wrong."""
    raise ValueError("a bug of the user")


def _asks_nobody(path: Path) -> None:
    """The network, not the partition."""
    raise ConnectionError(110, "Connection timed out")


MISHAPS: dict[str, Callable[[Path], None]] = {
    "delete": _delete,
    "truncate": _truncate,
    "replace": _replace_with_a_copy,
    "blink": _blink,
    "forbid": _forbid,
    "bug": _nothing,
    "network": _asks_nobody,
}


def _happens(path: Path) -> None:
    note = path.with_name("mishap")
    if note.exists():
        what = note.read_text()
        if what not in ("bug", "network"):
            note.unlink()
        MISHAPS[what](path)


def load(path: Path) -> dict[str, Any]:
    """Something happens before the partition is read."""
    try:
        _happens(path)
        return read(path)
    except OSError as error:
        raise RuntimeError(f"cannot read the data: {error.strerror}") from error  # as libraries do


def train(trial: Any) -> None:
    """Reads its partition by itself, and something happens meanwhile."""
    model = Linear()
    trial.track(model=model)
    for _ in trial.steps():
        _happens(trial.partition)
        model.seen.append(int(read(trial.partition)["number"]))
        trial.report(train_loss=1.0)


def train_and_then(trial: Any) -> None:
    """Something happens after it was read."""
    model = Linear()
    trial.track(model=model)
    for _ in trial.steps():
        model.seen.append(int(read(trial.partition)["number"]))
        trial.report(train_loss=1.0)
        _happens(trial.partition)


def slow(trial: Any) -> None:
    """Some tenths of a second for each unit, and its partition as ``data.load`` made it."""
    model = Linear()
    trial.track(model=model)
    for _ in trial.steps():
        model.seen.append(int(trial.partition["number"]))
        time.sleep(float(os.environ.get("HOP_TEST_SECONDS", "0.2")))
        trial.report(val_loss=1.0)


def train_mapped(trial: Any) -> None:
    """Maps its partition into memory, which is then shorter: the process dies by SIGBUS."""
    model = Linear()
    trial.track(model=model)
    for _ in trial.steps():
        with trial.partition.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
            if (trial.partition.parent / "mishap").exists():
                (trial.partition.parent / "mishap").unlink()
                os.truncate(trial.partition, 0)
            model.seen.append(mapped[-1])
        trial.report(train_loss=1.0)
