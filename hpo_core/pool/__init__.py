"""Pools: who may use how much of what several studies share. Here: ``hpo share``."""

from __future__ import annotations

from typing import Annotated

import typer

from hpo_core.home import Home
from hpo_core.model.errors import SpecError
from hpo_core.spec.sections import LEAST_PRIORITY, LEAST_WEIGHT, MOST_PRIORITY, MOST_WEIGHT
from hpo_core.study import Study
from hpo_core.terminal.output import HomeOption, JournalOption, Name, out


def share_study(
    name: Name,
    weight: Annotated[float | None, typer.Option("--weight", help="Its slots compared with those of weight 1.")] = None,
    priority: Annotated[
        int | None, typer.Option("--priority", help="Studies of a higher priority get all that they can use first.")
    ] = None,
    home: HomeOption = None,
    journal: JournalOption = None,
) -> None:
    """Change a study's weight or priority in the pool that it shares; without options, show how it stands.

    A running study follows within seconds, and a resumed one keeps the change.
    """
    from hpo_core.journal.sql import current_owner
    from hpo_core.pool.division import Wish
    from hpo_core.pool.seat import pool_of
    from hpo_core.pool.store import pools_of
    from hpo_core.pool.words import live_standings

    if weight is not None and not LEAST_WEIGHT <= weight <= MOST_WEIGHT:
        raise SpecError(f"--weight {weight:g}: give a weight from {LEAST_WEIGHT:g} to {MOST_WEIGHT:g}.")
    if priority is not None and not LEAST_PRIORITY <= priority <= MOST_PRIORITY:
        raise SpecError(f"--priority {priority}: give a priority from {LEAST_PRIORITY} to {MOST_PRIORITY}.")
    source = Home(home, journal).read_journal()
    spec = Study.open(name, source, at=0).spec
    own = spec.sharing
    pools = pools_of(source)
    present = [row.pool for row in pools.all() if row.study == name and row.member is not None]
    pool = present[0] if present else pool_of(spec, current_owner().host)  # it may have run on another machine before
    if weight is not None or priority is not None:
        pools.say(pool, name, Wish(weight=weight, priority=priority))
    wish = next((row.wish for row in pools.all() if (row.pool, row.study) == (pool, name)), None) or Wish()
    now = {
        "weight": f"{own.weight if wish.weight is None else wish.weight:g}",
        "priority": f"{own.priority if wish.priority is None else wish.priority}",
    }
    terms = ", ".join(f"{title} {value}" for title, value in now.items())
    out.say(f"{name} in pool {pool}: {terms}")
    standing = live_standings(source).get(name)
    if standing is None:
        out.say(f"{name} does not run now; when it goes on, it begins with that.")
    elif weight is None and priority is None:
        out.say(standing.words)
