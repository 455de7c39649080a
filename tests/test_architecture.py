"""Rules about the code itself: what may import what, and that the map shows what there is."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import pytest

from gateway.steering.identity import Awaits, MatchKind

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "gateway"
DOCS = ROOT / "docs"
MAP = DOCS / "architecture.md"
QUESTIONS = DOCS / "where.md"
RECORDS = DOCS / "decisions"
RECORD_HEADINGS = ["Context", "Decision", "Rejected", "Figures"]
PURE = ("core", "steering", "wire")
LATE = {("parsing.py", "numpy")}
"""What one function loads, of a body that hardly anybody sends: 50 MB of nested JSON."""
PACKAGES = ("msgspec", "brotli", "_brotli", "backports.zstd", "compression.zstd")
"""Packages that the pure rooms may import: values and codings, without I/O and without packages
behind them."""
OWN = ("gateway.errors", "gateway.text.search", "gateway.values", "gateway.data_files")
"""Modules below the pure rooms that these may import; the search works without pydantic."""
CONFIG_KEYS = set(re.findall(r"\b[a-z_]+\b", (ROOT / "config.yaml").read_text()))


def modules(*folders: str) -> list[Path]:
    """All Python files below folders of the package."""
    return sorted(path for folder in folders for path in (PACKAGE / folder).rglob("*.py"))


def imported(path: Path) -> Iterator[str]:
    """Dotted names of the modules a file imports, wherever in it."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            yield node.module or ""


def test_only_what_has_to_be_saved_holds_the_end_of_the_process() -> None:
    """The end of an event loop waits for asyncio's own threads, and uvloop's for its look-ups. They
    commit what a database in a file has accepted; all else has threads of `gateway.tasks`."""
    ways = ("to_thread", "run_in_executor", "ThreadPoolExecutor", "getaddrinfo")
    found = {
        (str(path.relative_to(PACKAGE)), name)
        for path in modules("")
        if any(way in path.read_text() for way in ways)
        for node in ast.walk(ast.parse(path.read_text()))
        if (name := getattr(node, "attr", getattr(node, "id", ""))) in ways
    }
    assert found == {
        ("tasks.py", "ThreadPoolExecutor"),
        ("tasks.py", "run_in_executor"),
        ("stores/sqlite/database.py", "to_thread"),
        ("upstream/connections.py", "getaddrinfo"),  # that of `socket`, in a thread
    }


@pytest.mark.parametrize("path", modules(*PURE), ids=lambda p: str(p.relative_to(PACKAGE)))
def test_the_core_needs_the_standard_library_and_little_more(path: Path) -> None:
    """`wire/`, `core/` and `steering/` import it, each other, the error tree, the quick search, and
    what is in PACKAGES."""
    for name in imported(path):
        own = name.startswith(tuple(f"gateway.{room}" for room in PURE)) or name in OWN
        first = name.split(".")[0]
        known = {*sys.stdlib_module_names, *(each.split(".")[0] for each in PACKAGES)}
        assert own or first in known or (path.name, first) in LATE, name


