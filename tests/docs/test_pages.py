"""The pages: all in the site's menu, no link without its end, no header left out."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = sorted(DOCS.rglob("*.md"))
SITE = yaml.safe_load((ROOT / "mkdocs.yml").read_text())
LINKED = [
    *PAGES,
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md")),
]


def in_menu(entries: Any) -> Iterator[str]:
    """The files that the site's menu names."""
    for entry in entries:
        values = [entry] if isinstance(entry, str) else entry.values()
        for value in values:
            yield from [value] if isinstance(value, str) else in_menu(value)


def off_the_site(page: Path) -> bool:
    """True if `exclude_docs` names the page or its folder."""
    return any(page.is_relative_to(DOCS / name.strip("/")) for name in SITE["exclude_docs"].split())


def anchor(heading: str) -> str:
    """The anchor of a heading, as Markdown's table of contents makes it."""
    plain = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading)
    return re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", plain).strip().lower())


def test_every_client_page_says_where_names_go() -> None:
    """Each page of a client leads to the one table."""
    pages = [page for page in (DOCS / "clients").glob("*.md") if page.name != "index.md"]
    assert pages
    for page in pages:
        assert "(index.md#where-names-go)" in page.read_text(), page.name


def test_every_page_is_in_the_menu() -> None:
    """Once, or it is a document about the code, which stays off the site."""
    named = list(in_menu(SITE["nav"]))
    pages = {str(page.relative_to(DOCS)) for page in PAGES if not off_the_site(page)}
    assert len(named) == len(set(named))
    assert set(named) == pages


def test_the_menu_has_the_four_books() -> None:
    """Behind the first page, in the order in which they are needed."""
    books = [name for entry in SITE["nav"] for name in entry]
    assert books == ["Start", "Use it", "Run it", "How it works", "What it is worth"]


@pytest.mark.parametrize("page", LINKED, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    """Each link to a file, a picture or a heading; inside docs none leads out of it."""
    for link in re.findall(r"(?:\]\(|src=\")([^)\"\s]+)[)\"]", page.read_text()):
        if re.match(r"https?:|mailto:", link):
            continue
        name, _, part = link.partition("#")
        target = (page.parent / name).resolve() if name else page
        assert target.exists(), f"{page.name}: {link}"
        if page.is_relative_to(DOCS) and not off_the_site(page):
            assert target.is_relative_to(DOCS), f"{page.name}: {link} is not on the site"
            assert not off_the_site(target), f"{page.name}: {link} is not on the site"
        if part and target.suffix == ".md":
            headings = re.findall(r"^#+ (.+)$", target.read_text(), re.MULTILINE)
            assert part in {anchor(heading) for heading in headings}, f"{page.name}: {link}"


def test_every_header_is_explained() -> None:
    """Each `x-gateway-*` header in the code has a row in docs/headers.md."""
    known = set(re.findall(r"`(x-gateway-[a-z-]+)`", (DOCS / "headers.md").read_text()))
    code = "\n".join(path.read_text() for path in (ROOT / "gateway").rglob("*.py"))
    used = set(re.findall(r"[\"'](x-gateway-[a-z]+(?:-[a-z]+)*)[\"']", code))
    assert used
    assert not used - known


def test_the_figures_of_the_readme_are_those_of_the_evidence() -> None:
    """Each percentage with a decimal stands in a table of the documents it summarises."""
    known = "".join((DOCS / name).read_text() for name in ("evidence.md", "cost.md"))
    shown = set(re.findall(r"\d+\.\d %", (ROOT / "README.md").read_text()))
    assert shown
    assert not [figure for figure in shown if figure not in known]


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_the_site_draws_what_is_drawn(page: Path) -> None:
    """Diagrams are pictures: the site has no script that would draw them from text."""
    assert not re.search(r"```\s*(?:mermaid|dot|plantuml)", page.read_text())


def test_pictures_ask_nobody() -> None:
    """They are small, and load nothing from another host."""
    for picture in (DOCS / "pictures").iterdir():
        assert picture.stat().st_size < 200_000, picture.name
        if picture.suffix == ".svg":
            drawn = re.sub(r"<!--.*?-->", "", picture.read_text(), flags=re.DOTALL)
            assert not re.search(r"(?:href|src)=|url\([\"']?https?:|@import", drawn)
