"""Samplers and other systems in the same virtual time: regret at shares of the budget, and seconds a suggestion.

    python benchmarks/samplers.py                                    # random, ranked_gp: given and made-up problems
    python benchmarks/samplers.py --systems random 'wide={"sampler": {"name": "ranked_gp", "n_startup_trials": 20}}'
    python benchmarks/samplers.py --candidates ranked_gp wide        # choose between them, leaving one family out
    python benchmarks/samplers.py --systems "Syne Tune BOHB" --peer-python syne-tune=ENV/bin/python

Problems: the tables of ``DATA/curves`` with the workers and the budget that ``DATA/reference`` names, in families;
made-up ones with one property each (``sampling/synthetic.py``); tables learnt by a network, so that every proposal has
a curve (``sampling/continuous.py``); ``--trained FOLDER``: tables of trainings made by
``sampling/trained.py``. Searches of ours are studies with ASHA (eta 3, r = 1), or as the system's settings
say; another system decides by itself (``sampling/peers``), and gets the same workers, curves and budget.

Two spaces, and two ways of counting the incumbent: see ``SPACES`` and ``WAYS`` in the result. Regret 0 is the best of a
problem, 1 its median. Each system against ``--against`` on the searches that both have played, with 95 % intervals from
bootstrap samples of problems and of seeds within each; a problem is better or worse where its own interval over seeds
lies below or above 0 at the end. ``--candidates``: the choice for a family is made on all other given families, and
what is shown is how it does on that family.

Every search is added to ``RUNS`` at once and not played again: ``--again SYSTEM`` after a change to one. Writes
results/samplers.json, .md and .png.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import result_file
from sampling import report
from sampling.problems import Problem, TableProblem, given_tables, trained_tables
from sampling.run_file import Key, RunFile
from sampling.searches import MOVED, SPACES, Ours, Peer, PeerProcess, play_ours, play_peer
from sampling.suggestion_times import suggestion_times
from sampling.synthetic import KINDS, SyntheticProblem
from sampling.systems import system_of

PROBLEMS = ["given", "synthetic", "continuous"]


def related(problem: Problem, tables: dict[str, TableProblem], seed: int) -> Problem | None:
    """Another given table of the family with the same space, another one for each seed; None: there is none."""
    others = [
        one
        for one in tables.values()
        if one.family == problem.family and one.name != problem.name and one.space == problem.space
    ]
    return others[seed % len(others)] if others else None


def main() -> None:
    given = _parser().parse_args()
    systems = dict(system_of(text) for text in given.systems)
    pythons = dict(item.split("=", 1) for item in given.peer_python)
    for name, system in systems.items():
        if isinstance(system, Peer) and system.environment not in pythons:
            raise SystemExit(f"{name} needs --peer-python {system.environment}=PATH, a Python that has it.")
    facts, began = result_file.machine(), time.monotonic()
    tables = given_tables(result_file.data_folder(given.data))
    problems: dict[str, Callable[[int], Problem]] = {}
    if "given" in given.problems:
        problems |= {name: lambda seed, table=table: table for name, table in tables.items()}
    if "synthetic" in given.problems:
        problems |= {f"synthetic_{kind}": lambda seed, kind=kind: SyntheticProblem(kind, seed) for kind in KINDS}
    if "continuous" in given.problems:
        from sampling.continuous import ContinuousProblem  # scikit-learn

        learnt = [ContinuousProblem(table) for name, table in tables.items() if table.family == "LCBench"]
        problems |= {one.name: lambda seed, one=one: one for one in learnt}
    if given.trained:
        problems |= {name: lambda seed, table=table: table for name, table in trained_tables(given.trained).items()}
    if given.only:
        problems = {name: make for name, make in problems.items() if any(part in name for part in given.only)}
    out = given.out or result_file.RESULTS / "samplers.json"
    runs = RunFile(given.runs or out.with_suffix(".runs.jsonl"))
    if given.again:
        runs.forget(given.again)
    processes: dict[str, PeerProcess] = {}
    try:
        for seed in range(given.first_seed, given.seeds):
            for problem_name, make in problems.items():
                problem: Problem | None = None
                for name, system in systems.items():
                    for space in given.spaces:
                        key = Key(space, problem_name, name, seed)
                        if key in runs.lines or time.monotonic() - began > 60 * given.minutes:
                            continue
                        problem = problem or make(seed)
                        if space != MOVED and problem.size is None:
                            continue
                        if isinstance(system, Ours):
                            other = related(problem, tables, seed)
                            if system.past and other is None:
                                continue
                            runs.add(key, play_ours(problem, system, seed, space, related=other))
                            continue
                        try:
                            if system.script not in processes:
                                processes[system.script] = PeerProcess(pythons[system.environment], system.script)
                            found = play_peer(problem, processes[system.script], system.method, seed, space)
                        except RuntimeError as error:  # told in the result; the other searches go on
                            print(f"{name}, {problem_name}, seed {seed}: {error}", file=sys.stderr, flush=True)
                            found = {"error": str(error).splitlines()[-1]}
                            processes.pop(system.script).close()
                        runs.add(key, found)
    finally:
        for process in processes.values():
            process.close()
    times = {} if given.no_times else {name: suggestion_times(one) for name, one in systems.items() if _is_ours(one)}
    figures = report.figures(runs, given.against, given.candidates)
    report.write(figures, times, facts, out)


def _is_ours(system: Ours | Peer) -> bool:
    return isinstance(system, Ours) and not system.past


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", help="folder with curves/ and reference/ (HPO_BENCH_DATA, or ../shared/data)")
    parser.add_argument("--systems", nargs="*", default=["random", "ranked_gp"], help="what to play (see systems.py)")
    parser.add_argument("--problems", nargs="+", default=["given", "synthetic"], choices=PROBLEMS)
    parser.add_argument("--trained", type=Path, help="folder with tables of sampling/trained.py: play these, too")
    parser.add_argument("--only", nargs="+", help="parts of problem names")
    parser.add_argument("--spaces", nargs="+", default=list(SPACES), choices=list(SPACES))
    parser.add_argument("--seeds", type=int, default=25)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--peer-python", action="append", default=[], metavar="NAME=PATH")
    parser.add_argument("--minutes", type=float, default=math.inf, help="begin no further search after these")
    parser.add_argument("--against", default="random", help="the system that others are compared with")
    parser.add_argument("--candidates", nargs="+", default=[], help="systems to choose from, leaving one family out")
    parser.add_argument("--again", nargs="+", default=[], metavar="SYSTEM", help="forget what these have played")
    parser.add_argument("--no-times", action="store_true", help="measure no suggestion times")
    parser.add_argument("--runs", type=Path, help="searches that were played (default beside the result)")
    parser.add_argument("--out", type=Path, help="JSON file (default benchmarks/results/samplers.json)")
    return parser


if __name__ == "__main__":
    main()