def test_the_core_runs_with_these_packages_alone(tmp_path: Path) -> None:
    """An interpreter that has PACKAGES can import all of it: in a notebook as in the server."""
    elsewhere = "backports" if sys.version_info >= (3, 14) else "compression"  # has zstd, too
    for package in PACKAGES:
        if package.startswith(elsewhere):
            continue
        found = find_spec(package)
        assert found is not None
        origin = Path(str(found.origin))
        linked = origin.parent if found.submodule_search_locations else origin
        folder = tmp_path.joinpath(*package.split(".")[:-1])
        folder.mkdir(exist_ok=True)
        (folder / linked.name).symlink_to(linked)
    names = [".".join(p.relative_to(ROOT).with_suffix("").parts) for p in modules(*PURE)]
    program = "\n".join(f"import {name.removesuffix('.__init__')}" for name in names)
    bare = [
        sys.executable,
        "-I",
        "-S",
        "-c",
        f"import sys; sys.path[:0] = [{str(ROOT)!r}, {str(tmp_path)!r}]\n",
    ]
    bare[-1] += program
    ended = subprocess.run(bare, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr


PROVIDERS_ONLY = (
    *("litellm", "openai", "anthropic", "pandas", "boto3", "botocore", "cryptography"),
    *("huggingface_hub", "hf_xet", "mcp", "regex", "tiktoken", "tokenizers"),
)
"""What is installed because LiteLLM, or one provider that it translates for, needs it."""
LATER = ("numpy", "pydantic", "jinja2", "aiohttp")
"""What the first call that needs it loads: 50 to 200 ms each. numpy: an embedding; aiohttp: an
alert, or LiteLLM; the others: a request to `/api` or the dashboard."""


def test_a_start_loads_only_what_it_needs() -> None:
    """Neither LiteLLM and what only it needs, which costs seconds, nor what later calls need."""
    program = (
        "import sys, gateway.server, gateway.cli\n"
        f"print([name for name in {PROVIDERS_ONLY + LATER} if name in sys.modules])"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert ended.stdout.strip() == "[]", ended.stdout + ended.stderr


def named_paths(document: Path = MAP) -> list[str]:
    """Files and folders of the repository that a document names in code style."""
    form = r"`((?:gateway|packages|lab|tests|docs|bench|scripts)/[\w/.-]+)`"
    return re.findall(form, document.read_text())


def records() -> list[Path]:
    """The decision records, by number."""
    return sorted(RECORDS.glob("[0-9]*.md"))


DOCUMENTS = [*sorted(DOCS.glob("*.md")), *sorted(RECORDS.glob("*.md")), ROOT / "CONTRIBUTING.md"]


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.stem)
def test_documents_name_only_what_there_is(document: Path) -> None:
    """Each file and folder that a document names in code style exists."""
    missing = [name for name in named_paths(document) if not (ROOT / name).exists()]
    assert not missing, f"named in {document.name}, but not there: {missing}"


def test_the_way_through_the_core_passes_each_of_its_modules() -> None:
    """The page that gives the order to read names every one."""
    text = (DOCS / "core.md").read_text()
    files = [path for path in modules("core") if path.name != "__init__.py"]
    assert files
    assert [path.name for path in files if path.name not in text] == []


SOURCES = [
    path for room in ("gateway", "scripts", "bench", "lab") for path in (ROOT / room).rglob("*.py")
]
SHORT_NAME = re.compile(r"`([\w./-]+\.(?:py|toml|sql))`")
DOCUMENT = re.compile(r"\bdocs/[\w/-]+\.md\b")
DOTTED_NAME = re.compile(r"`(gateway(?:\.\w+)+)`")
OF_OTHERS = {"complexity_router/stall_detector.py", "gateway.db"}
"""Files that a document names and that are none of the repository."""


@cache
def known_names() -> frozenset[str]:
    """Every file of the repository, by its path and by each end of that."""
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True)
    paths = [name.split("/") for name in listed.stdout.splitlines() if (ROOT / name).exists()]
    return frozenset("/".join(parts[at:]) for parts in paths for at in range(len(parts)))


def is_there(dotted: str) -> bool:
    """True for a module or package, and for a name that one has."""
    for name, of_it in ((dotted, ""), dotted.rpartition(".")[::2]):
        folder = ROOT.joinpath(*name.split("."))
        for path in (folder.with_suffix(".py"), folder / "__init__.py"):
            if path.exists():
                return re.search(rf"\b{of_it}\b", path.read_text()) is not None
    return False


@pytest.mark.parametrize("document", [*DOCUMENTS, ROOT / "README.md"], ids=lambda path: path.stem)
def test_documents_name_modules_as_they_are_called(document: Path) -> None:
    """Also where only the end of a path is named, in text or in a table, or a dotted name."""
    text = document.read_text()
    names = {name.removeprefix("./") for name in SHORT_NAME.findall(text)}
    missing = names - known_names() - OF_OTHERS
    missing |= {n for n in DOTTED_NAME.findall(text) if n not in OF_OTHERS and not is_there(n)}
    assert not missing, f"named in {document.name}, but not there: {sorted(missing)}"


def test_docstrings_and_comments_name_what_there_is() -> None:
    """Modules and pages; a folder that has moved is named by its new place."""
    missing = set()
    for path in SOURCES:
        text = path.read_text()
        names = {name for name in SHORT_NAME.findall(text) if name not in known_names()}
        names |= {name for name in DOTTED_NAME.findall(text) if not is_there(name)}
        names |= {name for name in DOCUMENT.findall(text) if not (ROOT / name).exists()}
        missing |= {f"{path.relative_to(ROOT)}: {name}" for name in names}
    assert not missing


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.stem)
def test_documents_link_only_to_what_there_is(document: Path) -> None:
    """Each relative link of a document leads to a file."""
    links = re.findall(r"\]\((?!https?:)([^)#]+)", document.read_text())
    missing = [link for link in links if not (document.parent / link).exists()]
    assert not missing, f"linked in {document.name}, but not there: {missing}"


