"""Real clients with the logins that people have, in `gateway wrap`, against their scripted hosts.

Seen to pass with Codex 0.171.0, Claude Code 2.1.332, Gemini CLI 0.61.0 and Copilot CLI 1.0.102,
each with its own default model (Copilot has none with a provider of the user's).
"""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from steering_gateway_testing import ReceivedRequest
from steering_gateway_testing.exchange import Answer
from steering_gateway_testing.looping import GUIDANCE
from steering_gateway_testing.patience import DEADLINE_MS, run_to_end
from steering_gateway_testing.processes import GatewayProcess
from steering_gateway_testing.tls import Authority
from tests.docs.test_examples import blocks
from tests.seats.hosts import (
    AWS_KEY,
    GOOGLE_KEY,
    GOOGLE_TOKEN,
    SHELL,
    Host,
    Refusal,
    decoded,
    is_probe,
)
from tests.seats.seats import PATH, SEATS, Seat, filled, found, narrow

pytestmark = pytest.mark.nightly

ROOT = Path(__file__).parents[2]
CHOOSERS = frozenset({"gemini-3.5-flash-lite"})
"""Models that choose another one."""

LIMIT_S = 120
"""Longest run of a client; one that is refused tries again for minutes."""

KEPT = (".claude.json",)
"""What a client has to keep for its next run to send the same: the number of the machine."""
HOPS = frozenset(
    {b"host", b"connection", b"content-length", b"transfer-encoding", b"upgrade", b"te"}
)
OURS = frozenset({b"x-gateway-instance", b"sec-websocket-key"})
SIGNED = frozenset({b"authorization", b"x-goog-user-project"})

# What differs from run to run: ids, times, and keys of caches.
_ID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
_TIME = re.compile(
    r"\d{4}-\d\d-\d\dT\d\d:\d\d:[\d.]+(?:Z|[+-]\d\d:\d\d)"
    r'|(?<="prompt_cache_key":")[0-9a-f]{32}|(?<=run_shell_command_)\d+'
    r'|(?<="create_time":)[\d.]+|(?<=request-start-ms": ")\d+|(?<=PGID: )\d+'
    r'|(?<=_unix_ms":)\d+|(?<=_unix_ms\\":)\d+|(?<=Wall time )[\d.]+|(?<=Chunk ID: )\w+'
)


@dataclass(frozen=True, slots=True)
class Sent:
    """One request as its host got it, without what is a run's own."""

    method: str
    target: str
    headers: tuple[str, ...]
    body: str


@dataclass(frozen=True, slots=True)
class Ended:
    """A client's run: what it printed, and what came to its host."""

    status: int
    out: str
    err: str
    host: Host

    def sent(self, seat: Seat) -> list[Sent]:
        """The requests of the conversation, with the WebSockets that were opened."""
        ids: dict[str, str] = {}
        refused = {id(r) for status, r in self.host.refused if status == 426}
        talk = [r for r in self.host.requests if self.host.converses(r) and not is_probe(r)]
        talk = [request for request in talk if id(request) not in refused]
        return [_sent(request, seat, ids) for request in talk]


def _sent(request: ReceivedRequest, seat: Seat, ids: dict[str, str]) -> Sent:
    length = request.header("content-length")
    assert length is None or int(length) == len(request.body)

    def plain(text: str) -> str:
        text = _ID.sub(lambda found: ids.setdefault(found[0], f"id-{len(ids)}"), text)
        return _TIME.sub("time", text)

    left_out = HOPS | OURS | (SIGNED if seat.signs else frozenset())
    headers = tuple(
        sorted(
            plain(f"{name.decode()}: {value.decode('latin-1')}")
            for name, value in sorted(request.headers)  # Copilot CLI has them in any order
            if name not in left_out and not (seat.signs and name.startswith(b"x-amz-"))
        )
    )
    body = plain(_ordered(decoded(request).decode()))
    return Sent(request.method, plain(request.target), headers, body)


def _ordered(body: str) -> str:
    """Codex writes its `client_metadata` in another order each time."""
    start = body.find('"client_metadata":') + len('"client_metadata":')
    if start < len('"client_metadata":'):
        return body
    value, end = json.JSONDecoder().raw_decode(body, start)
    return body[:start] + json.dumps(value, sort_keys=True) + body[end:]


