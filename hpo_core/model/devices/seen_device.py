"""SeenDevice: one worker's look at a device that jobs can share."""

from __future__ import annotations

from typing import Annotated

import msgspec

_Amount = Annotated[int, msgspec.Meta(ge=0, le=2**62)]


WAITING = ""
"""Stands for the folder of a study: for processes that wait for an attempt, and end for one that begins there."""


class SeenDevice(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One look at a device; sent with the heartbeats of a worker."""

    node: Annotated[str, msgspec.Meta(min_length=1)]
    """Name of the computer it is in."""
    boot: str = ""
    """Another one for another computer of that name."""
    architecture: Annotated[str, msgspec.Meta(min_length=1)]
    """Such as ``A100``, or ``CPU``."""
    memory: Annotated[int, msgspec.Meta(ge=1, le=2**62)]
    """Bytes in all."""
    used: _Amount
    """Bytes in use, by whomever."""
    own: dict[str, _Amount] = {}
    """Bytes of them that attempts of this worker use, by folder of their study. Those of ``WAITING`` are free."""
    by_growth: bool = False
    """Whether ``own`` is what the device's use grew by since none ran here: other workers' attempts are in it, too."""
    cores: Annotated[int, msgspec.Meta(ge=1, le=2**62)]
    """CPU cores of the computer, in thousandths."""
    gpu: bool = False
