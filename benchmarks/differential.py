"""Syne Tune 0.13 as an oracle: the same curves, the same arrivals, decision by decision.

Syne Tune plays tabulated curves in its own environment and writes down what it decided (decide/syne_tune_oracle.py).
Our methods are then told the same history, and before each decision of Syne Tune they are asked for theirs; what
Syne Tune did is what both go on from, so one difference does not breed others. Every difference is given to the first
rule of Syne Tune's that explains it, plugged into our code (decide/syne_tune_rules.py); with all of them plugged in no
difference may be left, else the rules listed are not the whole story and the benchmark exits with 1.

    python benchmarks/differential.py --python PATH-TO-SYNE-TUNE-ENV/bin/python

Writes results/differential.json and results/differential.md.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import result_file

sys.path.insert(0, str(result_file.ROOT / "decide"))

from syne_tune_rules import Borrowed, TheirPasha, plug

from hpo_core.model.events import CeilingRaised, Event, JobCompleted, JobGranted, TrialCreated
from hpo_core.model.rng import Stream
from hpo_core.model.trial import Rung
from hpo_core.search.asha import Asha, AshaSearch, AshaStopping
from hpo_core.search.brackets import hyperband_size
from hpo_core.search.method import Promote
from hpo_core.search.pasha import Pasha, PashaSearch
from hpo_core.search.rungs import rung_levels
from hpo_core.simulation import CurveTable

ETA, WORKERS = 3, 9
CASES = {
    "promotion": ("promotion", 1, False),
    "promotion, 3 brackets, shared rungs": ("promotion", 3, False),
    "promotion, 3 brackets, own rungs": ("promotion", 3, True),
    "stopping": ("stopping", 1, False),
    "stopping, 3 brackets, shared rungs": ("stopping", 3, False),
    "stopping, 3 brackets, own rungs": ("stopping", 3, True),
    "PASHA": ("pasha", 1, False),
}
REASONS = {
    "ties": "equal losses: ours puts the lower trial number first, theirs the earlier arrival, behind it what was "
    "promoted before",
    "quantile": "the cut: ours is the paper's floor(n / eta) best; theirs are all up to the interpolated 1/eta "
    "quantile of the n losses, which holds ceil(n / eta) of them and more where losses are equal. In the stopping "
    "variant ours lets the first eta - 1 of a rung go on, as the source says; theirs stops the second of two",
    "levels": "the rung below the maximum where that is no power of eta: theirs promotes r_k / r_{k+1} of it (27/51, "
    "27/101), ours 1/eta everywhere; with fewer from that rung, theirs promotes in a lower one",
    "bracket": "own rungs per bracket: theirs draws a bracket for each free worker, then promotes in that bracket or "
    "adds to it; ours promotes in any bracket first, so that no promotable trial waits (Algorithm 2)",
    "tolerance": "PASHA's tolerance: theirs is estimated from trials on their way too, epoch by epoch, counts equal "
    "losses as crossed, and may count a pair twice, as its sets of strings come; ours takes each pair of "
    "finished trials of the rung once, at the rung's level",
    "between": "theirs looks at the rankings after every epoch of every trial, with the tolerance of that moment; "
    "ours at every result of the top rung, whose ranking nothing else changes",
    "order": "PASHA with equal losses in the top rung: ours leaves them as the rung below has them, theirs as they "
    "arrived",
}

Decision = tuple[int, int] | None
"""(trial, level) that is promoted, or None: a new configuration."""


class Follower:
    """One of our methods, or a variant with their rules, told a history it did not decide itself."""

    def __init__(self, case: dict[str, Any], method: Any, reason: str | None, *, drawn: bool = False) -> None:
        self.method = method
        self.reason = reason
        self.drawn = drawn
        self.asha: Asha = method
        self.levels: list[int] = case["levels"]

    def promotes(self, bracket: int | None) -> Decision:
        """What it would do with a free worker now; ``bracket`` is the one Syne Tune drew for it."""
        if self.drawn and bracket is not None:
            ladder, _ = self.asha.place(bracket, 0)
            waiting = ((ladder.rungs[k].candidate(), ladder.level(k + 1)) for k in ladder.sources())
            return next(((trial, level) for trial, level in waiting if trial is not None), None)
        action = self.method.next_action()
        return (action.trial, action.target) if isinstance(action, Promote) else None

    def goes_on(self, event: JobCompleted) -> bool:
        """Stopping variant, right after a result: its verdict, withdrawn, as Syne Tune's is what holds."""
        if isinstance(self.method, AshaStopping):
            stopped = self.method.next_fact() is not None
            self.method._passed.clear()
            self.method._stopped.clear()
            return not stopped
        rung = self.asha.rung(event.bracket, event.rung)
        return bool(rung.goes_on(event.trial))  # type: ignore[attr-defined]

    def ceiling(self) -> int:
        """PASHA, after a result: the level that trials may reach from now on."""
        raised = self.method.next_fact()
        return self.levels[raised.rung if isinstance(raised, CeilingRaised) else self.method.ladder.ceiling]

    def take_ceiling(self, level: int) -> None:
        """Go on from the ceiling that Syne Tune has."""
        rung = self.levels.index(level)
        self.method._raised = None
        if rung > self.method.ladder.ceiling:
            self.method.apply(CeilingRaised(0, rung, level, 0.0, 0, 0, ()))


