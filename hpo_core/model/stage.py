"""What a job means to the search: a closed union, recorded with every job."""

from __future__ import annotations

import msgspec

FURTHER = -1
""":attr:`Further.rung`: training beyond the search stands at no rung."""


class _Stage(msgspec.Struct, frozen=True, tag_field="is", tag=True, gc=False):
    """Base: frozen, tagged with its class name in the journal."""


class Rung(_Stage, frozen=True):
    """A job of the successive halving family, of random and of grid search."""

    bracket: int
    rung: int
    """Place in the bracket's ladder, 0 at the bottom."""


class Generation(_Stage, frozen=True):
    """A session of one member of a population (PBT)."""

    member: int
    """Place in the population, from 0."""
    generation: int

    @property
    def bracket(self) -> int:
        """0: a population has one ladder."""
        return 0

    @property
    def rung(self) -> int:
        """The generation, which is the population's rung."""
        return self.generation


class Further(_Stage, frozen=True):
    """Training that a person asked for beyond the search (``Study.train_further``); no search method ranks it."""

    bracket: int
    """The trial's own."""

    @property
    def rung(self) -> int:
        """:data:`FURTHER`."""
        return FURTHER


Stage = Rung | Generation | Further
