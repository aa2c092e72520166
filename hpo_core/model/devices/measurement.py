"""Measurement: what one attempt needed, or which ratio was best, kept for later studies of the same objective."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Mapping
from typing import Any

import msgspec

LONGEST_VALUE = 200
"""Characters of one parameter's JSON; a longer one is kept as its digest."""
LONGEST_KEY = 8_000
"""Characters of all its parameters as JSON; longer ones are kept as one digest."""
_NAMES = {"objective": 500, "code": 64, "architecture": 100, "study": 100}
"""Most characters of each text."""
_MOST = {
    "memory": 2**62,
    "device_memory": 2**62,
    "out_of_memory": 2**62,
    "compute": 1.0,
    "cores": 1e6,
    "startup_seconds": 1e10,
    "unit_seconds": 1e10,
    "measured_at": 1e11,
    "oversubscribe": 100.0,
    "speedup": 1e6,
    "alone": 1.0,
    "load": 1e6,
}
_FLOATS = {
    "compute",
    "cores",
    "startup_seconds",
    "unit_seconds",
    "measured_at",
    "oversubscribe",
    "speedup",
    "alone",
    "load",
}
MOST_NEIGHBOURS = 16
"""Kinds of jobs beside an attempt that are kept, those that were longest beside it."""
LONGEST_NEIGHBOUR = 500
"""Characters of the key of such a kind; a longer one is kept as its digest."""

_MOST_BESIDE = 1000.0


def is_cpu(architecture: str) -> bool:
    """Whether jobs share processors there, not a GPU: ``CPU``, or a name that begins so.

    >>> is_cpu("CPU"), is_cpu("CPU-x86"), is_cpu("A100")
    (True, True, False)
    """
    return architecture.upper().startswith("CPU")


