"""No link of the documents is dead, neither to a file nor to a heading; the site's table of contents is whole."""

import re
from collections import Counter
from pathlib import Path

import pytest

from tools.markdown import anchor

ROOT = Path(__file__).resolve().parents[2]
ROOMS = ("protocol", "runtime", "storage", "client", "actors", "bulk", "data", "serve", "spark", "tasks", "cluster")
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]


def text_of(page: Path) -> str:
    """The page without code."""
    return re.sub(r"^```.*?^```$|`[^`\n]*`", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)


def headings(page: Path) -> list[str]:
    return re.findall(r"^#+ (.*)$", re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.M | re.S), re.MULTILINE)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_no_link_of_a_page_is_dead(page: Path) -> None:
    dead = []
    for target in re.findall(r"\]\(([^)\s]+)\)", text_of(page)):
        if re.match(r"[a-z]+:", target):
            continue
        name, _, wanted = target.partition("#")
        file = (page.parent / name).resolve() if name else page
        if not file.is_file() or (wanted and wanted not in {anchor(heading) for heading in headings(file)}):
            dead.append(target)
    assert dead == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_no_heading_of_a_page_is_there_twice(page: Path) -> None:
    assert [heading for heading, times in Counter(headings(page)).items() if times > 1] == []


def test_documents_link_nothing_outside_docs() -> None:
    """The site holds docs/ only."""
    for page in (ROOT / "docs").rglob("*.md"):
        for target in re.findall(r"\]\((\.\.[^)\s]+)\)", text_of(page)):
            assert (page.parent / target.partition("#")[0]).resolve().is_relative_to(ROOT / "docs"), (page, target)


def test_the_sites_contents_name_every_page_once() -> None:
    named = re.findall(r"^\s+- [^:\n]+: (\S+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE)
    assert sorted(named) == sorted(str(page.relative_to(ROOT / "docs")) for page in (ROOT / "docs").rglob("*.md"))


def test_no_code_refers_to_a_document_that_is_not_there() -> None:
    here = {page.name for page in [*PAGES, ROOT / "CHANGELOG.md"]}
    wrong = [
        f"{file.relative_to(ROOT)}: {name}"
        for folder in (
            "protocol",
            "runtime",
            "storage",
            "client",
            "actors",
            "bulk",
            "spark",
            "cluster",
            "tests",
            "bench",
            "examples",
        )
        for file in sorted((ROOT / folder).rglob("*.py"))
        for name in re.findall(r"\b([\w-]+\.md)\b", file.read_text())
        if name not in here
    ]
    assert wrong == []
