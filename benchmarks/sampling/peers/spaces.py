"""A study's space for systems that use ConfigSpace."""

from __future__ import annotations

from typing import Any

from ConfigSpace import Categorical, ConfigurationSpace, EqualsCondition, Float, Integer


def config_space(space: dict[str, Any], seed: int) -> ConfigurationSpace:
    """Parameters of one value are left out; conditions name one value of one parent."""
    found = ConfigurationSpace(seed=seed)
    for name, one in space.items():
        if one["type"] == "categorical":
            found.add(Categorical(name, one["choices"]))
        elif one["low"] < one["high"]:
            kind = Integer if one["type"] == "int" else Float
            found.add(kind(name, (one["low"], one["high"]), log=bool(one.get("log"))))
    for name, one in space.items():
        for parent, value in one.get("when", {}).items():
            found.add(EqualsCondition(found[name], found[parent], value))
    return found


def plain(space: dict[str, Any], config: Any) -> dict[str, Any]:
    """Parameters without NumPy's types, those of one value with it."""
    found = {name: value.item() if hasattr(value, "item") else value for name, value in dict(config).items()}
    return found | {name: one["low"] for name, one in space.items() if "low" in one and one["low"] == one["high"]}
