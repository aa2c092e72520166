"""What is compared after an attempt of a kept process, in this process: values with a state that is hard to see."""

from __future__ import annotations

import argparse
import collections
import enum
import functools
import hashlib
import itertools
import json
import string
import typing
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch

import hpo_core
from hpo_core.training.child.library_names import LibraryNames
from hpo_core.training.child.module_state import Unknown, ValueWalk


class Thing:
    """An object of the training code."""


class Other(Thing):
    """Another class."""


def tokens(value: Any) -> list[Any]:
    """What a value is compared by."""
    return ValueWalk(None, frozenset()).tokens(value)


def members() -> Any:
    """Members with attributes, and with a mutable value."""
    return enum.Enum("Color", {"RED": 1, "LIST": [1]})


class Name(str):
    """A text with attributes."""

    __slots__ = ("seen",)


def started() -> Iterator[int]:
    """A generator whose position is in an iterator without a name."""
    values = (number for number in (1, 1, 1, 1))
    next(values)
    return values


def begun() -> Iterator[int]:
    """A generator whose variables are the same at each step."""

    def repeated() -> Iterator[int]:
        yield from [1, 1, 1]

    values = repeated()
    next(values)
    return values


CHANGES: dict[str, tuple[Callable[[], Any], Callable[[Any], object]]] = {
    "class of an object": (Thing, lambda one: setattr(one, "__class__", Other)),
    "attribute of a member": (members, lambda one: setattr(one.RED, "seen", 1)),
    "value of a member": (members, lambda one: one.LIST.value.append(2)),
    "attribute of a text": (lambda: Name("a"), lambda one: setattr(one, "seen", 1)),
    "list of a bound method": (lambda: [].append, lambda one: one(1)),
    "generator of a bound method": (lambda: np.random.default_rng(1).random, lambda one: one()),
    "generator expression": (started, next),
    "generator in a loop": (begun, next),
    "fill value": (lambda: np.ma.array([1.0], mask=[False]), lambda one: one.set_fill_value(7)),
    "mask": (lambda: np.ma.array([1.0, 2.0], mask=[False, True]), lambda one: one.__setitem__(0, np.ma.masked)),
    "writeable": (lambda: np.zeros(3), lambda one: setattr(one.flags, "writeable", False)),
    "hook of a tensor": (lambda: torch.zeros(2, requires_grad=True), lambda one: one.register_hook(lambda grad: grad)),
    "hook of a gradient": (
        lambda: torch.zeros(2, requires_grad=True),
        lambda one: one.register_post_accumulate_grad_hook(lambda _: None),
    ),
    "starmap": (lambda: itertools.starmap(pow, [(2, 1), (2, 2)]), next),
    "calls until": (lambda: iter([1, 2, 3].pop, None), next),
    "from the end": (lambda: reversed([1, 2, 3]), next),
    "bytes": (lambda: iter(b"abc"), next),
    "factory": (lambda: collections.defaultdict(int), lambda one: setattr(one, "default_factory", list)),
    "state": (lambda: hpo_core.State(best=1), lambda one: setattr(one, "best", 2)),
    "seeds": (lambda: np.random.SeedSequence(1), lambda one: one.spawn(1)),
    "bits": (lambda: np.random.PCG64(1), lambda one: one.random_raw()),
}


@pytest.mark.parametrize("name", CHANGES)
def test_changed_state_of_a_value_is_noticed(name: str) -> None:
    make, change = CHANGES[name]
    value = make()
    before = tokens(value)
    assert tokens(value) == before
    change(value)
    assert tokens(value) != before


UNKNOWN = (hashlib.md5, lambda: itertools.pairwise([1, 2, 3]), lambda: itertools.tee([1])[0])


@pytest.mark.parametrize("make", UNKNOWN)
def test_small_object_with_hidden_state_cannot_be_compared(make: Callable[[], Any]) -> None:
    """Of the size of an object with a dict and weak references, and with neither."""
    value = make()
    with pytest.raises(Unknown):
        tokens(value)


def test_values_that_never_change_are_compared() -> None:
    values = [
        Name("a"), int | None, torch.channels_last, torch.strided, torch.finfo(torch.float32), {}.keys(), {}.items(),
        typing.TypeVar("T"), string.Template("a"), functools.partial(int, base=2), torch.nn.Linear(1, 1),
    ]  # fmt: skip
    assert tokens(values) == tokens(values)


PATCHES: dict[str, tuple[Any, str, Any, str]] = {
    "nested class": (
        argparse.HelpFormatter._Section, "format_help", lambda _: "", "argparse.HelpFormatter._Section.format_help",
    ),
    "setting of a class": (json.JSONEncoder, "item_separator", ";", "json.encoder.JSONEncoder.item_separator"),
    "function of an object": (json._default_encoder, "iterencode", lambda _: "", "json._default_encoder.iterencode"),
}  # fmt: skip


@pytest.mark.parametrize("name", PATCHES)
def test_changed_part_of_a_library_is_noticed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    owner, attribute, value, said = PATCHES[name]
    names = LibraryNames()
    assert names.change() == ""
    monkeypatch.setattr(owner, attribute, value)
    assert names.change().startswith(said)
