"""What trainer, zygote and child say to each other: frames of MessagePack over file descriptors."""

from __future__ import annotations

import os
from collections.abc import Iterator

import msgspec

from hpo_core.model.trial import Report
from hpo_core.training.request import JobRequest


class _Message(msgspec.Struct, frozen=True, tag=True):
    """Base: frozen, tagged with its class name."""


class Prepare(_Message, frozen=True):
    """Trainer to zygote, first of all: import this."""

    objective: str
    pythonpath: tuple[str, ...]


class Ready(_Message, frozen=True):
    """Zygote to trainer: imported, or why not."""

    error: str = ""
    spec: bool = False
    """Whether the error is one of the study's description rather than of the user's code."""


class Run(_Message, frozen=True):
    """Trainer to zygote: fork a child for this."""

    request: JobRequest


class Started(_Message, frozen=True):
    """Zygote to trainer: the child's process (and group)."""

    pid: int


class Cancel(_Message, frozen=True):
    """Trainer to zygote: end this attempt, if it is the one that runs."""

    trial: int
    attempt: int


class Ping(_Message, frozen=True):
    """Trainer to zygote: do you answer?"""


class Pong(_Message, frozen=True):
    """Zygote to trainer: yes."""

    ending: bool = False
    """Whether the child should be dead by now, or within its grace."""


class Done(_Message, frozen=True):
    """Child to zygote, zygote to trainer: how the attempt ended."""

    report: Report


LONGEST = 1 << 26
"""Bytes of one message at most; a longer one is none of ours."""


class MalformedMessageError(ValueError):
    """What came is no message: user code wrote to a descriptor of ours."""


Message = Prepare | Ready | Run | Started | Cancel | Ping | Pong | Done
_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[Message] = msgspec.msgpack.Decoder(Message)


def frame(message: Message) -> bytes:
    """A message as it is written: its length, then its body."""
    body = _encoder.encode(message)
    return len(body).to_bytes(4, "little") + body


def send(descriptor: int, message: Message) -> None:
    """Write one message, whole."""
    view = memoryview(frame(message))
    while view:
        view = view[os.write(descriptor, view) :]


class Inbox:
    """Collects bytes until messages are complete, so that half a frame of a dying process blocks nobody."""

    def __init__(self) -> None:
        self._data = bytearray()

    def feed(self, data: bytes) -> Iterator[Message]:
        """Add bytes; yield every message that is complete now.

        Raises:
            MalformedMessageError: they are none. Nothing that comes after can be understood.
        """
        self._data += data
        while len(self._data) >= 4:
            end = 4 + int.from_bytes(self._data[:4], "little")
            if end > 4 + LONGEST:
                raise MalformedMessageError(f"a message of {end - 4:,} bytes, longer than {LONGEST:,}")
            if len(self._data) < end:
                return
            try:
                message = _decoder.decode(self._data[4:end])
            except (msgspec.DecodeError, ValueError, RecursionError) as error:
                raise MalformedMessageError(f"{end - 4:,} bytes that are no message ({error})") from None
            del self._data[:end]
            yield message
