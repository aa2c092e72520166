"""Keeps torch's advice against ``find_unused_parameters`` out of the logs of gangs, by its exact text alone."""

from __future__ import annotations

import contextlib
import functools
import os
import sys
import tempfile
from collections.abc import Iterator

ADVICE = b"find_unused_parameters=True was specified in DDP constructor, but did not find any unused parameters"


@functools.cache
def hear_advice() -> None:
    """Have torch say it now, in this process, where nobody reads it; each rank must call it.

    We ask for the search because it keeps the order of the gradients, and with it the bits of a resume; torch knows of
    its other purpose alone, and tells people to turn off what they have not turned on. Neither Python's filters nor a
    static graph help: the text is written in C++, past Python, and a static graph orders the gradients anew, too.
    Torch says it once a process (TORCH_WARN_ONCE), at the first forward pass that finds no unused parameter.
    """
    import torch

    class One(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.ones(1))  # draws nothing from the random stream of the trial

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.weight * x

    with stderr_without(ADVICE), torch.enable_grad():
        torch.nn.parallel.DistributedDataParallel(One(), find_unused_parameters=True)(torch.ones(1))


@contextlib.contextmanager
def stderr_without(text: bytes) -> Iterator[None]:
    """Hold back what this process writes to standard error meanwhile; all of it follows but for lines with the text."""
    sys.stderr.flush()
    stderr = os.dup(2)
    with tempfile.TemporaryFile() as file:
        os.dup2(file.fileno(), 2)
        try:
            yield
        finally:
            sys.stderr.flush()
            os.dup2(stderr, 2)
            os.close(stderr)
            file.seek(0)
            os.write(2, b"".join(line for line in file if text not in line))
