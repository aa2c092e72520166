"""Connection: the trainer's end of the socket to its zygote. Every call has a time limit."""

from __future__ import annotations

import contextlib
import select
import socket
import threading
import time
from collections import deque

from hpo_core.training.child.messages import Inbox, MalformedMessageError, Message, frame

SEND_SECONDS = 60.0
"""How long a zygote may take to read a message; it reads between any two things it does."""


class Connection:
    """Sends and receives whole messages; ``read`` is for one thread, the rest for any thread."""

    def __init__(self, end: socket.socket) -> None:
        end.settimeout(SEND_SECONDS)
        self._socket = end
        self._lock = threading.Lock()
        self._inbox = Inbox()
        self._received: deque[Message] = deque()

    def send(self, message: Message) -> None:
        """Send a message. A dead or blocked zygote raises nothing here: ``read`` will notice it."""
        with self._lock:
            try:
                self._socket.sendall(frame(message))
            except TimeoutError:
                self.shut_down()  # half a message may be on its way, and nothing can follow it
            except OSError:
                pass

    def read(self, seconds: float) -> Message | None:
        """Return the next message, or None once no further one can come.

        Raises:
            TimeoutError: no message came within ``seconds``.
        """
        deadline = time.monotonic() + seconds
        while not self._received:
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
                self._received.extend(self._inbox.feed(data))
            except MalformedMessageError:  # what follows cannot be understood either
                return None
        return self._received.popleft()

    def shut_down(self) -> None:
        """End both directions. This wakes a thread in ``read``, which ``close`` alone does not."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Shut down and release the descriptor."""
        self.shut_down()
        self._socket.close()