@dataclass(slots=True)
class Runs:
    """Runs of clients, each seat always in the same folder, and without a gateway once."""

    folder: Path
    _alone: dict[str, Ended]

    def alone(self, name: str) -> Ended:
        """Without a gateway."""
        if name not in self._alone:
            self._alone[name] = self._run(name, None)
        return self._alone[name]

    def wrapped(self, name: str, mode: str) -> Ended:
        """With `gateway wrap`, after a run without."""
        self.alone(name)
        return self._run(name, mode)

    def compacting(self, name: str, seat: Seat) -> Ended:
        """With `gateway wrap`, and a host that fills the context of `seat`."""
        return self._run(name, "on", seat)

    def _run(self, name: str, mode: str | None, narrowed: Seat | None = None) -> Ended:
        seat, home = narrowed or SEATS[name], self.folder / name.replace(" ", "-")
        _cleared(home)
        authority = Authority(home, "authority")
        certificate, compacts = authority.server_file("127.0.0.1"), narrowed is not None
        with Host(seat.kind, seat.upgrades, certificate, compacts) as host:
            for path, text in seat.files.items():
                (home / path).parent.mkdir(parents=True, exist_ok=True)
                (home / path).write_text(filled(text, host, home))
            env = {"PATH": PATH, "HOME": str(home), "TERM": "dumb"}
            env |= {k: filled(v, host, home) for k, v in {**seat.env, **seat.direct}.items()}
            if mode:
                env |= {k: filled(v, host, home) for k, v in seat.upstream.items()}
                env["XDG_STATE_HOME"] = str(self.folder / f"state-{home.name}-{mode}")
                env["GATEWAY_STEERING__DEADLINE_MS"] = str(DEADLINE_MS)
                env["PYTHONPATH"] = str(ROOT)
            gateway = [sys.executable, "-m", "gateway", "wrap", "--json", "--mode", str(mode), "--"]
            options = (*(() if mode else seat.alone), *seat.options)
            for task in filter(None, (seat.before, seat.command)):
                host.restart()
                words = [str(found(seat)), *(filled(w, host, home) for w in (*options, *task[1:]))]
                ended = run_to_end(
                    [*(gateway if mode else []), *words], env, home / "work", LIMIT_S
                )
        return Ended(ended.returncode, ended.stdout, ended.stderr, host)


def _cleared(home: Path) -> None:
    """An empty folder for a client that ran before: what it remembers of its runs is gone."""
    kept = {n: (home / n).read_bytes() for n in KEPT if (home / n).exists()}
    shutil.rmtree(home, ignore_errors=True)
    for folder in ("work", "codex"):
        (home / folder).mkdir(parents=True)
    for name, text in kept.items():
        (home / name).write_bytes(text)


@pytest.fixture(scope="module")
def runs() -> Iterator[Runs]:
    """Outside the folders for temporary files, where Codex starts no helpers."""
    folder = Path.home() / ".cache/gateway-seats/runs" / str(os.getpid())
    folder.mkdir(parents=True)
    yield Runs(folder, {})
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(params=SEATS)
def name(request: pytest.FixtureRequest) -> str:
    """A seat whose client is installed."""
    seat = str(request.param)
    if found(SEATS[seat]) is None:
        pytest.skip(f"{SEATS[seat].command[0]} is not installed")
    return seat


def test_a_client_ends_its_task_at_its_host(name: str, runs: Runs) -> None:
    """Without a gateway: the host takes what the client sends, and the shell is run."""
    ended = runs.alone(name)
    assert ended.status == 0, ended.err[-3000:]
    assert "All done." in ended.out
    talk = ended.host.talk()
    assert len([r for r in talk if "seen-by-the-shell" in decoded(r).decode()]) >= 1
    assert SHELL not in decoded(talk[0]).decode()


@pytest.mark.parametrize("mode", ["off", "shadow"])
def test_a_client_is_left_alone(name: str, mode: str, runs: Runs) -> None:
    """Its host gets what it gets without a gateway: line, headers, body."""
    ended = runs.wrapped(name, mode)
    told = _told(ended)
    seat = SEATS[name]
    assert ended.sent(seat) == runs.alone(name).sent(seat)
    assert _credentials_stayed(ended)
    frames = any(request.method == "FRAME" for request in ended.host.requests)
    assert len(_own(told)) == 1 or (frames and mode == "off")  # frames are not read then


