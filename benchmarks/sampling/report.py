"""Figures of all systems, as JSON, Markdown and a picture."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import plot_style
import result_file

from .comparison import LEAST_SEEDS, SHOWN, Pairs, Run, chosen_elsewhere, compared
from .problems import FAMILIES
from .run_file import WAYS, RunFile
from .searches import MOVED, SPACES
from .synthetic import KINDS

CHOICE = "chosen on other families"
SYNTHETIC, CONTINUOUS, TRAINED, GIVEN = "synthetic", "continuous", "trained", "given"
OURS_LOOKS = {
    "random": (plot_style.RUST, ":"),
    "ranked_gp": (plot_style.BLUE, "-"),
    "TPESampler": (plot_style.GOLD, "--"),
}
"""Systems of ours that have a colour of their own, wherever they are drawn."""
OTHER_LOOKS = [(plot_style.PINK, "-"), (plot_style.INK, "-."), (plot_style.GREY, "-")]


def family(problem: str) -> str:
    first = problem.split("_")[0]
    return SYNTHETIC if first == SYNTHETIC else FAMILIES.get(first, first)


def group(problem: str) -> str:
    first = problem.split("_")[0]
    return first if first in (SYNTHETIC, CONTINUOUS, TRAINED) else GIVEN


def figures(runs: RunFile, against: str, candidates: Sequence[str]) -> dict[str, Any]:
    """By group of problems, space, way of counting and system."""
    found: dict[str, Any] = {"spaces": SPACES, "ways": WAYS, "against": against, "groups": {}}
    for which in (GIVEN, TRAINED, SYNTHETIC, CONTINUOUS):
        of_group = {key.problem for key in runs.lines if group(key.problem) == which}
        names = sorted(of_group)
        families = {name: family(name) if which != SYNTHETIC else name.partition("_")[2] for name in names}
        for space in SPACES:
            for way in WAYS:
                played = {run: one for run, one in runs.runs(space, way).items() if run.problem in of_group}
                one = _systems(played, against, candidates if which == GIVEN else (), names, families)
                if one:
                    found["groups"].setdefault(which, {}).setdefault(space, {})[way] = one
    cost: dict[str, list[float]] = {}
    for key, line in runs.lines.items():
        if "ms" in line and group(key.problem) == GIVEN:
            cost.setdefault(key.system, []).append(line["ms"])
    found["ms_in_searches"] = {name: round(float(np.median(values)), 2) for name, values in cost.items()}
    found["failed"] = [[*key, line["error"]] for key, line in runs.lines.items() if "error" in line]
    return found


def _systems(
    played: dict[Run, Any], against: str, candidates: Sequence[str], names: list[str], families: Mapping[str, str]
) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if len(candidates) > 1 and len(set(families.values())) > 1:
        chosen_runs, chosen = chosen_elsewhere(played, candidates, families, CHOICE)
        played = played | chosen_runs
        found["chosen"] = chosen
    systems = dict.fromkeys(run.system for run in sorted(played, key=lambda run: (run.system != against, run.system)))
    for system in systems:
        pairs = Pairs.of(played, system, against, names)
        if pairs.ours:
            found.setdefault("systems", {})[system] = compared(pairs, families)
    return found


def rows_of(systems: Mapping[str, Any], cost: Mapping[str, float]) -> tuple[list[str], list[list[Any]]]:
    """The main table: each system, and in brackets the one that it is compared with, on the searches of both."""
    head = ["system", "searches", "seeds", *(f"{k} %" for k in SHOWN), "ratio at 25 %", "ratio at 100 %"]
    head += ["difference at 100 %", "better / equal / worse", "ms"]
    rows = []
    for name, one in systems.items():
        at, (fewest, most) = one["at"], one["seeds"]
        rows.append(
            [
                name,
                one["searches"],
                fewest if fewest == most else f"{fewest}-{most}",
                *(f"{at[f'{k} %']['mean']:.3f} ({at[f'{k} %']['base']:.3f})" for k in SHOWN),
                *(ranged(at[f"{k} %"]["ratio"], ".2f") for k in (25, 100)),
                ranged(at["100 %"]["difference"], "+.3f"),
                f"{len(one['better'])} / {len(one['equal'])} / {len(one['worse'])}",
                f"{cost[name]:.1f}" if name in cost else None,
            ]
        )
    return head, rows


def ranged(values: Sequence[float] | None, style: str) -> str:
    """A value and its interval."""
    return "-" if values is None else "{:{s}} [{:{s}}, {:{s}}]".format(*values, s=style)


def family_rows(systems: Mapping[str, Any], percent: int) -> tuple[list[str], list[list[Any]]]:
    """Mean regret by family, each beside that of the one system on the same searches."""
    families = list(dict.fromkeys(name for one in systems.values() for name in one["families"]))
    rows: list[list[Any]] = []
    for name, one in systems.items():
        cells = [one["families"].get(kind, {}).get(f"{percent} %") for kind in families]
        rows.append([name, *("-" if cell is None else f"{cell['mean']:.3f} ({cell['base']:.3f})" for cell in cells)])
    return ["system", *families], rows


def write(figures: dict[str, Any], times: dict[str, dict[str, float]], facts: dict[str, Any], out: Path) -> None:
    """All three files; the main tables are printed too."""
    text: list[str] = []
    for which, spaces in figures["groups"].items():
        for space, ways in spaces.items():
            for way, found in ways.items():
                systems = found.get("systems", {})
                title = f"{which} problems, space: {space}, counted: {WAYS[way]}"
                head, rows = rows_of(systems, figures["ms_in_searches"])
                print(f"\n{title}")
                result_file.table(head, rows)
                text += [f"\n### {title[0].upper()}{title[1:]}\n", result_file.markdown(head, rows)]
                if which != TRAINED and way == "trained":
                    head, rows = family_rows(systems, 100)
                    text += ["\nRegret at 100 % (of the compared system on the same searches):\n"]
                    text += [result_file.markdown(head, rows)]
                if "chosen" in found:
                    text += ["\nChosen: " + ", ".join(f"{k}: {v}" for k, v in found["chosen"].items()) + "\n"]
    result_file.write("samplers", facts, figures | {"milliseconds": times}, str(out))
    out.with_suffix(".md").write_text("\n".join(text).lstrip("\n"))
    draw(figures, times, out.with_suffix(".png"))


def draw(figures: dict[str, Any], times: dict[str, dict[str, float]], path: Path) -> None:
    """Regret over the budget, each system, differences by family and by property, time of a suggestion."""
    figure, [[curves, all_systems], [families, made], [cost, growth]] = plot_style.panels(3, 2, 14, 14)
    against = figures["against"]
    given, synthetic = (
        figures["groups"].get(which, {}).get(MOVED, {}).get("trained", {}).get("systems", {})
        for which in (GIVEN, SYNTHETIC)
    )
    wide = _on_all_problems(given)
    for system, one in wide.items():
        colour, style = look(system, wide)
        share = np.linspace(0, 100, len(one["curve"]))
        curves.plot(share, one["curve"], color=colour, linestyle=style, label=f"{system} ({one['searches']} searches)")
    curves.set(xlabel="budget used (% of worker time)", ylabel="normalised regret of the incumbent", ylim=(0, 0.6))
    curves.set_title("given tables: systems with three seeds of each")
    curves.legend(fontsize=8)
    _each_system(all_systems, given, against)
    _differences(families, wide, against, "given tables by family, at the end of the budget")
    _differences(made, _on_all_problems(synthetic), against, "made-up problems by property, at the end", list(KINDS))
    _costs(cost, {name: one for name, one in figures["ms_in_searches"].items() if name in given and one > 0})
    for system, found in times.items():
        if max(found.values()) > 0.1:
            colour, style = look(system, times)
            growth.plot([int(n) for n in found], list(found.values()), color=colour, marker="o", label=system)
    if times:
        plot_style.log_axis(growth.xaxis)
        growth.set_ylim(0, None)
        growth.legend(fontsize=8)
    growth.set(xlabel="trials", ylabel="CPU milliseconds", title="our samplers: a suggestion by the number of trials")
    plot_style.keep(figure, path)


def look(system: str, beside: Mapping[str, Any]) -> tuple[str, str]:
    """Colour and line; a system without a colour of its own gets one by its place among those beside it."""
    others = [name for name in beside if name not in OURS_LOOKS]
    return OURS_LOOKS.get(system) or OTHER_LOOKS[others.index(system) % len(OTHER_LOOKS)]


def _on_all_problems(systems: Mapping[str, Any]) -> dict[str, Any]:
    """Those that have at least three seeds of every problem: their means are of the same problems."""
    most = max((len(one["problems"]) for one in systems.values()), default=0)
    return {
        name: one for name, one in systems.items() if len(one["problems"]) == most and one["seeds"][0] >= LEAST_SEEDS
    }


def _each_system(panel: Any, systems: Mapping[str, Any], against: str) -> None:
    """Difference at a quarter (hollow) and at the end of the budget."""
    shown = {name: one for name, one in systems.items() if name != against}
    for row, one in enumerate(shown.values()):
        for percent, shift, filled in ((25, -0.15, "white"), (100, 0.15, plot_style.BLUE)):
            mean, low, high = one["at"][f"{percent} %"]["difference"]
            panel.plot([low, high], [row + shift] * 2, color=plot_style.BLUE, linewidth=1)
            panel.plot([mean], [row + shift], color=plot_style.BLUE, marker="o", markerfacecolor=filled, linestyle="")
    panel.axvline(0.0, color=plot_style.MUTED, linewidth=1)
    panel.set_yticks(range(len(shown)), [f"{name} ({one['searches']})" for name, one in shown.items()])
    panel.set_ylim(len(shown) - 0.5, -0.5)
    panel.set(xlabel=f"regret minus that of {against} on the same searches")
    panel.set_title("given tables: after a quarter (hollow) and at the end")


def _costs(panel: Any, cost: Mapping[str, float]) -> None:
    ordered = sorted(cost.items(), key=lambda item: item[1])
    panel.plot([value for _, value in ordered], range(len(ordered)), color=plot_style.BLUE, marker="o", linestyle="")
    panel.set_yticks(range(len(ordered)), [name for name, _ in ordered])
    plot_style.log_axis(panel.xaxis, (1,))
    panel.set(xlabel="CPU milliseconds", title="a suggestion in these searches, median")


def _differences(panel: Any, systems: Mapping[str, Any], against: str, title: str, order: Sequence[str] = ()) -> None:
    shown = {name: one for name, one in systems.items() if name != against}
    kinds = [*order] or list(dict.fromkeys(kind for one in shown.values() for kind in one["families"]))
    for place, (system, one) in enumerate(shown.items()):
        colour, _ = look(system, systems)
        shift = 0.6 * ((place + 0.5) / len(shown) - 0.5)
        for row, kind in enumerate(kinds):
            at = one["families"].get(kind, {}).get("100 %")
            if at is not None:
                mean, low, high = at["difference"]
                name = system if row == 0 else None
                panel.plot([low, high], [row + shift] * 2, color=colour, linewidth=1)
                panel.plot([mean], [row + shift], color=colour, marker="o", linestyle="", label=name)
    panel.axvline(0.0, color=plot_style.MUTED, linewidth=1)
    panel.set_yticks(range(len(kinds)), kinds)
    panel.set_ylim(len(kinds) - 0.5, -0.5)
    panel.set(xlabel=f"regret minus that of {against}; lower is better", title=title)
    if shown:
        panel.set_ylim(len(kinds) - 0.5, -0.5 - 0.08 * len(kinds) * len(shown))  # room for the legend
        panel.legend(fontsize=8, loc="upper right")