def followers(case: dict[str, Any]) -> list[Follower]:
    """Ours first, then with one more of their rules each, all of them last."""
    brackets, configs = list(range(case["brackets"])), len(case["losses"])
    settings: dict[str, Any] = {
        "configs": configs,
        "min_resource": case["levels"][0],
        "max_resource": case["levels"][-1],
        "reduction_factor": case["eta"],
    }
    if case["type"] == "pasha":
        pasha = PashaSearch(**settings)
        found = [Follower(case, Pasha(pasha), None)]
        for rule in ("arrival", "quantile", "levels"):
            method: Pasha = Borrowed(pasha)
            plug([method.ladder], rule)
            found.append(Follower(case, method, "ties" if rule == "arrival" else rule))
        return [*found, Follower(case, TheirPasha(pasha), "theirs")]
    settings |= {"brackets": brackets, "assignment": "proportional" if len(brackets) > 1 else "budget"}
    asha = AshaSearch(**settings, rung_system="per_bracket" if case["per_bracket"] else "shared")
    first = (AshaStopping if case["type"] == "stopping" else Asha)(asha.plan(), asha.configs)
    found = [Follower(case, first, None)]
    own = case["per_bracket"] and case["type"] == "promotion"
    if own:
        found.append(Follower(case, Asha(asha.plan(), asha.configs), "bracket", drawn=True))
    for rule in ("arrival", "quantile", "levels"):
        for drawn in (False, True)[: 1 + own]:
            method_of_theirs = Asha(asha.plan(), asha.configs)
            plug(method_of_theirs.ladders, rule)
            name = "ties" if rule == "arrival" else rule
            found.append(Follower(case, method_of_theirs, f"{name} and bracket" if drawn else name, drawn=drawn))
    return found


