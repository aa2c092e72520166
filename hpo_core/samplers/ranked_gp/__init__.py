"""A Gaussian process on the ranks of results, across rungs."""

from hpo_core.samplers.ranked_gp.ranked_gp_sampler import RankedGPSampler

__all__ = ["RankedGPSampler"]
