"""StudySpec: what a YAML file, Python, the command line and a UI form all fill in.

Unknown keys, wrong types and impossible ranges are refused here, once, with the place and the cure;
everything behind this package may trust what it gets.
"""

from hpo_core.model import limits
from hpo_core.model.settings import (
    MetricSpec,
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
from hpo_core.spec.reach import (
    notices,
)
from hpo_core.spec.search import (
    AshaSearch,
    GridSearch,
    HyperbandSearch,
    PashaSearch,
    PbtSearch,
    RandomSearch,
    RecordedGrant,
    RecordedSearch,
    Search,
    ShaSearch,
)
from hpo_core.spec.sections import (
    DEFAULT_RETRIES,
    CheckpointSpec,
    JournalSpec,
    PastTrial,
    PrefectSpec,
    SamplerSpec,
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
    "GridSearch",
    "HyperbandSearch",
    "JournalSpec",
    "KubernetesClusterSpec",
    "LocalClusterSpec",
    "LocalCudaClusterSpec",
    "MetricSpec",
    "PashaSearch",
    "PastTrial",
    "PbtSearch",
    "PrefectSpec",
    "RandomSearch",
    "RecordedGrant",
    "RecordedSearch",
    "SamplerSpec",
    "Search",
    "ShaSearch",
    "SlurmClusterSpec",
    "StopSpec",
    "StudySpec",
    "TrackingSpec",
    "TrainingSpec",
    "WarmStartSpec",
    "limits",
    "load_spec",
    "notices",
]