class Measurement(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """What one attempt with these parameters needed on one architecture.

    Or, where ``oversubscribe`` is set, the ratio that ``hpo tune-packing`` found best there for this objective.

    Raises:
        ValueError: a figure is negative, absurd or not finite, or a text too long.
    """

    objective: str
    """``module:function``."""
    code: str
    """Digest of its source."""
    architecture: str
    params: dict[str, Any]
    """The parameters that decide what it needs, no others."""
    memory: int = 0
    """Peak of its resident memory, in bytes; 0: not measured."""
    device_memory: int | None = None
    """Peak of its memory on its GPU, in bytes."""
    compute: float | None = None
    """Mean share of its GPU's time, 0 to 1."""
    cores: float = 0.0
    """CPU cores it kept busy."""
    startup_seconds: float = 0.0
    unit_seconds: float = 0.0
    """Per unit of training; 0: it trained none, because it ran out of memory."""
    out_of_memory: int = 0
    """Bytes that it had when it ran out of memory; 0: it did not."""
    study: str = ""
    measured_at: float = 0.0
    """Seconds since the epoch."""
    oversubscribe: float = 0.0
    """The oversubscription ratio that was best; 0: this is what one attempt needed."""
    speedup: float = 0.0
    """Units per second at that ratio over those at ratio 1; 0: not measured."""
    alone: float | None = None
    """Share of its training time in which no other job of its study was on its device, 0 to 1; None: not known."""
    beside: tuple[tuple[str, float], ...] = ()
    """(key, mean number over its training time) of the kinds of jobs that were on its device meanwhile."""
    load: float | None = None
    """Compute of its device that it and they claimed together, in the mean of its training time; 1 is all of it."""

    def __post_init__(self) -> None:
        for name, most in _NAMES.items():
            text = getattr(self, name)
            if len(text) > most:
                raise ValueError(f"measurement: {name} has {len(text):,} characters, and may have {most}.")
        for name, largest in _MOST.items():
            value = getattr(self, name)
            if value is not None and not 0 <= value <= largest:
                raise ValueError(f"measurement: {name} = {value!r} must lie between 0 and {largest:g}.")
        if 0 < self.oversubscribe < 1:
            raise ValueError(f"measurement: oversubscribe = {self.oversubscribe!r} must be 1 or more, or 0 for none.")
        if len(self.beside) > MOST_NEIGHBOURS:
            raise ValueError(f"measurement: beside has {len(self.beside)} kinds, and may have {MOST_NEIGHBOURS}.")
        for key, number in self.beside:
            if len(key) > LONGEST_NEIGHBOUR or not 0 <= number <= _MOST_BESIDE:
                raise ValueError(
                    f"measurement: beside has {number!r} of {key[:40]!r}; it may have 0 to {_MOST_BESIDE:g} of a key "
                    f"with {LONGEST_NEIGHBOUR} characters."
                )
        if len(self.key) > LONGEST_KEY:
            raise ValueError(f"measurement: params has {len(self.key):,} characters, and may have {LONGEST_KEY:,}.")

    @property
    def peak(self) -> int:
        """Bytes of the memory that its device shares out; 0 where that was not measured."""
        return self.memory if is_cpu(self.architecture) else self.device_memory or 0

    @property
    def key(self) -> str:
        """Equal for equal parameters; all ratios of an objective have one, which no attempt has."""
        return "oversubscribe" if self.oversubscribe else key_of(self.params)

    @property
    def group(self) -> str:
        """Of which the newest are kept: the attempts of an objective, or its ratios, which must not be crowded out."""
        return ratios_of(self.objective) if self.oversubscribe else self.objective

    @property
    def identity(self) -> str:
        """Digest of all of it: the same measurement, told twice, is one."""
        told = {}
        for name, default in _DEFAULTS.items():
            value = getattr(self, name)
            if value != default:  # not by omit_defaults, which asks whether it is the same object
                told[name] = float(value) if name in _FLOATS and value is not None else value
        return hashlib.sha256(msgspec.json.encode(told, order="sorted")).hexdigest()


_DEFAULTS = {field.name: field.default for field in msgspec.structs.fields(Measurement)}


def ratios_of(objective: str) -> str:
    """The :attr:`Measurement.group` of the ratios of an objective."""
    return f"oversubscribe {objective}"


def found_ratios(found: Iterable[Measurement]) -> dict[str, Measurement]:
    """By architecture, the ratio that was found last.

    >>> one = Measurement(objective="m:f", code="", architecture="A100", params={}, oversubscribe=2.5)
    >>> found_ratios([one])["A100"].oversubscribe
    2.5
    """
    ratios = sorted((one for one in found if one.oversubscribe), key=lambda one: (one.measured_at, one.identity))
    return {one.architecture: one for one in ratios}


def key_of(params: Mapping[str, Any]) -> str:
    """Parameters as a text that is equal for equal ones.

    >>> key_of({"width": 64, "optimizer": "adam"})
    '{"optimizer":"adam","width":64}'
    """
    return msgspec.json.encode(params, order="sorted").decode()


def neighbour_key(key: str) -> str:
    """The key of a neighbour as it is kept: a long one as its digest.

    >>> neighbour_key('{"width":64}'), len(neighbour_key("x" * 501))
    ('{"width":64}', 71)
    """
    return key if len(key) <= LONGEST_NEIGHBOUR else f"sha256:{hashlib.sha256(key.encode()).hexdigest()}"


def deciding_values(params: Mapping[str, Any], names: Collection[str]) -> dict[str, Any]:
    """The values of these names, as far as they are there; a long one as its digest.

    >>> deciding_values({"width": 64, "lr": 0.1}, ("width", "depth"))
    {'width': 64}
    """
    found = {}
    for name in sorted(names):
        if name in params:
            try:
                encoded = msgspec.json.encode(params[name], order="sorted")
            except (TypeError, OverflowError, ValueError):  # an integer beyond 64 bits, or no JSON at all
                encoded = msgspec.json.encode(repr(params[name]))
            is_long = len(encoded) > LONGEST_VALUE
            found[name] = f"sha256:{hashlib.sha256(encoded).hexdigest()}" if is_long else msgspec.json.decode(encoded)
    key = key_of(found)
    return found if len(key) <= LONGEST_KEY else {"sha256": hashlib.sha256(key.encode()).hexdigest()}
