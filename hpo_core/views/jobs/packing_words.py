"""The settings of ``packing`` in one line."""

from __future__ import annotations

from collections.abc import Mapping

from hpo_core.spec import PackingSpec


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