class Comparison:
    """Follows one log of Syne Tune's and counts."""

    def __init__(self, case: dict[str, Any]) -> None:
        self.case = case
        self.followers = followers(case)
        self.counts: Counter[str] = Counter()
        self.reasons: Counter[str] = Counter()
        self.examples: dict[str, str] = {}
        self.bracket_of: list[int] = []
        self.reached: list[int] = []

    def run(self, log: list[list[Any]]) -> Comparison:
        for kind, trial, number, *more in log:
            if kind == "new":
                drawn = number if self.case["per_bracket"] else None
                if self.case["type"] != "stopping":
                    self.compare("grants", None, lambda one, drawn=drawn: one.promotes(drawn))
                self.bracket_of.append(number)
                self.reached.append(0)
                self.apply(TrialCreated(trial, number, {}))
                self.grant(trial, self.case["levels"][number])
            elif kind == "promote":
                drawn = self.bracket_of[trial] if self.case["per_bracket"] else None
                self.compare("grants", (trial, number), lambda one, drawn=drawn: one.promotes(drawn))
                self.grant(trial, number)
            else:
                self.result(trial, number, *more)
        return self

    def result(
        self, trial: int, level: int, goes_on: bool, ceiling: int | None = None, tolerance: float | None = None
    ) -> None:
        losses = self.case["losses"][trial]
        curve = tuple((epoch, losses[epoch - 1]) for epoch in range(self.reached[trial] + 1, level + 1))
        bracket = self.bracket_of[trial]
        rung = self.case["levels"].index(level) - bracket
        event = JobCompleted(trial, 0, Rung(bracket, rung), level, losses[level - 1], {}, None, "", 0.0, 0.0, (), curve)
        self.reached[trial] = level
        for one in self.followers:
            if isinstance(one.method, Borrowed) and tolerance is not None:
                one.method.borrow(tolerance)
        self.apply(event)
        if self.case["type"] == "stopping" and level < self.case["levels"][-1]:
            self.compare("stops", goes_on, lambda one: one.goes_on(event))
            if goes_on:
                self.grant(trial, self.case["levels"][self.case["levels"].index(level) + 1])
        before = self.followers[0].method.ladder.ceiling if ceiling is not None else -1
        if ceiling is not None and before < len(self.case["levels"]) - 1:
            self.compare("ceilings", ceiling, Follower.ceiling, self.why_ceiling)
            self.counts["raised by theirs"] += self.case["levels"][before] < ceiling
            for one in self.followers:
                one.take_ceiling(ceiling)

    def grant(self, trial: int, level: int) -> None:
        bracket = self.bracket_of[trial]
        self.apply(JobGranted(trial, 0, Rung(bracket, self.case["levels"].index(level) - bracket), level, None))

    def apply(self, event: Event) -> None:
        for one in self.followers:
            one.method.apply(event)

    def compare(
        self,
        what: str,
        theirs: Any,
        answer: Callable[[Follower], Any],
        why: Callable[[list[Any], Any], str] | None = None,
    ) -> None:
        """One decision: do we agree, and if not, with which of their rules would we."""
        answers = [answer(one) for one in self.followers]
        self.counts[what] += 1
        self.counts[f"{what} alike"] += answers[0] == theirs
        self.counts[f"{what} alike with their rules"] += answers[-1] == theirs
        if answers[0] == theirs:
            return
        if why is not None:
            reason = why(answers, theirs)
        else:
            agree = (one.reason for one, said in zip(self.followers, answers, strict=True) if said == theirs)
            reason = next(agree, None) or "unexplained"
        self.reasons[reason] += 1
        self.examples.setdefault(reason, f"{what}: theirs {theirs}, ours {answers[0]}")

    def why_ceiling(self, answers: list[int], theirs: int) -> str:
        """Which rule of PASHA's: with their tolerance ours agrees; or the tie; or they looked at another moment."""
        if answers[1] == theirs:
            return "tolerance"
        if answers[-1] != theirs:
            return "unexplained"
        if self.top_has_ties():
            return "order"
        return "between"

    def top_has_ties(self) -> bool:
        ladder = self.followers[-1].method.ladder
        losses = ladder.rungs[ladder.ceiling].losses
        return len(set(losses)) < len(losses)


