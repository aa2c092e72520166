"""``hpo share``: weight and priority of a study in its pool, also while it runs."""

from __future__ import annotations

import os
from typing import Annotated, Any

import typer
from rich.text import Text

from hpo_core.cli.options import HomeOption, JournalOption, Name
from hpo_core.cli.output import out
from hpo_core.home import Home
from hpo_core.model.devices.pool_member import LEAST_PRIORITY, LEAST_WEIGHT, MOST_PRIORITY, MOST_WEIGHT
from hpo_core.model.errors import SpecError
from hpo_core.security.untrusted_text import terminal_text


def share(
    name: Name,
    weight: Annotated[float | None, typer.Option("--weight", help="Its slots compared with those of weight 1.")] = None,
    priority: Annotated[int | None, typer.Option("--priority", help="Higher ones get what they can use first.")] = None,
    home: HomeOption = None,
    journal: JournalOption = None,
) -> None:
    """Change a study's weight or priority in the pool that it shares; without options, show how it stands.

    A running study follows within seconds, and a resumed one keeps the change. Where HPO_ALLOWED_SHARE is set, as for
    deployments, it bounds this as well.
    """
    from hpo_core.journal.sql import current_owner, is_alive
    from hpo_core.model.devices.pool_member import Wish
    from hpo_core.pool.seat import pool_of
    from hpo_core.pool.store import live_rows, pools_of
    from hpo_core.pool.words import standings
    from hpo_core.spec import AddressClusterSpec
    from hpo_core.spec.refusals.share_bound import ALLOWED_SHARE, allowed_share, excess
    from hpo_core.study import Study

    if weight is not None and not LEAST_WEIGHT <= weight <= MOST_WEIGHT:
        raise SpecError(f"--weight {weight:g}: give a weight from {LEAST_WEIGHT:g} to {MOST_WEIGHT:g}.")
    if priority is not None and not LEAST_PRIORITY <= priority <= MOST_PRIORITY:
        raise SpecError(f"--priority {priority}: give a priority from {LEAST_PRIORITY} to {MOST_PRIORITY}.")
    source = Home(home, journal).read_journal()
    spec = Study.open(name, source, at=0).spec
    if spec.share is None:
        raise SpecError(
            f"Study {name!r} shares its slots with nobody (no share in its settings), so it has no weight or "
            "priority. A new study has one with --set share.pool=NAME."
        )
    change: dict[str, Any] = {"weight": weight, "priority": priority}
    claim = spec.share.model_copy(update={key: value for key, value in change.items() if value is not None})
    most = allowed_share(os.environ)
    if most is not None and claim != spec.share:
        at_address = isinstance(spec.cluster, AddressClusterSpec)
        if why := excess(claim, most, at_address=at_address):
            raise SpecError(f"{why}, which {ALLOWED_SHARE} does not allow here. Whoever sets it can change it.")
    pools = pools_of(source)
    present = [row.pool for row in pools.all() if row.study == name and row.member is not None]
    pool = present[0] if present else pool_of(spec, current_owner().host)  # it may have run on another machine before
    if weight is not None or priority is not None:
        pools.say(pool, name, Wish(weight=weight, priority=priority))
    wish = next((row.wish for row in pools.all() if (row.pool, row.study) == (pool, name)), None) or Wish()
    now = {
        "weight": f"{spec.share.weight if wish.weight is None else wish.weight:g}",
        "priority": f"{spec.share.priority if wish.priority is None else wish.priority}",
    }
    terms = ", ".join(f"{title} {value}" for title, value in now.items())
    out.print(Text(terminal_text(f"{name} in pool {pool}: {terms}")), soft_wrap=True)
    standing = standings(live_rows(source, is_alive)).get(name)
    if standing is None:
        out.print(
            Text(terminal_text(f"{name} does not run now; when it goes on, it begins with that.")), soft_wrap=True
        )
    elif weight is None and priority is None:
        out.print(Text(terminal_text(standing.words)), soft_wrap=True)
