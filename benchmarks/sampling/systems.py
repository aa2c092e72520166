"""What is compared: samplers of ours, Optuna's within our studies, and other systems."""

from __future__ import annotations

import json
from typing import Any

from .searches import Ours, Peer

OURS = {
    "random": Ours(),
    "ranked_gp": Ours({"sampler": {"name": "ranked_gp"}}),
    "TPESampler": Ours({"sampler": {"name": "TPESampler"}}),
}
PEERS = {
    "Syne Tune BOHB": Peer("syne-tune", "syne_tune_worker.py", "BOHB"),
    "Syne Tune MOBSTER": Peer("syne-tune", "syne_tune_worker.py", "MOBSTER"),
    "Syne Tune HyperTune": Peer("syne-tune", "syne_tune_worker.py", "HyperTune"),
    "Syne Tune DyHPO": Peer("syne-tune", "syne_tune_worker.py", "DyHPO"),
    "Syne Tune ASHA": Peer("syne-tune", "syne_tune_worker.py", "ASHA"),
    "Optuna TPE+Hyperband": Peer("optuna", "optuna_worker.py", "TPE+Hyperband"),
    "Optuna TPE+ASHA": Peer("optuna", "optuna_worker.py", "TPE+ASHA"),
    "Optuna GP+Hyperband": Peer("optuna", "optuna_worker.py", "GP+Hyperband"),
    "Optuna GP+ASHA": Peer("optuna", "optuna_worker.py", "GP+ASHA"),
    "DEHB": Peer("dehb", "dehb_worker.py", ""),
    "SMAC": Peer("smac", "smac_worker.py", ""),
    "HEBO": Peer("hebo", "hebo_worker.py", ""),
}
PASTS = ("related", "shuffled", "reversed")
"""``NAME+related``: a sampler of ours after an earlier study on another table of the family, and so on."""


def system_of(text: str) -> tuple[str, Ours | Peer]:
    """A system by what is written on the command line: ``NAME``, ``NAME+PAST`` or ``NAME={"sampler": {...}, ...}``.

    Raises:
        ValueError: there is none of that name, or the settings are no JSON object.
    """
    name, given, settings = text.partition("=")
    if given:
        found: Any = json.loads(settings)
        if not isinstance(found, dict):
            raise ValueError(f"{text}: write the settings of a study after the =, as a JSON object")
        return name, Ours(found)
    if name in OURS:
        return name, OURS[name]
    if name in PEERS:
        return name, PEERS[name]
    base, _, past = name.partition("+")
    if base in OURS and past in PASTS:
        return name, Ours(OURS[base].settings, past)
    known = ", ".join([*OURS, *(f"NAME+{past}" for past in PASTS), *PEERS])
    raise ValueError(f"{text} is no system; known are {known}, and NAME={{...}} with the settings of a study")
