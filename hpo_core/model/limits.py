"""Largest sizes of a study's description.

Whatever a study file, a mapping, the command line or a form says is accepted or refused within about a second and
300 MB; these limits see to that. They hold for new descriptions. A journal written before a limit existed replays.
``docs/reference/limits.md`` lists them; each error names its limit.
"""

from __future__ import annotations

FILE_BYTES = 512 * 1024
"""Size of a study file."""
VALUES = 20_000
"""Values in a description, keys not counted; aliases (``*name``) and merges (``<<``) count as what they stand for."""
DEPTH = 20
"""Levels of nesting."""
TEXT = 10_000
"""Characters of one text or key."""
NAME = 200
"""Characters of the name of a parameter or a metric: MLflow takes 250, and a prefix comes before some."""
LARGEST_INTEGER = 2**63 - 1
"""Whole numbers lie between minus this and this."""
SECONDS = 1e9
"""Any time limit: about 31 years. Operating systems take no much longer waits."""

PARAMETERS = 1_000
"""Parameters of a search space."""
CHOICES = 10_000
"""Choices of a parameter, and values that one condition names."""
STEPS = 2**53
"""Values of a parameter with a step: floats tell no more apart."""
METRICS = 20
"""Metrics to optimize."""
PARTITIONS = 1_000
"""Partitions of the data, and as many again for validation."""

RESOURCE = 2**53
"""Units of one training."""
CONFIGS = 1_000_000_000
"""Configurations a search plans in all."""
RUNGS = 100
"""Rungs of one bracket."""
PLANNED_RUNGS = 50_000
"""Rungs of all brackets of all rounds together; generations of a population."""
GRID_POINTS = 1_000_000
"""Points of a grid."""
GRID_VALUES = 100_000
"""Values on all axes of a grid together."""
GRID_STEPS = 200_000
"""Whole and partial points of a grid that are looked at where they are listed one by one."""
SIMULATED_JOBS = 2_000_000
"""Jobs of one repeat of a simulation."""
SIMULATED_WORKERS = 100_000
"""Workers of a simulation, those that join included."""

SAMPLER_ARGUMENTS = {"n_ei_candidates": 10_000, "population_size": 100_000, "popsize": 10_000}
"""Largest arguments of Optuna's samplers that take memory for each."""

ERROR_LINES = 20
"""Lines of one error; the others are counted."""
SHOWN = 200
"""Characters of a value that an error repeats."""