def make_case(table: CurveTable, kind: str, seed: int, configs: int) -> dict[str, Any]:
    """The first ``configs`` rows, in an order of the seed's, of those with finite losses only."""
    rows = [int(row) for row in np.flatnonzero(np.isfinite(table.losses).all(axis=1))]
    stream = Stream(seed, "table", 0)
    for i in range(len(rows) - 1, 0, -1):
        j = stream.below(i + 1)
        rows[i], rows[j] = rows[j], rows[i]
    rows = rows[:configs]
    variant, brackets, own = CASES[kind]
    return {
        "kind": kind,
        "type": variant,
        "brackets": brackets,
        "per_bracket": own,
        "levels": rung_levels(1, table.max_resource, ETA),
        "eta": ETA,
        "workers": WORKERS,
        "seed": seed,
        "losses": table.losses[rows].tolist(),
        "seconds": table.seconds[rows].tolist(),
    }


def oracle(python: str, cases: list[dict[str, Any]], hash_seed: int = 0) -> list[dict[str, Any]]:
    """What Syne Tune decides on each case."""
    with tempfile.TemporaryDirectory(prefix="hpo-bench-") as folder:
        asked, answered = Path(folder) / "cases.json", Path(folder) / "logs.json"
        asked.write_text(json.dumps(cases))
        script = str(result_file.ROOT / "decide" / "syne_tune_oracle.py")
        done = subprocess.run(
            [python, script, str(asked), str(answered)],
            capture_output=True, text=True, env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONHASHSEED": str(hash_seed)},
        )  # fmt: skip
        if done.returncode:
            raise SystemExit(f"{script} failed under {python}:\n{done.stderr[-2000:]}")
        found: list[dict[str, Any]] = json.loads(answered.read_text())
        return found


def by_hash_seed(python: str, cases: list[tuple[dict[str, Any], dict[str, Any]]]) -> Counter[str]:
    """How many of their runs come out otherwise when Python hashes strings with another seed."""
    again = oracle(python, [case for case, _ in cases], hash_seed=1)
    ceilings = [[entry[4] for entry in one["log"] if entry[0] == "result"] for one in again]
    before = [[entry[4] for entry in one["log"] if entry[0] == "result"] for _, one in cases]
    return Counter(
        runs=len(cases),
        other_tolerances=sum(one["log"] != first["log"] for one, (_, first) in zip(again, cases, strict=True)),
        other_ceilings=sum(a != b for a, b in zip(ceilings, before, strict=True)),
    )


def bracket_shares(python: str) -> dict[str, list[float]]:
    """r = 1, R = 200, eta = 3, six brackets: the shares of both."""
    levels = rung_levels(1, 200, 3)
    case = {
        "type": "promotion", "brackets": 6, "per_bracket": False, "levels": levels, "eta": 3, "workers": 1, "seed": 0,
        "losses": [[0.0] * 200], "seconds": [[float(k) for k in range(1, 201)]],
    }  # fmt: skip
    (theirs,) = oracle(python, [case])
    sizes = [hyperband_size(s, 6, 3) for s in range(6)]
    return {"theirs": theirs["brackets"], "ours": [size / sum(sizes) for size in sizes]}


