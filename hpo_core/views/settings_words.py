"""Settings of packing, gangs and data, each in one line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hpo_core.model.partition_file import PartitionFile
from hpo_core.pool.words import share_words
from hpo_core.spec import DataSpec, PackingSpec, StudySpec
from hpo_core.spec.assembly import all_at_once
from hpo_core.study import Study
from hpo_core.study.gang_sizes import largest_size
from hpo_core.views.formatting import plural
from hpo_core.views.measured_needs import measured_ratio_lines, measured_ratios


def packing_words(packing: PackingSpec | None) -> str:
    """The policy, and whatever is not as usual; empty where each job takes a slot.

    >>> packing_words(None), packing_words(PackingSpec())
    ('', 'fill')
    >>> packing_words(PackingSpec(devices="cpu", memory={"CPU": "2GB"}, demand={"memory": "6GB"}, most=4))
    'fill, devices cpu, one job needs memory 6GB, memory at most 2GB (CPU), most 4'
    """
    if packing is None:
        return ""
    others = packing.model_dump(mode="json", exclude_defaults=True)
    for name in ("policy", "devices", "demand", "by", "memory", "oversubscribe"):
        others.pop(name, None)
    needs = ", ".join(f"{name} {amount}" for name, amount in packing.demand.stated().items())
    found = [
        packing.policy,
        f"devices {packing.devices}" if packing.devices != "auto" else "",
        f"one job needs {needs}" if needs else "",
        f"needs known by {', '.join(packing.by)}" if packing.by else "",
        _by_architecture("memory at most", packing.memory),
        _by_architecture("compute oversubscribed", packing.oversubscribe),
        *(f"{name.replace('_', ' ')} {value}" for name, value in others.items()),
    ]
    return ", ".join(filter(None, found))


def _by_architecture(title: str, amounts: Mapping[str, object]) -> str:
    shown = {name: f"{amount:g}" if isinstance(amount, float) else str(amount) for name, amount in amounts.items()}
    each = [amount if name == "default" else f"{amount} ({name})" for name, amount in shown.items()]
    return f"{title} {', '.join(each)}" if each else ""


def gang_words(study: Study) -> str:
    """The size of its gangs, or what one may grow to and why; empty where each job takes a slot."""
    gang, scaling = study.spec.training.gang, study.spec.scaling
    if gang != "auto":
        return "" if gang == 1 else f"{gang} ranks a job"
    if study.spec.room_word == "worker":
        known = "given" if scaling.speedups else "measured"
        most = f", at most {scaling.most}" if scaling.most else ""
        return (
            "auto: while fewer models are left than half of the workers, a unit trains on several partitions at once "
            f"(at least {scaling.efficiency:.0%} of linear{most}; speed-ups {known})"
        )
    largest = largest_size(study.spec, study.state, max(2, study.state.capacity))
    found = (
        f"auto: a trial may grow to {largest} slot{'s' * (largest > 1)} (at least {scaling.efficiency:.0%} of linear"
    )
    if scaling.speedups:
        return f"{found}, speed-ups given)"
    relative = {} if study.state.speeds is None else study.state.speeds.relative
    times = ", ".join(
        f"{ranks} ranks are {1 / seconds:.2f} times as fast" for ranks, seconds in relative.items() if ranks > 1
    )
    return f"{found}; measured: {times or 'nothing yet'})"


def data_words(spec: StudySpec) -> str:
    """Number of partitions and examples, and where they are; empty where models do not hop."""
    data = spec.data
    return "" if data is None else words_of_data(data, all_at_once=all_at_once(spec))


def words_of_data(data: DataSpec, *, all_at_once: bool = False) -> str:
    """Words about the data; ``all_at_once``: whether the search trains all models at once.

    >>> words_of_data(DataSpec(partitions=[{"name": "a", "count": 9000}, {"name": "b", "count": 9001}], folder="/srv"))
    '2 partitions (18,001 examples) in /srv, scheduler remaining, two models for each worker at once'
    >>> words_of_data(DataSpec(partitions="part-*.npz", validation=["v"], load="lab:read", concurrent=2))
    'partitions part-*.npz, validation on 1 partition, loaded by lab:read, scheduler remaining, 2 models at once'
    """
    where = f" in {data.folder}" if data.folder else ""
    models = "all models" if all_at_once else "two models for each worker"
    found = [
        f"{_files(data.partitions)}{where}",
        "" if data.validation is None else f"validation on {_files(data.validation)}",
        f"loaded by {data.load}" if data.load else "",
        f"scheduler {data.scheduler}",
        f"{models if data.concurrent is None else plural(data.concurrent, 'model')} at once",
    ]
    return ", ".join(filter(None, found))


def _files(files: str | Sequence[PartitionFile]) -> str:
    if isinstance(files, str):
        return f"partitions {files}"
    counts = [file.count for file in files if file.count is not None]
    examples = f" ({sum(counts):,} examples)" if len(counts) == len(files) else ""
    return f"{plural(len(files), 'partition')}{examples}"


def placement_lines(study: Study) -> list[str]:
    """How its jobs are placed, a line for each section of the study file that says so; none where each takes a slot."""
    spec = study.spec
    titled = {
        "packing": packing_words(spec.packing),
        "gangs": gang_words(study),
        "share": share_words(spec.share, spec.slot_word),
        "data:": data_words(spec),
    }
    lines = [f"{title} {words}" for title, words in titled.items() if words]
    return [*lines, *measured_ratio_lines(measured_ratios(study))]
