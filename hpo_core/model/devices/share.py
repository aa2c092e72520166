"""Share: the part of a device that one attempt may use."""

from __future__ import annotations

import msgspec


class Share(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """A device, and how much of it an attempt was given. Whole numbers, so that sums are exact."""

    device: str
    """Its name: a GPU's UUID, or the name of a computer whose processors are shared."""
    architecture: str
    """Such as ``A100``, or ``CPU``."""
    compute: int
    """Permille of the device."""
    memory: int
    """Bytes: of the GPU's memory, or of the computer's where jobs share its processors."""
    cores: int
    """CPU cores, in thousandths."""
    capacity: int
    """Bytes of the device that jobs may use together."""
    gpu: bool = False
    """Whether it is a GPU: ``device`` is then what ``CUDA_VISIBLE_DEVICES`` names it by."""
    alone: bool = False
    """Whether no other job is placed beside it, as after it ran out of memory."""
    mps: str = ""
    """Folder of the pipes of the GPU's MPS daemon, as the worker found it; empty: CUDA shares the GPU by itself."""

    @property
    def allowed(self) -> int:
        """Bytes that the attempt may use: its share, or all of them where it is alone."""
        return self.capacity if self.alone else self.memory

    def lowered(self, memory: int) -> Share:
        """The same with so many bytes, if that is less."""
        return self if memory >= self.memory else msgspec.structs.replace(self, memory=memory)

    @property
    def amounts(self) -> tuple[int, int, int]:
        """(compute, allowed memory, cores), as :class:`~hpo_core.model.devices.usage.Usage` keeps them."""
        return self.compute, self.allowed, self.cores
