"""What a job will need: stated, measured, predicted, or a share to profile it on."""

from hpo_core.placement.demands.deciding import deciding_parameters
from hpo_core.placement.demands.estimates import Estimate, Estimates
from hpo_core.placement.demands.objective_digest import objective_digest
from hpo_core.placement.demands.stated import StatedDemand

__all__ = ["Estimate", "Estimates", "StatedDemand", "deciding_parameters", "objective_digest"]
