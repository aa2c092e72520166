"""Ranks that compute the same gradients, by what each tells the others."""

from __future__ import annotations

import pytest
import torch

from hpo_core.training.ranks import PASSES, FirstGradients


def rank_of(*gradients: torch.Tensor) -> FirstGradients:
    found = FirstGradients()
    for each in gradients:
        found.add(each)
    return found


def same(ranks: list[FirstGradients], *, last: bool = False) -> bool:
    told = [rank.encoded() for rank in ranks]
    answers = {rank.are_same(told, last=last) for rank in ranks}
    assert len(answers) == 1 and len({rank.judged for rank in ranks}) == 1, "all ranks come to the same verdict"
    return answers.pop()


ONE, OTHER = torch.tensor([1.0, -2.0, 0.0]), torch.tensor([1.0, -2.0, 1e-30])


@pytest.mark.parametrize("kind", [torch.float32, torch.float64, torch.bfloat16])
def test_the_same_to_the_bit_in_each_pass(kind: torch.dtype) -> None:
    one, other = ONE.to(kind), OTHER.to(kind)
    assert same([rank_of(*[one] * PASSES), rank_of(*[one.clone()] * PASSES)])
    assert not same([rank_of(*[one] * PASSES), rank_of(*[one] * (PASSES - 1), other)]), "another one in the last pass"
    assert not same([rank_of(one), rank_of(one), rank_of(other)], last=True), "one rank of three differs"


def test_few_passes_are_judged_at_the_end_of_the_job() -> None:
    ranks = [rank_of(ONE), rank_of(ONE)]
    assert not same(ranks) and not ranks[0].judged
    assert same(ranks, last=True)
    ranks = [rank_of(ONE), rank_of(OTHER)]
    assert not same(ranks) and ranks[0].judged, "nothing that comes can make them the same"
    assert not same([rank_of(), rank_of()], last=True), "nothing was seen"


def test_gradients_that_say_nothing_of_the_data_do_not_count() -> None:
    nothing = [torch.zeros(3), torch.tensor([1.0, torch.nan]), torch.tensor([torch.inf]), ONE.to_sparse()]
    assert not same([rank_of(*nothing), rank_of(*nothing)], last=True)
    assert same([rank_of(*nothing, *[ONE] * PASSES), rank_of(*nothing, *[ONE] * PASSES)])


def test_no_more_than_the_first_passes_are_looked_at() -> None:
    ranks = [rank_of(*[ONE] * PASSES, ONE), rank_of(*[ONE] * PASSES, OTHER)]
    assert same(ranks)
    before = ranks[0].encoded()
    ranks[0].add(OTHER)
    assert ranks[0].encoded() == before