def main() -> int:
    given = _parser().parse_args()
    if os.environ.get("PYTHONHASHSEED") != "0":  # their tolerance depends on the order of sets of strings
        os.execve(sys.executable, [sys.executable, *sys.argv], os.environ | {"PYTHONHASHSEED": "0"})
    facts = result_file.machine()
    folder = result_file.data_folder(given.data)
    figures: dict[str, dict[str, Any]] = {
        kind: {"counts": Counter(), "reasons": Counter(), "examples": {}} for kind in CASES
    }
    hashed: Counter[str] = Counter()
    for path in sorted((folder / "curves").glob("*.npz")):
        table = CurveTable.load(path)
        cases = [make_case(table, kind, seed, given.configs) for kind in CASES for seed in range(given.seeds)]
        answers = oracle(given.python, cases)
        hashed.update(
            by_hash_seed(given.python, [(c, a) for c, a in zip(cases, answers, strict=True) if "pasha" in c["type"]])
        )
        for case, answer in zip(cases, answers, strict=True):
            found = Comparison(case).run(answer["log"])
            into = figures[case["kind"]]
            into["counts"] += found.counts
            into["reasons"] += found.reasons
            for reason, example in found.examples.items():
                into["examples"].setdefault(reason, f"{table.name}, seed {case['seed']}, {example}")
        print(f"  {table.name}", file=sys.stderr, flush=True)
    shares = bracket_shares(given.python)
    unexplained = sum(found["reasons"]["unexplained"] for found in figures.values())
    left = sum(
        found["counts"][what] - found["counts"][f"{what} alike with their rules"]
        for found in figures.values()
        for what in ("grants", "stops", "ceilings")
    )
    out = result_file.write(
        "differential",
        facts,
        {
            "seeds": given.seeds,
            "configs": given.configs,
            "cases": {kind: {key: dict(value) for key, value in found.items()} for kind, found in figures.items()},
            "reasons": REASONS,
            "bracket_shares": shares,
            "other_hash_seed": dict(hashed),
            "unexplained": unexplained,
            "left_with_their_rules": left,
        },
        given.out,
    )
    text = report(figures, shares, hashed)
    out.with_suffix(".md").write_text(text)
    print(text)
    return 1 if unexplained or left else 0


def report(figures: dict[str, dict[str, Any]], shares: dict[str, list[float]], hashed: Counter[str]) -> str:
    lines = ["| case | decisions | alike | why not | alike with their rules |", "| --- | --- | --- | --- | --- |"]
    seen: Counter[str] = Counter()
    for kind, found in figures.items():
        counts = found["counts"]
        seen += found["reasons"]
        for what in ("grants", "stops", "ceilings"):
            total = counts[what]
            if not total:
                continue
            mine = Counter({key: n for key, n in found["reasons"].items() if f", {what}: " in found["examples"][key]})
            why = ", ".join(f"{reason} {count:,}" for reason, count in mine.most_common()) or "-"
            alike, plugged = counts[f"{what} alike"], counts[f"{what} alike with their rules"]
            name = f"{kind}: {what}" + (f" ({counts['raised by theirs']} raised)" if what == "ceilings" else "")
            shown = f"{alike:,} ({alike / total:.2%}) | {why} | {plugged:,} ({plugged / total:.2%})"
            lines.append(f"| {name} | {total:,} | {shown} |")
    words = {word for reason in seen for word in reason.split(" and ")}
    lines += ["", *(f"- **{name}**: {text}." for name, text in REASONS.items() if name in words)]
    unseen = [name for name in REASONS if name not in words]
    lines += [f"- Looked for, the first cause of no difference: {', '.join(unseen)}."] * bool(unseen)
    lines += [
        '- "a and b": both rules are needed to come to their decision.',
        "",
        "Shares of six brackets, r = 1, R = 200, eta = 3: theirs "
        + ", ".join(f"{share:.4f}" for share in shares["theirs"])
        + "; ours "
        + ", ".join(f"{share:.4f}" for share in shares["ours"])
        + ". Ours are 243, 98, 41, 18, 9, 6 of 415, as its documentation says; its code neither rounds the sizes nor "
        "takes 243 for 200.",
        "",
        f"PASHA run again with another hash seed: of {hashed['runs']} runs, {hashed['other_tolerances']} had other "
        f"tolerances, {hashed['other_ceilings']} another ceiling at some result. Ours depends on no such thing.",
    ]
    return "\n".join(lines) + "\n"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", required=True, help="Python of an environment with syne-tune==0.13.0")
    parser.add_argument("--data", help="folder with curves/ (HPO_BENCH_DATA, or ../shared/data)")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--configs", type=int, default=300, help="configurations per run (default 300)")
    parser.add_argument("--out", help="JSON file (default benchmarks/results/differential.json)")
    return parser


if __name__ == "__main__":
    raise SystemExit(main())
