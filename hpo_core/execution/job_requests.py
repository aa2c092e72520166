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
from hpo_core.training.by_value import placed
from hpo_core.training.request import JobRequest, RankPlace


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
        self.objective = placed(spec.objective, folder)
        self._spec = spec
        self._folder = folder
        self.flow_run = ("", "")
        """Id and name of the Prefect flow run that jobs are part of; empty: there is none."""
        self.threads = threads_of(spec, available_cores())
        self.load = placed(spec.functions.get("data.load", ""), folder)
        self._unit_is_whole = spec.search.unit_is_whole()
        self._top = spec.search.outline().max_resource
        self._space = spec.plain()["space"] if spec.style == "optuna" else {}

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
            study=spec.study,
            job=job,
            portion=portion,
            gang=gang,
            mps=spec.uses_mps,
            objective=self.objective,
            metric=spec.metric.name,
            more_metrics=tuple(metric.name for metric in spec.objectives[1:]),
            constraints=tuple(spec.constraints),
            modes=tuple(metric.mode for metric in spec.objectives),
            required="any" if spec.any_metric else "all",
            seed=spec.training_seed(job.trial),
            folder=self._folder,
            pythonpath=tuple(spec.pythonpath),
            timeout=spec.training.timeout,
            stall_timeout=spec.training.stall_timeout,
            threads=self.threads,
            asks=spec.asks_at_rungs and job.target < (self._top or 0) and type(job.stage) is Rung,
            process=spec.training.process,
            zygote_timeout=spec.training.worker_timeout,
            checkpoint_base=spec.checkpoint_base,
            elapsed=0.0 if unit is None else unit.elapsed,
            partition_folder=spec.partition_folder,
            load=self.load,
            **seen,
            style=spec.style,
            unit_is_whole=self._unit_is_whole,
            space=self._space,
            flow_run=self.flow_run,
        )
