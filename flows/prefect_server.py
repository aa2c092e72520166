"""Run the Prefect API on a port of 127.0.0.1 until standard input closes (``python -m flows.prefect_server PORT``)."""

from __future__ import annotations

import os
import signal
import sys
import threading


def _end_with_stdin() -> None:
    sys.stdin.buffer.read()
    os.kill(os.getpid(), signal.SIGTERM)
    timer = threading.Timer(5.0, os._exit, args=(0,))
    timer.daemon = True
    timer.start()


def main(port: int) -> None:
    """Serve until the parent closes our standard input or dies."""
    threading.Thread(target=_end_with_stdin, daemon=True).start()
    import uvicorn
    from prefect.server.api.server import create_app

    uvicorn.run(create_app(), host="127.0.0.1", port=port, log_level="warning", timeout_keep_alive=30)


if __name__ == "__main__":
    main(int(sys.argv[1]))
