"""Words of others in terminals, logs, Markdown, HTML and MLflow: shown, never obeyed."""

from __future__ import annotations

import io
import json
import re
from html.parser import HTMLParser
from pathlib import Path

import msgspec
import pytest
from markdown_it import MarkdownIt
from rich.text import Text

from hpo_core.home import Home
from hpo_core.journal.codec import encode_entry
from hpo_core.journal.protocol import Journal
from hpo_core.model.events import Entry
from hpo_core.model.trial import Outcome
from hpo_core.report import write_report
from hpo_core.report.comparison import Comparison, write_comparison
from hpo_core.retraining.model_registry import Decision
from hpo_core.security.untrusted_text import json_text, markdown_code, markdown_row, markdown_text, terminal_text
from hpo_core.spec import StudySpec
from hpo_core.study import Study
from hpo_core.terminal.output import SafeConsole, print_rows
from hpo_core.tracking.mlflow_runs import study_params, study_tags, trial_params, trial_tags
from hpo_core.tracking.tracked_study import TrackedStudy
from hpo_core.tracking.tracker_links import param_value, tag_value
from hpo_flows.prefect_pages.artifacts import study_markdown
from tests.conftest import completed, failed, make_spec
from tests.flows.conftest import Runner
from tests.retraining.test_promotion_decisions import decision

ESCAPES = "\x1b[2J\x1b]0;title\x07 \x9b31m \u202egnp.\u202c\u2066\u2028\r\nsecond line\x7f\x00 \U000e0041"
MARKUP = (
    "</script><img src=x onerror=alert(1)><b>b</b> [red]r[/red] | `code` ``two`` ![i](http://e/x.png) [l](javascript:x)"
    " <http://auto> http://bare www.bare.com a@b.co **bold** _em_ ~~no~~ \\| <!-- c --> &lt;"
)
NASTY = f"{MARKUP} {ESCAPES}"
BAD = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\U000e0000-\U000e007f\ud800-\udfff]"
)


def nasty_study(journal: Journal | None = None, name: str = "nasty") -> Study:
    """A study that says something nasty wherever it can, with results and failures."""
    said = {
        "study": name,
        "metrics": [{"name": f"loss {NASTY}", "mode": "min"}, {"name": "gain", "mode": "max"}],
        "metric": {"name": f"loss {NASTY}", "mode": "min"},
        "space": {
            f"x {NASTY}": {"type": "float", "low": 0.0, "high": 1.0},
            f"c {NASTY}": {"type": "categorical", "choices": [NASTY, f"2{NASTY}"]},
        },
        "tracking": {"experiment": f"--help {MARKUP}"},
        "search": {"method": "asha", "configs": 9, "min_resource": 1, "max_resource": 9, "reduction_factor": 3},
    }  # fmt: skip
    # a description with such names is refused by now, for their length and their NUL; a journal may hold them
    spec = StudySpec.from_journal(make_spec().plain() | said)
    study = Study.create(spec, journal)
    count = 0
    while (job := study.ask()) is not None:
        count += 1
        if count in (4, 6):
            study.tell_report(failed(job, Outcome.ERROR, f"ValueError: {NASTY}", detail=f"Traceback {NASTY}"))
        else:
            more = {"started": float(count), "ended": count + 1.0, "worker": f"tcp://{NASTY}", "unrestored": (NASTY,)}
            more["warnings"] = (NASTY,)
            report = completed(job, count / 100, **more)
            metrics = {spec.metric.name: count / 100, "gain": 1.0 / count}
            study.tell_report(msgspec.structs.replace(report, metrics=metrics))
    study.stop(f"because {NASTY}")
    return study


# Terminals.


def test_control_characters_are_escaped() -> None:
    shown = terminal_text(ESCAPES)
    assert not BAD.search(shown) and "\n" not in shown
    assert "\\x1b[2J" in shown and "\\x9b31m" in shown and "\\u202e" in shown and "\\U000e0041" in shown
    assert terminal_text("Zürich 東京 👩\u200d🔬 שלום é") == "Zürich 東京 👩\u200d🔬 שלום é"
    assert terminal_text("a\n\tb\x1b", lines=True) == "a\n\tb\\x1b"


def test_the_console_prints_no_escape_sequence_from_text() -> None:
    written = io.StringIO()
    console = SafeConsole(file=written, force_terminal=True, width=2000, color_system="truecolor")
    console.print(NASTY, style="red")
    console.print(Text(NASTY, style="bold"))
    print_rows(console, [{NASTY: NASTY, "b": 1.0}])
    own = re.compile("\x1b\\[[0-9;]*m")
    assert own.search(written.getvalue()), "our own styles are still there"
    assert not BAD.search(own.sub("", written.getvalue()).replace("\n", ""))
    assert "[red]r[/red]" in written.getvalue()


@pytest.mark.slow
def test_hpo_show_list_and_export_print_no_control_characters(hpo: Runner) -> None:
    journal = Home(hpo.home).open_journal()
    study = nasty_study(journal)
    nasty_study(journal, "other")
    recorded = _entries(study)
    journal.close()
    said = hpo("show", "nasty") + hpo("status", "nasty") + hpo("list") + hpo("audit", "nasty")
    for trial in range(len(study.state.trials)):
        said += hpo("show", "nasty", "--trial", str(trial))
    said += hpo("compare", "nasty", "other") + hpo("show", "no\x1b[2Jsuch", code=2)
    assert not BAD.search(said.replace("\n", "")), BAD.search(said.replace("\n", ""))
    assert "\\x1b[2J" in said and not [line for line in said.splitlines() if line.startswith("second line")]
    exported = hpo("export", "nasty")
    assert not BAD.search(exported.replace("\n", ""))
    entries = [json.loads(line) for line in exported.splitlines()]
    assert entries == [json.loads(encode_entry(entry)) for entry in recorded]
    assert hpo.json("show", "nasty")["best"]["params"][f"c {NASTY}"] in (NASTY, f"2{NASTY}")


