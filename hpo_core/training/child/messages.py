"""Messages between trainer, zygote and child: MessagePack frames over file descriptors."""

from __future__ import annotations

import os
from collections.abc import Iterator

import msgspec

from hpo_core.model.devices.measurement import Usage
from hpo_core.model.trial import Report
from hpo_core.training.request import JobRequest


class _Message(msgspec.Struct, frozen=True, tag=True):
    """Base: frozen, tagged with its class name."""


class Prepare(_Message, frozen=True):
    """Trainer to zygote, first message: import this objective."""

    objective: str
    pythonpath: tuple[str, ...]
    load: str = ""
    """``data.load``, which is looked for as well; empty: there is none."""


class Ready(_Message, frozen=True):
    """Zygote to trainer: the objective was imported, or the error."""

    error: str = ""
    spec: bool = False
    """True if the error is in the study's description (SpecError), not in the user's code (ObjectiveError)."""


class RunJob(_Message, frozen=True):
    """Trainer to zygote: fork a child for this request."""

    request: JobRequest


class Loading(_Message, frozen=True):
    """Zygote to trainer: a partition of the data is loaded first, which may take long."""


class Started(_Message, frozen=True):
    """Zygote to trainer: the process id (and process group) of the child."""

    pid: int


class Measured(_Message, frozen=True):
    """Zygote to trainer: what the attempt that runs has used so far, once its profile is complete."""

    usage: Usage


class Lower(_Message, frozen=True):
    """Trainer to zygote: from now on, this attempt may take only so many bytes of its device."""

    trial: int
    attempt: int
    memory: int


class Cancel(_Message, frozen=True):
    """Trainer to zygote: end this attempt, if it is running."""

    trial: int
    attempt: int
    exceeded: str = ""
    """Reason if it exceeds its share of a device; empty: it is ended on purpose."""


class Ping(_Message, frozen=True):
    """Trainer to zygote: a heartbeat request."""


class Pong(_Message, frozen=True):
    """Zygote to trainer: the heartbeat."""

    ending: bool = False
    """True if a child was told to end and is still there."""


class Finished(_Message, frozen=True):
    """Child to zygote, zygote to trainer: how the attempt ended."""

    report: Report
    traceback: str = ""
    """Whole traceback, for the log, of an error whose report shows the user's own frames alone."""
    stays: int = 0
    """Id of the process, where it stays for the next attempt; 0: it has ended."""
    asks: bool = False
    """True if the process that stays waits within the training, for the next job of its trial alone."""


class Settled(_Message, frozen=True):
    """Child to zygote, after its report: what the attempt left behind was put back."""

    stays: bool = False
    """True if the process waits for the next attempt; else it ends now."""
    cpu: float = 0.0
    """Processor seconds of the attempt, with the processes that it waited for."""
    asks: bool = False
    """True if it waits within the training, for the next job of its trial alone."""


MAX_MESSAGE_BYTES = 1 << 26
"""Maximum size of a message in bytes."""


class MalformedMessageError(ValueError):
    """Received bytes are no message: user code wrote to a descriptor of ours."""


Message = Prepare | Ready | RunJob | Loading | Started | Measured | Lower | Cancel | Ping | Pong | Finished | Settled
_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[Message] = msgspec.msgpack.Decoder(Message)


def frame(message: Message) -> bytes:
    """Encode a message: 4 bytes of length, then the body."""
    body = _encoder.encode(message)
    return len(body).to_bytes(4, "little") + body


def send(descriptor: int, message: Message) -> None:
    """Write one whole message to a file descriptor."""
    view = memoryview(frame(message))
    while view:
        view = view[os.write(descriptor, view) :]


class MessageInbox:
    """Collects bytes until messages are complete. Half a frame of a dying process blocks nobody."""

    def __init__(self) -> None:
        self._data = bytearray()

    def feed(self, data: bytes) -> Iterator[Message]:
        """Add bytes and yield every message that is complete now.

        Raises:
            MalformedMessageError: the bytes are no message; nothing after them can be understood.
        """
        self._data += data
        while len(self._data) >= 4:
            end = 4 + int.from_bytes(self._data[:4], "little")
            if end > 4 + MAX_MESSAGE_BYTES:
                raise MalformedMessageError(f"a message of {end - 4:,} bytes, longer than {MAX_MESSAGE_BYTES:,}")
            if len(self._data) < end:
                return
            try:
                message = _decoder.decode(self._data[4:end])
            except (msgspec.DecodeError, ValueError, RecursionError) as error:
                raise MalformedMessageError(f"{end - 4:,} bytes that are no message ({error})") from None
            del self._data[:end]
            yield message
