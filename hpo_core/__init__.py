"""Hyperparameter optimization with paper-exact methods and a journal that survives everything.

The public names. Everything else may move between versions.
"""

from importlib import import_module
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
    from hpo_core.model.parameter_schedule import Schedule
    from hpo_core.model.settings import MetricSpec as Metric
    from hpo_core.model.space.choices import CategoricalParameter as Choice
    from hpo_core.model.space.number import FloatParameter as Float
    from hpo_core.model.space.number import IntParameter as Int
    from hpo_core.model.space.number import Reference
    from hpo_core.model.trial import Checkpoint, Job, Outcome, Report
    from hpo_core.result import Result, TrialResult, load
    from hpo_core.search.asha import AshaSearch as Asha
    from hpo_core.search.grid import GridSearch as Grid
    from hpo_core.search.hyperband import HyperbandSearch as Hyperband
    from hpo_core.search.pasha import PashaSearch as Pasha
    from hpo_core.search.pbt import PbtSearch as Pbt
    from hpo_core.search.random import RandomSearch as Random
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

_PUBLIC = {
    # run a study, read it
    "tune": "hpo_flows.python_call",  # the package beside this one, which needs Dask
    "resume": "hpo_flows.python_call",
    "load": "hpo_core.result",
    "Result": "hpo_core.result",
    "TrialResult": "hpo_core.result",
    # describe a study
    "Float": "hpo_core.model.space.number:FloatParameter",
    "Int": "hpo_core.model.space.number:IntParameter",
    "Choice": "hpo_core.model.space.choices:CategoricalParameter",
    "Reference": "hpo_core.model.space.number",
    "Metric": "hpo_core.model.settings:MetricSpec",
    "Asha": "hpo_core.search.asha:AshaSearch",
    "Sha": "hpo_core.search.sha:ShaSearch",
    "Hyperband": "hpo_core.search.hyperband:HyperbandSearch",
    "Pasha": "hpo_core.search.pasha:PashaSearch",
    "Pbt": "hpo_core.search.pbt:PbtSearch",
    "Random": "hpo_core.search.random:RandomSearch",
    "Grid": "hpo_core.search.grid:GridSearch",
    "Sampler": "hpo_core.spec.sections:SamplerSpec",
    "WorkerRange": "hpo_core.spec.sections",
    "Slurm": "hpo_core.spec.sections:SlurmClusterSpec",
    "LocalCuda": "hpo_core.spec.sections:LocalCudaClusterSpec",
    "Packing": "hpo_core.spec.packing:PackingSpec",
    "Demand": "hpo_core.spec.packing:DemandSpec",
    "Prefect": "hpo_core.spec.sections:PrefectSpec",
    "Share": "hpo_core.spec.sections:ShareSpec",
    "Data": "hpo_core.spec.data:DataSpec",
    "Stop": "hpo_core.spec.sections:StopSpec",
    "Training": "hpo_core.spec.sections:TrainingSpec",
    "Scaling": "hpo_core.spec.sections:ScalingSpec",
    "Checkpoints": "hpo_core.spec.sections:CheckpointSpec",
    "Tracking": "hpo_core.spec.sections:TrackingSpec",
    "WarmStart": "hpo_core.spec.sections:WarmStartSpec",
    "StudySpec": "hpo_core.spec",
    "load_spec": "hpo_core.spec",
    # drive a study by hand
    "Study": "hpo_core.study",
    "StudyState": "hpo_core.state",
    "TrialRecord": "hpo_core.state",
    "Job": "hpo_core.model.trial",
    "Report": "hpo_core.model.trial",
    "Outcome": "hpo_core.model.trial",
    "Checkpoint": "hpo_core.model.trial",
    "Journal": "hpo_core.journal.protocol",
    "MemoryJournal": "hpo_core.journal.memory",
    "Schedule": "hpo_core.model.parameter_schedule",
    "State": "hpo_core.training.saved_state",
    "Trial": "hpo_core.training.handle:TrialHandle",
    "HpoError": "hpo_core.model.errors",
    "CheckpointError": "hpo_core.model.errors",
    "ObjectiveError": "hpo_core.model.errors",
    "SpecError": "hpo_core.model.errors",
    "StudyExistsError": "hpo_core.model.errors",
    "StudyNotFoundError": "hpo_core.model.errors",
}
"""Public names: the module of each, and its name there where that is another one."""

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
    "Reference",
    "Report",
    "Result",
    "Sampler",
    "Scaling",
    "Schedule",
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

    def __getattr__(name: str) -> Any:
        """Import a name when it is first asked for: a script that plays a schedule waits for none of the rest."""
        if name not in _PUBLIC:
            here = import_module(__name__)  # Python then says which name was meant
            raise AttributeError(f"module 'hpo_core' has no attribute {name!r}", name=name, obj=here)
        module, _, inner = _PUBLIC[name].partition(":")
        value = globals()[name] = getattr(import_module(module), inner or name)
        return value


def __dir__() -> list[str]:
    """The public names, which a notebook completes."""
    return [*__all__, "__version__"]
