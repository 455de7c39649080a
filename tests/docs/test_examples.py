"""Every command, config and program in the README and the documents is one that works.

Commands are parsed as the program would, or run when that is quick; configs are loaded; programs
are compiled, because their frameworks are not installed here.
"""

from __future__ import annotations

import argparse
import ast
import dataclasses
import json
import re
import shlex
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
import yaml

from gateway.api.routes import operations
from gateway.cli import build_parser, main, tree
from gateway.config import Settings, settings_from_dict
from gateway.errors import ConfigError
from gateway.upstream.deployments import DeploymentTable

ROOT = Path(__file__).parents[2]
DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
KEYS = {"ANTHROPIC_API_KEY": "sk-x", "OPENAI_API_KEY": "sk-x"}

# What runs in a shell besides the gateway; each is known to somebody who has its tool.
OTHERS = {
    "pip",
    "python3",
    "helm",
    "install",
    "kubectl",
    "pipx",
    "uvx",
    "export",
    "python",
    "cd",
    "curl",
    "docker",
    "psql",
    "sqlite3",
}
OTHERS |= {"git", "createdb", "pg_dump", "promtool", "cp", "mv", "mkdir", "cat", "echo", "openssl"}


def blocks(document: Path, *languages: str) -> Iterator[str]:
    """The code blocks of these languages."""
    found = re.findall(r"^```(\w*)\n(.*?)^```", document.read_text(), re.MULTILINE | re.DOTALL)
    yield from (text for language, text in found if language in languages)


def variables(text: str) -> dict[str, str]:
    """A value for every variable that a config names: an address, which a key may be, too."""
    names = re.findall(r"os\.environ/(\w+)|\$\{(\w+)", text)
    found = dict.fromkeys(map("".join, names), "https://example.com/secret-1234567890")
    return found | {
        name: "postgresql://user@localhost/gateway" for name in found if "DATABASE" in name
    }


def shell_lines(document: Path) -> Iterator[list[str]]:
    """The words of each command in a shell's blocks, comments left out."""
    for text in blocks(document, "bash", "sh"):
        open_quote = ""
        for line in text.replace("\\\n", " ").splitlines():
            try:
                words = shlex.split(open_quote + line, comments=True)
            except ValueError:
                open_quote += line + "\n"
                continue
            open_quote = ""
            if words:
                yield words


def inline_commands(document: Path) -> Iterator[list[str]]:
    """`gateway ...` in running text, where a command of that name exists."""
    for text in re.findall(r"`((?:gateway|steering-gateway) [a-z][^`\n]*)`", document.read_text()):
        yield shlex.split(text)


def listed_commands(document: Path) -> Iterator[list[str]]:
    """`gateway ...` at the start of a line of a block without a language, up to its explanation."""
    for text in blocks(document, "", "text"):
        for line in re.findall(r"^gateway ([a-z].*)", text, re.MULTILINE):
            yield re.sub(r"[][|]", " ", re.split(r" {2,}", line)[0]).split()


@cache
def the_parser() -> argparse.ArgumentParser:
    return build_parser()


@cache
def commands() -> dict[tuple[str, ...], tuple[argparse.ArgumentParser, list[str]]]:
    """Each command's parser, and the words that may follow it."""
    return {path: (parser, words_after(parser)) for path, parser, _ in tree(the_parser())}


def words_after(parser: argparse.ArgumentParser) -> list[str]:
    """What may follow: verbs, options, and the choices of arguments."""
    found: list[str] = []
    for action in parser._actions:
        if action.option_strings:
            found += [option for option in action.option_strings if option.startswith("--")]
        elif action.choices is not None:
            found += [str(choice) for choice in action.choices]
    return found


