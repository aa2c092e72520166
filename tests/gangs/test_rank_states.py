"""What ranks save of their own: encoded without code, only where it differs, loaded at any size."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from hpo_core.checkpoints.tree_codec import tree_bytes  # noqa: E402
from hpo_core.gangs.ranks import (  # noqa: E402
    RANKS,
    Ranks,
    common_digests,
    differing,
    own_state,
)
from hpo_core.model.trial import Point  # noqa: E402
from hpo_core.training.request import RankPlace  # noqa: E402
from hpo_core.training.saved_state import state_of  # noqa: E402


def tracked(seed: int) -> dict[str, Any]:
    torch.manual_seed(3)
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4))
    torch.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed)
    model(torch.randn(5, 3) * seed).sum()
    return {"model": model, "order": torch.Generator().manual_seed(seed)}


def state_of_all(items: dict[str, Any], ranks: list[Any] | None) -> dict[str, Any]:
    tree = {"tracked": {name: state_of(item) for name, item in items.items()}, "random": {"torch": 0}}
    return tree | ({RANKS: ranks} if ranks is not None else {})


def taken(state: dict[str, Any], rank: int) -> dict[str, Any]:
    return Ranks(RankPlace(rank=rank, size=8, local_rank=rank, local_size=8, store="")).state_for(state)


def test_only_what_differs_is_saved_and_each_rank_gets_its_own() -> None:
    states = []
    for seed in (1, 1, 2):
        items = tracked(seed)
        states.append(own_state(items))
        digests = common_digests(items)
        assert digests.keys() == {"model"}
    assert states[0] == states[1] != states[2]
    assert differing(states[:2]) is None
    ranks = differing(states)
    assert ranks is not None and [part is None for part in ranks] == [True, True, False]
    first, third = tracked(1), tracked(2)
    assert common_digests(first) == common_digests(third), "statistics of a normalization are a rank's own"
    saved = state_of_all(first, ranks)
    for rank in (0, 1, 3, 4):
        assert taken(saved, rank) is saved
    for rank in (2, 5):
        mine = taken(saved, rank)
        assert tree_bytes(mine["tracked"]) == tree_bytes(state_of_all(third, None)["tracked"])
        tracked(2)
        assert torch.equal(mine["random"]["torch"], torch.get_rng_state())
        assert list(mine["tracked"]["model"]) == list(saved["tracked"]["model"])
    assert taken(state_of_all(first, None), 7)["random"] == {"torch": 0}


class Alone(Ranks):
    """Rank 0 of three, the others' messages being made up."""

    def __init__(self, others: list[bytes]) -> None:
        super().__init__(RankPlace(rank=0, size=3, local_rank=0, local_size=3, store=""))
        self.others = others

    def gather(self, data: bytes) -> list[bytes]:
        return [data, *(other or data for other in self.others)]


def encoded(*points: tuple[int, float, dict[str, float]]) -> bytes:
    import msgspec

    return msgspec.msgpack.encode(points)


def test_metrics_are_means_over_the_ranks_by_their_parts() -> None:
    ranks = Alone([encoded((1, 0.25, {"a": 2.0}), (2, 0.5, {"a": 4.0, "b": 0.1})), b""])
    ranks._weight = 0.25
    ranks.reports(2)
    points = [Point(1, {"a": 1.0}), Point(2, {"a": 8.0, "b": 0.1})]
    ranks.average_metrics(points, 2)
    assert points[0].metrics["a"] == pytest.approx((1 / 3 + 0.5 + 1 / 3) / (1 / 3 + 0.25 + 1 / 3))
    assert points[1].metrics == {"a": 6.0, "b": 0.1}, "equal values stay as they are"
    odd = Alone([encoded((2, 0.5, {"a": float("nan"), "b": 0.1})), b""])
    odd.average_metrics(points, 2)
    assert np.isnan(points[1].metrics["a"])


def test_parts_of_a_batch_cover_it_and_nobody_has_none() -> None:
    for count in range(1, 12):
        parts, weights = [], []
        for rank in range(4):
            ranks = Alone([b"", b""])
            ranks.rank, ranks.size = rank, 4
            (part, same) = ranks.shard((list(range(count)), range(count)))
            assert part == list(same) and part
            weights.append(ranks._weight)
            parts += part if ranks._weight else []
        assert parts == list(range(count)) and sum(weights) == pytest.approx(1.0)
