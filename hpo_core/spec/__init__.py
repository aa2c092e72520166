"""StudySpec: what a YAML file, Python, the command line and a UI form all fill in.

Unknown keys, wrong types and impossible ranges are refused here, once, with the place and the cure;
everything behind this package may trust what it gets.
"""

from hpo_core.model.settings import MetricSpec
from hpo_core.search.asha import AshaSearch
from hpo_core.search.grid import GridSearch
from hpo_core.search.hyperband import HyperbandSearch
from hpo_core.search.pasha import PashaSearch
from hpo_core.search.pbt import PbtSearch
from hpo_core.search.random import RandomSearch
from hpo_core.search.sha import ShaSearch
from hpo_core.spec.data import DataSpec
from hpo_core.spec.packing import DemandSpec, PackingSpec
from hpo_core.spec.sections import (
    AddressClusterSpec,
    CheckpointSpec,
    JournalSpec,
    KubernetesClusterSpec,
    LocalClusterSpec,
    LocalCudaClusterSpec,
    SamplerSpec,
    ScalingSpec,
    ShareSpec,
    SlurmClusterSpec,
    StopSpec,
    TrackingSpec,
    TrainingSpec,
    WarmStartSpec,
)
from hpo_core.spec.study_file import load_spec
from hpo_core.spec.study_spec import StudySpec

__all__ = [
    "AddressClusterSpec",
    "AshaSearch",
    "CheckpointSpec",
    "DataSpec",
    "DemandSpec",
    "GridSearch",
    "HyperbandSearch",
    "JournalSpec",
    "KubernetesClusterSpec",
    "LocalClusterSpec",
    "LocalCudaClusterSpec",
    "MetricSpec",
    "PackingSpec",
    "PashaSearch",
    "PbtSearch",
    "RandomSearch",
    "SamplerSpec",
    "ScalingSpec",
    "ShaSearch",
    "ShareSpec",
    "SlurmClusterSpec",
    "StopSpec",
    "StudySpec",
    "TrackingSpec",
    "TrainingSpec",
    "WarmStartSpec",
    "load_spec",
]
