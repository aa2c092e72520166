"""StudySpec: what a YAML file, Python, the command line and a UI form all fill in.

Unknown keys, wrong types and impossible ranges are refused here, once, with the place and the cure;
everything behind this package may trust what it gets.
"""

from hpo_core.model import limits
from hpo_core.model.settings import (
    MetricSpec,
)
from hpo_core.samplers.sampler import EarlierResult
from hpo_core.search.asha import AshaSearch
from hpo_core.search.grid import GridSearch
from hpo_core.search.hyperband import HyperbandSearch
from hpo_core.search.pasha import PashaSearch
from hpo_core.search.pbt import PbtSearch
from hpo_core.search.random import RandomSearch
from hpo_core.search.recorded import RecordedGrant, RecordedSearch
from hpo_core.search.registry import Search
from hpo_core.search.sha import ShaSearch
from hpo_core.spec.assembly import (
    all_at_once,
    create_method,
    create_sampler,
    is_pure,
    notices,
)
from hpo_core.spec.clusters import (
    AddressClusterSpec,
    Cluster,
    ClusterSettings,
    KubernetesClusterSpec,
    LocalClusterSpec,
    LocalCudaClusterSpec,
    SlurmClusterSpec,
)
from hpo_core.spec.data import DataSpec
from hpo_core.spec.packing import DemandSpec, PackingSpec
from hpo_core.spec.sections import (
    DEFAULT_RETRIES,
    CheckpointSpec,
    JournalSpec,
    SamplerSpec,
    ShareSpec,
    StopSpec,
    TrackingSpec,
    TrainingSpec,
    WarmStartSpec,
)
from hpo_core.spec.study_file import (
    load_spec,
)
from hpo_core.spec.study_spec import (
    StudySpec,
)

__all__ = [
    "DEFAULT_RETRIES",
    "AddressClusterSpec",
    "AshaSearch",
    "CheckpointSpec",
    "Cluster",
    "ClusterSettings",
    "DataSpec",
    "DemandSpec",
    "EarlierResult",
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
    "RecordedGrant",
    "RecordedSearch",
    "SamplerSpec",
    "Search",
    "ShaSearch",
    "ShareSpec",
    "SlurmClusterSpec",
    "StopSpec",
    "StudySpec",
    "TrackingSpec",
    "TrainingSpec",
    "WarmStartSpec",
    "all_at_once",
    "create_method",
    "create_sampler",
    "is_pure",
    "limits",
    "load_spec",
    "notices",
]
