"""Usage: what an attempt took of its machine, measured while it trained."""

from __future__ import annotations

import msgspec


class Usage(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """What one attempt used: its whole process tree, from its start to its end.

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
