"""Hooks of mkdocs: files of the repository as pages, and links between them.

Some pages of the site are files that belong elsewhere in the repository (``SECURITY.md``). The hooks add them, and
rewrite relative links so that the same file works in the repository and on the site.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[2]
PAGES = {
    "SECURITY.md": "security.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "benchmarks/README.md": "benchmarks.md",
    "deployments/README.md": "deployments.md",
    "examples/retrain/README.md": "retraining-example.md",
}
"""Files of the repository that are pages of the site, with their names there."""
for _readme in sorted([*ROOT.glob("hpo_core/**/README.md"), *ROOT.glob("flows/hpo_flows/**/README.md")]):
    _package = _readme.parent.relative_to(ROOT).as_posix()
    PAGES[f"{_package}/README.md"] = f"packages/{_package.removeprefix('flows/').replace('/', '-')}.md"
BOOST = {"how-to": 4.0, "tutorials": 4.0, "decisions": 0.1, "packages": 0.1}
"""Weight in the site's search by folder: what people do comes before how it is made."""
SELDOM_READ = {"benchmarks.md", "changelog.md", "contributing.md"}
_REPOSITORY = {page: path for path, page in PAGES.items()}
_PICTURES = "repository"
"""Folder of the site for pictures that lie outside ``docs``."""
_LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)\s#]*)(#[^)\s]*)?\)")
_FENCE = re.compile(r"(^```.*?^```$)", re.DOTALL | re.MULTILINE)
_INSIDE_NUMBERED = re.compile(r"^\d\. .*\n(?:(?:   .*)?\n)+", re.MULTILINE)
"""A numbered item with what belongs to it: indented by three as GitHub has it, while Python-Markdown wants four."""
_ROLE = re.compile(r":(?:class|meth|func|mod|attr|data|exc):<code>(~?)([\w.]+)</code>")


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Add the pages that lie outside ``docs``, and every picture that a page shows from there."""
    for path, page in PAGES.items():
        files.append(File.generated(config, page, abs_src_path=str(ROOT / path)))
    shown = set()
    for file in files.documentation_pages():
        here = _path_of(file.src_uri)
        for picture, _, target, _ in _LINK.findall((ROOT / here).read_text(encoding="utf-8")):
            if picture and "://" not in target:
                shown.add(posixpath.normpath(posixpath.join(posixpath.dirname(here), target)))
    for path in sorted(shown):
        if not path.startswith("docs/"):
            files.append(File.generated(config, f"{_PICTURES}/{path}", abs_src_path=str(ROOT / path)))
    return files


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Point links at pages of the site, and weigh the page for the search."""
    page_uri = page.file.src_uri
    boost = 0.1 if page_uri in SELDOM_READ else BOOST.get(page_uri.partition("/")[0], 1.0)
    page.meta.setdefault("search", {}).setdefault("boost", boost)
    markdown = _INSIDE_NUMBERED.sub(lambda found: re.sub("^(?= )", " ", found[0], flags=re.MULTILINE), markdown)
    parts = _FENCE.split(markdown)
    return "".join(part if part.startswith("```") else _with_links(part, page_uri) for part in parts)


def on_page_content(html: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Show reStructuredText of docstrings (``:class:`~a.b.C```, ``::`` before code) as plain text."""
    html = _ROLE.sub(lambda found: f"<code>{found[2].rpartition('.')[2] if found[1] else found[2]}</code>", html)
    return html.replace("<p>::</p>", "").replace("::</p>", ":</p>")


def _path_of(page_uri: str) -> str:
    """Path of a page's source in the repository."""
    return _REPOSITORY.get(page_uri, f"docs/{page_uri}")


def _with_links(text: str, page_uri: str) -> str:
    return _LINK.sub(lambda found: _link(found, page_uri), text)


def _link(found: re.Match[str], page_uri: str) -> str:
    picture, text, target, anchor = found[1], found[2], found[3], found[4] or ""
    if not target or "://" in target or target.startswith("mailto:"):
        return found[0]
    path = posixpath.normpath(posixpath.join(posixpath.dirname(_path_of(page_uri)), target))
    if path in PAGES:
        there = PAGES[path]
    elif path.startswith("docs/"):
        there = path.removeprefix("docs/")
    elif picture:
        there = f"{_PICTURES}/{path}"
    else:
        return f"`{path}`" if path.endswith(text.strip("`")) else f"{text} (`{path}`)"
    return f"{picture}[{text}]({posixpath.relpath(there, posixpath.dirname(page_uri) or '.')}{anchor})"
