"""JobRequests: makes of a job the request that is sent to the process that trains it."""

from __future__ import annotations

from typing import Any

from hpo_core.model.devices.inventory import Portion
from hpo_core.model.errors import HpoError
from hpo_core.model.partition_file import weights_of
from hpo_core.model.trial import Job, Rung
from hpo_core.placement.gpus import available_cores
from hpo_core.spec import StudySpec
from hpo_core.spec.assembly import threads_of
from hpo_core.spec.sent_functions import placed
from hpo_core.training.request import JobRequest, RankPlace, StudySetup


class JobRequests:
    """Makes the requests of one study.

    Args:
        folder: absolute study folder.

    Raises:
        HpoError: the study has no objective.
    """

    def __init__(self, spec: StudySpec, folder: str) -> None:
        if spec.objective is None:
            raise HpoError(f"Study {spec.study!r} has no objective: it can only be driven by hand.")
        self._spec = spec
        self._top = spec.search.outline().max_resource or 0
        self.setup = StudySetup(
            study=spec.study,
            objective=placed(spec.objective, folder),
            metrics=tuple(metric.name for metric in spec.objectives),
            modes=tuple(metric.mode for metric in spec.objectives),
            constraints=tuple(spec.constraints),
            required="any" if spec.any_metric else "all",
            folder=folder,
            pythonpath=tuple(spec.pythonpath),
            checkpoint_base=spec.checkpoint_base,
            style=spec.style,
            unit_is_whole=spec.search.unit_is_whole(),
            space=spec.plain()["space"] if spec.style == "optuna" else {},
            timeout=spec.training.timeout,
            stall_timeout=spec.training.stall_timeout,
            partition_folder=spec.partition_folder,
            load=placed(spec.functions.get("data.load", ""), folder),
            threads=threads_of(spec, available_cores()),
            process=spec.training.process,
            mps=spec.uses_mps,
            zygote_timeout=spec.training.worker_timeout,
        )

    def of(self, job: Job, portion: Portion | None = None, gang: RankPlace | None = None) -> JobRequest:
        """The request of one attempt.

        Args:
            portion: the part of a device that it was placed on; None: its worker is all its own.
            gang: which rank of a gang it is; None: it trains alone.
        """
        spec, unit = self._spec, job.unit
        files, count = spec.partitions, spec.trained_partitions
        names = tuple(file.name for file in files)
        seen: dict[str, Any] = {
            "partitions": names[:count],
            "validation": names[count:],
            "weights": weights_of(files[count:]),
        }
        if unit is not None:  # of an epoch: it sees one partition
            seen = (
                {"partitions": (unit.partition,)}
                if unit.trains
                else {"validation": (unit.partition,), "weights": (1.0,)}
            )
        return JobRequest(
            setup=self.setup,
            job=job,
            seed=spec.training_seed(job.trial),
            portion=portion,
            gang=gang,
            asks=spec.asks_at_rungs and job.target < self._top and type(job.stage) is Rung,
            **seen,
        )
