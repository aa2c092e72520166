"""Hyperparameter optimization with paper-exact methods and a journal that survives everything.

The public names. Everything else may move between versions.
"""

from functools import cache
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hpo_core.journal.memory import MemoryJournal
    from hpo_core.journal.protocol import Journal
    from hpo_core.model.errors import (
        CheckpointError,
        HpoError,
        ObjectiveError,
        SpecError,
        StudyExistsError,
        StudyNotFoundError,
    )
    from hpo_core.model.settings import MetricSpec as Metric
    from hpo_core.model.space.choices import CategoricalParameter as Choice
    from hpo_core.model.space.number import FloatParameter as Float
    from hpo_core.model.space.number import IntParameter as Int
    from hpo_core.model.trial import Checkpoint, Job, Outcome, Report
    from hpo_core.result import Result, TrialResult, load
    from hpo_core.search.asha import AshaSearch as Asha
    from hpo_core.search.grid import GridSearch as Grid
    from hpo_core.search.pasha import PashaSearch as Pasha
    from hpo_core.search.pbt import PbtSearch as Pbt
    from hpo_core.search.random import RandomSearch as Random
    from hpo_core.search.sha import HyperbandSearch as Hyperband
    from hpo_core.search.sha import ShaSearch as Sha
    from hpo_core.spec import StudySpec, load_spec
    from hpo_core.spec.data import DataSpec as Data
    from hpo_core.spec.packing import DemandSpec as Demand
    from hpo_core.spec.packing import PackingSpec as Packing
    from hpo_core.spec.sections import CheckpointSpec as Checkpoints
    from hpo_core.spec.sections import LocalCudaClusterSpec as LocalCuda
    from hpo_core.spec.sections import PrefectSpec as Prefect
    from hpo_core.spec.sections import SamplerSpec as Sampler
    from hpo_core.spec.sections import ScalingSpec as Scaling
    from hpo_core.spec.sections import ShareSpec as Share
    from hpo_core.spec.sections import SlurmClusterSpec as Slurm
    from hpo_core.spec.sections import StopSpec as Stop
    from hpo_core.spec.sections import TrackingSpec as Tracking
    from hpo_core.spec.sections import TrainingSpec as Training
    from hpo_core.spec.sections import WarmStartSpec as WarmStart
    from hpo_core.spec.sections import WorkerRange
    from hpo_core.state import StudyState, TrialRecord
    from hpo_core.study import Study
    from hpo_core.training.handle import TrialHandle as Trial
    from hpo_core.training.saved_state import State
    from hpo_flows.python_call import resume, tune

__version__ = "0.1.0"

__all__ = [
    "Asha",
    "Checkpoint",
    "CheckpointError",
    "Checkpoints",
    "Choice",
    "Data",
    "Demand",
    "Float",
    "Grid",
    "HpoError",
    "Hyperband",
    "Int",
    "Job",
    "Journal",
    "LocalCuda",
    "MemoryJournal",
    "Metric",
    "ObjectiveError",
    "Outcome",
    "Packing",
    "Pasha",
    "Pbt",
    "Prefect",
    "Random",
    "Report",
    "Result",
    "Sampler",
    "Scaling",
    "Sha",
    "Share",
    "Slurm",
    "SpecError",
    "State",
    "Stop",
    "Study",
    "StudyExistsError",
    "StudyNotFoundError",
    "StudySpec",
    "StudyState",
    "Tracking",
    "Training",
    "Trial",
    "TrialRecord",
    "TrialResult",
    "WarmStart",
    "WorkerRange",
    "load",
    "load_spec",
    "resume",
    "tune",
]


if not TYPE_CHECKING:  # a type checker refuses names that are not there

    @cache
    def _places() -> dict[str, tuple[str, str]]:
        """By public name: its module, and its name there, as the imports above say."""
        from hpo_core.model.syntax_tree import syntax_tree

        block = next(node for node in syntax_tree(Path(__file__).read_bytes()).body if hasattr(node, "orelse"))
        return {one.asname or one.name: (node.module, one.name) for node in block.body for one in node.names}

    def __getattr__(name: str) -> Any:
        """Import a name when it is first asked for: a script that plays a schedule waits for none of the rest."""
        if name not in __all__:
            here = import_module(__name__)  # Python then says which name was meant
            raise AttributeError(f"module 'hpo_core' has no attribute {name!r}", name=name, obj=here)
        module, inner = _places()[name]
        value = globals()[name] = getattr(import_module(module), inner)
        return value


def __dir__() -> list[str]:
    """The public names, which a notebook completes."""
    return [*__all__, "__version__"]
