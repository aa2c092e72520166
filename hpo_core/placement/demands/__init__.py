"""What a job will need: stated, measured, predicted, or a share to profile it on."""

from hpo_core.model.devices.deciding_parameters import deciding_parameters
from hpo_core.model.devices.stated_demand import StatedDemand
from hpo_core.placement.demands.estimates import Estimate, Estimates
from hpo_core.placement.demands.objective_digest import objective_digest

__all__ = ["Estimate", "Estimates", "StatedDemand", "deciding_parameters", "objective_digest"]