def parsed(words: list[str]) -> None:
    """Parse a command of the gateway. Raises: AssertionError when it is none."""
    try:
        args, rest = the_parser().parse_known_args(words)
    except SystemExit as exc:
        raise AssertionError(f"no such command: gateway {' '.join(words)}") from exc
    assert not rest or getattr(args, "passes_rest", False), words


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_command_exists(document: Path) -> None:
    """Commands of the gateway parse, targets of make exist, and no other tool is asked for."""
    targets = set(re.findall(r"^([a-z-]+):.*## ", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for words in shell_lines(document):
        words = [word for word in words if not re.fullmatch(r"[A-Z_]+=.*", word)]
        if not words:
            continue
        if words[0] in ("uvx", "pipx"):
            words = words[words.index("steering-gateway") :]
        if words[0] in ("gateway", "steering-gateway"):
            parsed(words[1:])
        elif words[0] == "make":
            assert set(words[1:]) <= targets, words
        else:
            assert words[0] in OTHERS, words
    for words in inline_commands(document):
        _named(words[1:])
    for words in listed_commands(document):
        _named(words)


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_example_escapes(document: Path) -> None:
    """Blocks have a language that is checked here, or none; a block in a list is one, too."""
    languages = re.findall(r"^ *```(\w+)", document.read_text(), re.MULTILINE)
    assert set(languages) <= {"bash", "sh", "yaml", "json", "toml", "python", "text"}
    assert not re.search(r"^ +```", document.read_text(), re.MULTILINE)


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_route_of_the_api_exists(document: Path) -> None:
    """Each `GET /api/...` that a document names is an operation."""
    known = {(each.method, re.sub(r"{\w+}", "*", each.path)) for each in operations()}
    for method, path in re.findall(
        r"(GET|POST|PUT|DELETE) (/api/[^\s`?,;|\]]*)", document.read_text()
    ):
        place = re.sub(r"{\w+}|\b(RUN|ID)\b", "*", path.rstrip(".)"))
        assert (method, place) in known, f"{method} {path}"


def _named(words: list[str]) -> None:
    """A command in running text: its name, its verb and its options exist."""
    known = commands()
    if any(character in word for word in words for character in "{|"):
        return  # several at once
    path: tuple[str, ...] = ()
    for word in words:
        if (*path, word) in known:
            path = (*path, word)
    assert path, words
    parser, options = known[path]
    given = {word for word in words if word.startswith("--") and word != "--"}
    assert parser.get_default("passes_rest") or given <= set(options), words


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_config_loads(document: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """YAML for the gateway is accepted by it; other YAML, JSON and TOML is at least well formed."""
    capsys.readouterr()
    own = {field.name for field in dataclasses.fields(Settings)}
    for text in blocks(document, "yaml"):
        [values, *more] = yaml.safe_load_all(text)
        if more or not isinstance(values, dict) or not own & set(values):
            continue  # of another program
        try:
            env = variables(text)
            DeploymentTable(settings_from_dict(values, env), env)
        except ConfigError as exc:
            raise AssertionError(f"{document.name}: {exc}\n{text}") from exc
    for text in blocks(document, "json"):
        json.loads(text)
    for text in blocks(document, "toml"):
        tomllib.loads(text)
    for text in blocks(document, "python"):
        ast.parse(text)


def test_what_is_quick_is_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The config of the quick start passes `gateway check-config`, as it says."""
    monkeypatch.chdir(tmp_path)
    for name, value in KEYS.items():
        monkeypatch.setenv(name, value)
    [config] = blocks(ROOT / "docs/quickstart.md", "yaml")
    (tmp_path / "config.yaml").write_text(config)
    assert main(["check-config"]) == 0
    assert capsys.readouterr().out.endswith("config.yaml: ok\n")


def test_the_backup_and_the_way_back_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What docs/deploy.md says to run makes a file, and puts it back over what came after."""
    monkeypatch.chdir(tmp_path)
    words = [each for each in shell_lines(ROOT / "docs/deploy.md") if each[0] == "gateway"]
    [backup] = [each[1:] for each in words if each[1] == "backup"]
    [restore] = [each[1:] for each in words if each[1] == "restore"]
    assert main(["keys", "create", "acme"]) == 0
    assert main(backup) == 0
    assert main(["keys", "create", "other"]) == 0
    assert main(restore) == 0
    capsys.readouterr()
    assert main(["keys", "list"]) == 0
    listed = capsys.readouterr().out
    assert "acme" in listed
    assert "other" not in listed