def test_a_client_is_steered(name: str, runs: Runs) -> None:
    """Guidance reaches its host; one conversation is recorded, with model, tokens and cost."""
    ended = runs.wrapped(name, "on")
    told = _told(ended)
    assert any(GUIDANCE in decoded(r).decode() for r in ended.host.talk())
    assert _credentials_stayed(ended)
    [run] = _own(told)
    assert run["guidance"]
    assert told["steps"] == 1
    assert told["input_tokens"] >= 2400
    assert told["output_tokens"] >= 68
    models = set(run["totals"]["models"])
    assert models
    assert "unknown" not in models
    assert told["cost_usd"] > 0
    subscribes = "chatgpt" in name or "oauth" in name
    assert run["tags"].get("paid") == ("subscription" if subscribes else None)


def test_a_compaction_is_no_step(name: str, runs: Runs) -> None:
    """The request for a summary is sent without guidance, and what follows is of the same run."""
    seat = narrow(SEATS[name])
    if seat is None:
        pytest.skip("it has no setting for a small context")
    ended = runs.compacting(name, seat)
    told = _told(ended)
    assert ended.host.summaries
    for request in ended.host.summaries:
        assert GUIDANCE not in decoded(request).decode()
    assert _credentials_stayed(ended)
    *_, run = _own(told)  # with an id, the choice of a model counts to the task before
    assert run["totals"]["scored_steps"] == 4
    assert run["guidance"]


def _told(ended: Ended) -> dict[str, Any]:
    assert ended.status == 0, ended.err[-3000:]
    assert "All done." in ended.out
    told: dict[str, Any] = json.loads(ended.err.splitlines()[-1])
    assert told["exit_status"] == 0
    return told


def _own(told: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The runs of the client's task. Gemini CLI has a small model choose the one for it before it
    begins, without an id: that call is a run by itself."""
    runs: list[dict[str, Any]] = told["runs"]
    return [run for run in runs if not set(run["totals"]["models"]) <= CHOOSERS]


def _credentials_stayed(ended: Ended) -> bool:
    """Whether the host refused nothing but the WebSockets that it does not speak."""
    refused = [(status, r.path) for status, r in ended.host.refused if not _is_side(r)]
    return {status for status, _ in refused} <= {426} and AWS_KEY not in ended.err


def _is_side(request: ReceivedRequest) -> bool:
    """Requests that Codex sends without its token, and Claude Code when another signs."""
    return request.path.endswith("/ps/mcp") or request.path == "/inference-profiles"


class Dry(Host):
    """A host at which every login is at its limit."""

    def _answered(self, request: ReceivedRequest) -> Answer:
        if self.converses(request):
            raise Refusal(429, "Quota.")
        return super()._answered(request)


def test_gemini_goes_on_with_a_key_when_its_account_is_used_up(tmp_path: Path) -> None:
    """With the config of its page: the task ends as it does at Code Assist."""
    seat = SEATS["gemini google account"]
    program = found(seat)
    if program is None:
        pytest.skip("gemini is not installed")
    page = ROOT / "docs/clients/gemini-cli.md"
    [config] = [yaml.safe_load(block) for block in blocks(page, "yaml")]
    with Dry("code_assist") as dry, Host("google") as other:
        config["model_list"][0]["litellm_params"]["api_base"] = other.url
        config["default_upstream"] = {"code_assist_api_base": dry.url}
        own = {"GEMINI_API_KEY": GOOGLE_KEY, "GATEWAY_STEERING__MODE": "on"}
        with GatewayProcess(tmp_path, json.dumps(config), env=own) as gateway:
            home = tmp_path / "home"
            _cleared(home)
            (home / ".gemini").mkdir()
            for path, text in seat.files.items():
                (home / path).write_text(filled(text, dry, home))
            env = {"PATH": PATH, "HOME": str(home), "TERM": "dumb", **seat.env}
            env["CODE_ASSIST_ENDPOINT"] = gateway.url
            ended = run_to_end([program, *seat.command[1:]], env, home / "work", LIMIT_S)
    assert ended.returncode == 0, ended.stderr[-3000:]
    assert "All done." in ended.stdout
    assert any("seen-by-the-shell" in decoded(request).decode() for request in other.talk())
    assert not other.refused
    assert not any(GOOGLE_TOKEN in str(request.headers) for request in other.requests)