@pytest.mark.parametrize("record", records(), ids=lambda path: path.stem)
def test_a_decision_record_has_its_four_sections(record: Path) -> None:
    """A record opens with its number, and has context, decision, rejected and figures in order."""
    text = record.read_text()
    assert text.startswith(f"# {record.name[:3]} "), f"{record.name}: no number in its title"
    assert re.findall(r"^## (.+)$", text, re.MULTILINE) == RECORD_HEADINGS, record.name


def test_every_decision_record_is_listed() -> None:
    """The index of the records links to each record once, in the order of numbers."""
    listed = re.findall(r"\]\((\d{3}-[\w-]+\.md)\)", (RECORDS / "README.md").read_text())
    assert listed == [path.name for path in records()]


ANSWERS = re.findall(
    r"^\| (\d+) \| [^|]+\? \| (`[^`]+`) \| (.+) \|$", QUESTIONS.read_text(), re.MULTILINE
)
"""The rows of `docs/where.md`: number, file, what to look for."""


def test_the_questions_are_numbered() -> None:
    """`docs/where.md` answers at least twenty questions, each in a row that can be read."""
    assert [int(number) for number, _, _ in ANSWERS] == list(range(1, len(ANSWERS) + 1))
    assert len(ANSWERS) == QUESTIONS.read_text().count("\n| ") - 2 >= 20


@pytest.mark.parametrize(("file", "hint"), [row[1:] for row in ANSWERS])
def test_each_question_has_its_file_and_what_to_look_for(file: str, hint: str) -> None:
    """Each file of a row exists, and each name in code style is defined in one of them; a setting
    is a key of the config."""
    names = re.findall(r"`([^`]+)`", file + hint)
    places = [ROOT / name for name in names if (ROOT / name).exists()]
    assert places[0] == ROOT / file.strip("`")
    files = [f for p in places for f in (p.rglob("*.py") if p.is_dir() else [p])]
    texts = "\n".join(path.read_text() for path in files if path.suffix == ".py")
    for name in names:
        if (ROOT / name).exists():
            continue
        assert "/" not in name, f"{name} is not there"
        if "." in name or ":" in name or file == "`config.yaml`":
            keys = re.findall(r"[a-z_]+", name)
            assert [key for key in keys if key not in CONFIG_KEYS] == [], name
            continue
        form = rf"^\s*((async )?def|class) {name}\b|^\s*{name}(: [^=\n]+)?( =|$)"
        assert re.search(form, texts, re.MULTILINE), f"{name} is defined in none of {places}"


def test_every_state_of_a_conversation_is_documented() -> None:
    """`docs/conversation.md` names each verdict on a request and each `Awaits`."""
    page = (DOCS / "conversation.md").read_text()
    words = [kind.value for kind in MatchKind] + [f"Awaits.{state.name}" for state in Awaits]
    assert [word for word in words if word not in page] == []


def test_the_map_fits_on_a_sheet() -> None:
    """A reader takes in a hundred and twenty lines at one sitting; what is longer has its page."""
    assert len(MAP.read_text().splitlines()) <= 120


def test_the_map_names_all_there_is() -> None:
    """Each module and package directly below `gateway/` is on the map."""
    top = {p.name for p in PACKAGE.iterdir() if p.suffix == ".py" or (p / "__init__.py").exists()}
    quiet = {"__init__.py", "__main__.py"}
    named = {name.removeprefix("gateway/").split("/")[0] for name in named_paths()}
    assert not top - named - quiet, f"not in {MAP.name}: {sorted(top - named - quiet)}"


def test_tests_say_what_they_hold() -> None:
    """Each test has a docstring."""
    head = re.compile(
        r"^ *(?:async )?def (test_\w+)\(.*?\)(?: -> [^\n]+)?:\n +([^\n]*)", re.M | re.S
    )
    silent = [
        f"{path.relative_to(ROOT)}: {found[1]}"
        for path in sorted((ROOT / "tests").rglob("test_*.py"))
        for found in re.finditer(head, path.read_text())
        if not found[2].startswith('"""')
    ]
    assert not silent
