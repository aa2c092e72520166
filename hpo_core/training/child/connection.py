"""Connection: the trainer's end of the socket to its zygote. No call waits for ever."""

from __future__ import annotations

import contextlib
import select
import socket
import threading
import time
from collections import deque

from hpo_core.training.child.messages import Inbox, MalformedMessageError, Message, frame

SEND_SECONDS = 60.0
"""How long a zygote may take to read what is sent to it; it reads between any two things it does."""


class Connection:
    """Whole messages in both directions; ``read`` is for one thread, the rest for any."""

    def __init__(self, end: socket.socket) -> None:
        end.settimeout(SEND_SECONDS)
        self._socket = end
        self._lock = threading.Lock()
        self._inbox = Inbox()
        self._arrived: deque[Message] = deque()

    def say(self, message: Message) -> None:
        """Send it; a zygote that is gone, or reads nothing, shows where its answer is awaited."""
        with self._lock:
            try:
                self._socket.sendall(frame(message))
            except TimeoutError:
                self.shut()  # half a message may be on its way, and nothing can follow it
            except OSError:
                pass

    def read(self, seconds: float) -> Message | None:
        """The next message; None once none can come any more.

        Raises:
            TimeoutError: none came within these seconds.
        """
        deadline = time.monotonic() + seconds
        while not self._arrived:
            try:
                ready = select.poll()
                ready.register(self._socket, select.POLLIN)
                if not ready.poll(max(0.0, deadline - time.monotonic()) * 1000):
                    raise TimeoutError
                data = self._socket.recv(1 << 16)
            except TimeoutError:
                raise
            except (OSError, ValueError):  # closed meanwhile by another thread
                return None
            if not data:
                return None
            try:
                self._arrived.extend(self._inbox.feed(data))
            except MalformedMessageError:  # what follows cannot be understood either
                return None
        return self._arrived.popleft()

    def shut(self) -> None:
        """End it in both directions: wakes a thread that reads, which ``close`` alone does not."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Shut it and give its descriptor back."""
        self.shut()
        self._socket.close()