def test_escaped_json_has_the_same_value() -> None:
    text = json.dumps({"a": NASTY}, ensure_ascii=False)
    assert json.loads(json_text(text)) == json.loads(text) and not BAD.search(json_text(text))


# Markdown.


def rendered(markdown: str) -> tuple[set[str], str]:
    """Kinds of tokens that Markdown makes of it, and its HTML."""
    parser = MarkdownIt("commonmark").enable(["table", "strikethrough"])
    kinds = set()
    for token in parser.parse(markdown):
        kinds.add(token.type)
        kinds |= {child.type for child in token.children or ()}
    return kinds, parser.render(markdown)


LIVE = {"image", "link_open", "html_inline", "html_block", "fence", "code_block", "em_open", "s_open"}


@pytest.mark.parametrize("text", [NASTY, MARKUP, "`", "``` x", "a\\", "\\`", "- [x](y)", "# h", "=", "- a", "|"])
def test_text_in_markdown_has_no_effect(text: str) -> None:
    for words in (markdown_text(text), f"before {markdown_text(text)} after", markdown_row(["a", text, "b"])):
        kinds, _ = rendered(words)
        assert not kinds & (LIVE | {"strong_open", "code_inline", "heading_open", "bullet_list_open"}), kinds
        assert not re.search(r"https?://|www\.|[^\\]@", words), "nothing that turns into a link by itself"
    table = f"| a | b | c |\n| --- | --- | --- |\n{markdown_row(['1', text, '3'])}"
    assert rendered(table)[1].count("<td>") == 3
    kinds, page = rendered(f"before {markdown_code(text)} after")
    assert not kinds & LIVE and page.count("<code>") == 1 and page.endswith("after</p>\n")
    table = f"| a | b | c |\n| --- | --- | --- |\n| 1 | {markdown_code(text)} | 3 |"
    assert rendered(table)[1].count("<td>") == 3


def test_artifacts_notes_and_decisions_escape_markdown() -> None:
    study = nasty_study()
    fold = folded(study)
    made = decision(promoted=True)
    card = msgspec.structs.replace(made.challenger, metric=f"loss {NASTY}", data=NASTY)
    nasty: Decision = msgspec.structs.replace(made, challenger=card, steps=(NASTY,), rows=((NASTY, (0.1, 0.2)),))
    texts = [study_markdown(study, "", {}), study_tags(fold, "halted", None)["mlflow.note.content"], nasty.markdown()]
    for text in texts:
        kinds, page = rendered(text)
        assert not kinds & (LIVE - {"code_inline"}), (kinds, text)
        assert (
            "<img" not in page
            and "<script" not in page
            and "<a " not in page
            and not BAD.search(page.replace("\n", ""))
        )
    assert rendered(study_markdown(study, "", {}))[1].count("<td>") == 2 * 2 + len(study.front) * 6


# HTML.


class Elements(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[str, list[tuple[str, str | None]]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, attrs))


def test_pages_contain_no_html_element_from_text(tmp_path: Path) -> None:
    study = nasty_study()
    entries = list(_entries(study))
    links = {NASTY: NASTY, "b": "javascript:alert(1)", "c": f'http://x/"{MARKUP}'}
    pages = [write_report(entries, tmp_path / "report.html", links=links)]
    both = Comparison.of([entries, _entries(nasty_study(name="other"))])
    pages.append(write_comparison(both, tmp_path / "compared.html"))
    for page in pages:
        parser = Elements()
        parser.feed(page.read_text())
        assert len(parser.found) > 20
        for tag, attributes in parser.found:
            assert tag not in ("img", "iframe", "object"), (page, tag)
            assert not [name for name, _ in attributes if name.startswith("on")], (page, tag, attributes)
            for name, value in attributes:
                assert not (name in ("href", "src") and (value or "").strip().lower().startswith("javascript"))
        scripts = re.findall(r"<script.*?</script>", page.read_text(), re.DOTALL | re.IGNORECASE)
        assert not [script for script in scripts if "<img src=x" in script], "a figure's text is markup to Plotly, too"


# MLflow.


def test_mlflow_gets_only_characters_that_every_store_accepts() -> None:
    for value in (NASTY, "a\x00b", "\ud800", "x" * 100_000):
        for text in (param_value(value), tag_value(value)):
            text.encode()  # a lone surrogate stops a projection for good, as NUL does in PostgreSQL
            assert not BAD.search(text.replace("\n", "")) and len(text) <= 6000
    fold = folded(nasty_study())
    shown = [study_params(fold.spec), study_tags(fold, "halted", None)]
    shown += [trial_tags(fold, trial.number, "p") for trial in fold.state.trials]
    shown += [trial_params(fold.spec, trial) for trial in fold.state.trials]
    for pairs in shown:
        for key, value in pairs.items():
            assert not BAD.search(key + value.replace("\n", "")) and len(key) <= 250 and len(value) <= 6000


def folded(study: Study) -> TrackedStudy:
    fold = TrackedStudy()
    for entry in _entries(study):
        fold.add(entry)
    return fold


def _entries(study: Study) -> list[Entry]:
    return list(study.journal.entries(study.name))
