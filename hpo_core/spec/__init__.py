"""StudySpec: what a YAML file, Python, the command line and a UI form all fill in.

Unknown keys, wrong types and impossible ranges are refused here, once, with the place and the cure;
everything behind this package may trust what it gets.

Names are imported when they are first asked for: workers and training processes use a module of it or two.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
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

_MODULES = {
    "AddressClusterSpec": "hpo_core.spec.sections",
    "AshaSearch": "hpo_core.search.asha",
    "CheckpointSpec": "hpo_core.spec.sections",
    "DataSpec": "hpo_core.spec.data",
    "DemandSpec": "hpo_core.spec.packing",
    "GridSearch": "hpo_core.search.grid",
    "HyperbandSearch": "hpo_core.search.hyperband",
    "JournalSpec": "hpo_core.spec.sections",
    "KubernetesClusterSpec": "hpo_core.spec.sections",
    "LocalClusterSpec": "hpo_core.spec.sections",
    "LocalCudaClusterSpec": "hpo_core.spec.sections",
    "MetricSpec": "hpo_core.model.settings",
    "PackingSpec": "hpo_core.spec.packing",
    "PashaSearch": "hpo_core.search.pasha",
    "PbtSearch": "hpo_core.search.pbt",
    "RandomSearch": "hpo_core.search.random",
    "SamplerSpec": "hpo_core.spec.sections",
    "ScalingSpec": "hpo_core.spec.sections",
    "ShaSearch": "hpo_core.search.sha",
    "ShareSpec": "hpo_core.spec.sections",
    "SlurmClusterSpec": "hpo_core.spec.sections",
    "StopSpec": "hpo_core.spec.sections",
    "StudySpec": "hpo_core.spec.study_spec",
    "TrackingSpec": "hpo_core.spec.sections",
    "TrainingSpec": "hpo_core.spec.sections",
    "WarmStartSpec": "hpo_core.spec.sections",
    "load_spec": "hpo_core.spec.study_file",
}
"""Public names, and the modules that define them."""

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


def __getattr__(name: str) -> Any:
    """Import a name when it is first asked for."""
    if name not in _MODULES:
        raise AttributeError(f"module 'hpo_core.spec' has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_MODULES[name]), name)
    return value
