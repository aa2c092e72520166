"""Refuses ``share`` where the slots are shared with nobody, or where sharing is not built."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpo_core.spec.clusters import AddressClusterSpec
from hpo_core.spec.refusals.gangs import least_slots

if TYPE_CHECKING:
    from hpo_core.spec.study_spec import StudySpec


def check_share(spec: StudySpec) -> None:
    """Refuse what the rest of a study does not fit.

    Raises:
        ValueError: setting, value, rule and cure.
    """
    share = spec.share
    if share is None:
        return
    if spec.data is not None:
        _check_hopping(spec)
    at_address = isinstance(spec.cluster, AddressClusterSpec)
    if share.pool is None and not at_address:
        raise ValueError(
            f"share.pool is absent, and {spec.cluster.named} starts workers for this study alone: give the pool a "
            "name (share: {pool: cpu}), the same one in each study that shares"
        )
    if share.slots is not None and at_address:
        raise ValueError(
            f"share.slots = {share.slots}, and {spec.cluster.named}: the pool has as many slots as that cluster; drop "
            "share.slots"
        )
    gang = spec.training.gang
    if share.slots is not None and gang != 1 and share.slots < (least := least_slots(spec)):
        never, cure = ("grow", "set training.gang to 1") if gang == "auto" else ("begin", "lower training.gang")
        raise ValueError(
            f"share.slots = {share.slots}, and training.gang = {gang}: no job could ever {never}; raise "
            f"share.slots to {least}, or {cure}"
        )


def _check_hopping(spec: StudySpec) -> None:
    """Models hop over workers that have names, which all studies of the pool see."""
    if not isinstance(spec.cluster, AddressClusterSpec):
        raise ValueError(
            f"share, and data, with {spec.cluster.named}: models hop over workers that the studies of a pool have in "
            "common, and these are started for this study alone; give cluster: {kind: address, address: ...}, or drop "
            "share"
        )
