"""The most that a study may claim of a pool, where an operator sets a bound (``HPO_ALLOWED_SHARE``)."""

from __future__ import annotations

from collections.abc import Mapping

import yaml
from pydantic import ValidationError

from hpo_core.model.errors import SpecError
from hpo_core.spec.packing import read_packing
from hpo_core.spec.sections import ShareSpec
from hpo_core.spec.study_file import read_yaml
from hpo_core.spec.validation_errors import explain

ALLOWED_SHARE = "HPO_ALLOWED_SHARE"


def allowed_share(environment: Mapping[str, str]) -> ShareSpec | None:
    """The most that a study may claim of a pool, as ``HPO_ALLOWED_SHARE`` says; None: the operator sets no bound.

    Raises:
        SpecError: it does not read like ``share`` of a study file.
    """
    text = environment.get(ALLOWED_SHARE, "").strip()
    if not text:
        return None
    given = None
    try:
        given, _ = read_yaml(text)
        return ShareSpec.model_validate(read_packing(given))
    except (yaml.YAMLError, ValidationError) as error:
        why = (
            explain(error, ALLOWED_SHARE, given, {}, whole=ShareSpec)
            if isinstance(error, ValidationError)
            else str(error)
        )
        raise SpecError(
            f"{ALLOWED_SHARE} = {text!r}: write it as share of a study file, such as {{weight: 2, priority: 1}}. {why}"
        ) from None


def excess(share: ShareSpec | None, most: ShareSpec, *, at_address: bool) -> str:
    """Claim of a study beyond the most that a pool may give; empty: nothing.

    Args:
        at_address: whether it runs on a cluster that others use as well.
    """
    if share is None:
        return "share is absent, so the study would take every slot that it finds at that address" if at_address else ""
    if share.weight > most.weight:
        return f"share.weight = {share.weight:g} is more than {most.weight:g}"
    if share.priority > most.priority:
        return f"share.priority = {share.priority} is more than {most.priority}"
    if at_address and share.pool != most.pool:
        named = "none is named" if most.pool is None else f"the pool is {most.pool!r}"
        return f"share.pool = {share.pool!r} leaves nothing to the other studies at that address ({named})"
    return ""
