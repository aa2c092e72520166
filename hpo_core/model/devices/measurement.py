"""Measurement: what one attempt needed, kept for later studies of the same objective."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping
from typing import Any

import msgspec

LONGEST_VALUE = 200
"""Characters of one parameter's JSON; a longer one is kept as its digest."""
LONGEST_KEY = 8_000
"""Characters of all its parameters as JSON; longer ones are kept as one digest."""


def is_cpu(architecture: str) -> bool:
    """True if jobs share processors there, not a GPU: ``CPU``, or a name that begins so.

    >>> is_cpu("CPU"), is_cpu("CPU-x86"), is_cpu("A100")
    (True, True, False)
    """
    return architecture.upper().startswith("CPU")


class Measurement(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """The measured need of one attempt with these parameters on one architecture."""

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
    load: float | None = None
    """Compute of its device that it and the jobs beside it claimed, in the mean of its training time; 1: all of it."""
    jobs: float | None = None
    """Jobs of its study on its device, itself included, in the mean of its training time."""

    @property
    def peak(self) -> int:
        return self.memory if is_cpu(self.architecture) else self.device_memory or 0

    @property
    def key(self) -> str:
        return key_of(self.params)

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
_FLOATS = {field.name for field in msgspec.structs.fields(Measurement) if field.type in (float, float | None)}


def key_of(params: Mapping[str, Any]) -> str:
    """Parameters as a text that is equal for equal ones.

    >>> key_of({"width": 64, "optimizer": "adam"})
    '{"optimizer":"adam","width":64}'
    """
    return msgspec.json.encode(params, order="sorted").decode()


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


class Usage(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """Resources that one attempt used: its whole process tree, from its start to its end.

    Whatever could not be measured is left at its default: an attempt that was lost measured nothing.
    """

    memory: int = 0
    """Peak of its resident memory, in bytes: anonymous and shared memory, not the files that it maps.

    It is looked at while the attempt runs. One that was over after half a second says its peak itself; files that it
    had mapped and closed again may be in that.
    """
    cores: float = 0.0
    """CPU cores it kept busy: seconds of processor time per second."""
    startup_seconds: float = 0.0
    """From its start to its first unit of training."""
    unit_seconds: float = 0.0
    """Per unit of training, without start-up and checkpoints."""
    device_memory: int | None = None
    """Peak of its memory on its GPU, in bytes; None: it had none, or the driver does not say."""
    compute: float | None = None
    """Mean share of its GPU's time in which its kernels ran, 0 to 1; None: it had none, or the driver does not say."""
    architecture: str = ""
    """Architecture of its device, such as ``A100`` or ``CPU``; empty where it was not placed on a device."""
    device: str = ""
    """Name of the device that it was placed on."""
    share: tuple[int, int, int] | None = None
    """(compute in permille, memory in bytes, cores in thousandths) that it held of the device in the end.

    None: all of it. One whose need was not known began with a larger share.
    """
    load: int | None = None
    """Permille of its device's compute that it and the jobs beside it claimed, in the mean of its training time."""
    jobs: float | None = None
    """Jobs of its study on its device, itself included, in the mean of its training time."""


UsageField = Usage | msgspec.UnsetType
"""As a field of a report or an event: not set, and left out of the journal, where nothing was measured."""
