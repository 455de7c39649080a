"""The gateway as a process: start, reload, drain, and what it prints meanwhile."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import httpx
import pytest
import yaml

from gateway.cli import main
from gateway.config import settings_from_dict
from gateway.config.load import read_file
from gateway.config.reload import removals
from gateway.errors import ConfigError
from gateway.runtime import Runtime
from steering_gateway_testing import Fault, FaultKind, Reply, ScriptedUpstream
from steering_gateway_testing.hearing import HELLO, STREAMED, Heard, hear
from steering_gateway_testing.processes import ROOT, GatewayProcess, run
from tests.examples import by_day


def before(upstream: ScriptedUpstream, **more: Any) -> str:
    """A config, as JSON, which YAML contains."""
    return json.dumps({"default_upstream": {"api_base": upstream.base_url}, **more})


def test_serving_with_only_the_environment(upstream: ScriptedUpstream, tmp_path: Path) -> None:
    """Start, one request, SIGTERM: each step is one line, and no content is in any of them."""
    env = {"OPENAI_BASE_URL": upstream.base_url, "OPENAI_API_KEY": "sk-not-to-be-used"}
    env["GATEWAY_STEERING__DEADLINE_MS"] = "10000"
    with GatewayProcess(tmp_path, env=env) as gateway:
        headers = {"authorization": "Bearer sk-client-1234567890", "x-request-id": "mine"}
        with httpx.Client(base_url=gateway.base_url, headers=headers) as client:
            assert hear(client, json=HELLO).status == 200
            assert client.get(f"{gateway.url}/healthz").json()["status"] == "ok"
        gateway.wait_for("request")  # written when the client has its last byte
        assert upstream.last.header("authorization") == "Bearer sk-client-1234567890"
    events = [json.loads(line)["event"] for line in gateway.lines]
    assert events == ["listening", "request", "shutting down", "stopped"]
    assert gateway.process.returncode == 0
    (line,) = gateway.events("request")
    assert (line["status"], line["model"], line["lane"]) == (200, "m", "native")
    assert (line["request_id"], line["attempts"]) == ("mine", ["default:200"])
    assert "one two three" not in "".join(gateway.lines)
    assert "sk-" not in "".join(gateway.lines)


def test_running_requests_end_before_the_process(
    upstream: ScriptedUpstream, tmp_path: Path
) -> None:
    """After SIGTERM a stream goes on to its end, while nobody new is let in."""
    upstream.script(Reply("word " * 40, chunk_delay_s=0.03))
    with GatewayProcess(tmp_path, before(upstream)) as gateway:
        with httpx.Client(base_url=gateway.base_url, timeout=120) as client:
            heard: list[Heard] = []
            reader = threading.Thread(target=lambda: heard.append(hear(client, json=STREAMED)))
            reader.start()
            upstream.wait_for_requests()
            gateway.process.send_signal(signal.SIGTERM)
            gateway.wait_for("shutting down")
            ready = httpx.get(f"{gateway.url}/readyz")
            assert (ready.status_code, ready.json()["status"]) == (503, "unready")
            assert httpx.get(f"{gateway.url}/healthz").status_code == 200
            with httpx.Client(base_url=gateway.base_url) as late:
                refused = hear(late, json=HELLO)
            assert (refused.status, refused.error["code"]) == (503, "shutting_down")
            assert refused.headers["connection"] == "close"
            assert "retry-after" in refused.headers
            reader.join()
        assert heard[0].events[-1] == "[DONE]"
        assert heard[0].broken is None
        gateway.end()
        assert gateway.process.returncode == 0
    assert gateway.events("stopped")
    served = {e["status"]: e["path"] for e in gateway.events("request")}
    assert served == {200: "/v1/chat/completions", 503: "/v1/chat/completions"}


def test_what_does_not_end_in_time_is_ended(upstream: ScriptedUpstream, tmp_path: Path) -> None:
    """After `server.drain_s` whoever waits is told with 503, and a stream is visibly cut."""
    upstream.script(
        Fault(FaultKind.SLOW_FIRST_BYTE, delay_s=60), Fault(FaultKind.STALL, reply=Reply("a b c d"))
    )
    with GatewayProcess(tmp_path, before(upstream, server={"drain_s": 1})) as gateway:
        heard: dict[str, Heard] = {}

        def ask(name: str, body: Any) -> None:
            with httpx.Client(base_url=gateway.base_url, timeout=120) as client:
                heard[name] = hear(client, json=body)

        askers = []
        for count, (name, body) in enumerate([("whole", HELLO), ("stream", STREAMED)], start=1):
            askers.append(threading.Thread(target=ask, args=(name, body)))
            askers[-1].start()
            upstream.wait_for_requests(count)
        time.sleep(0.2)
        gateway.process.send_signal(signal.SIGTERM)
        for asker in askers:
            asker.join()
        gateway.end()
    assert (heard["whole"].status, heard["whole"].error["code"]) == (503, "shutting_down")
    assert heard["stream"].broken is not None
    assert heard["stream"].events[-1]["error"]["code"] == "shutting_down"
    assert "[DONE]" not in heard["stream"].events
    for request in upstream.requests:
        request.wait_disconnected()
    assert {line["error"] for line in gateway.events("request")} == {"shutdown"}
    assert gateway.events("stopped")
    assert not [line for line in gateway.lines if "Traceback" in line]


HOLDING = {
    "litellm/__init__.py": "import time\ntime.sleep(100_000)",
    "sitecustomize.py": """
import socket, time

def look_up(*asked, _look_up=socket.getaddrinfo, **more):
    if asked[0] == "slow.example":
        time.sleep(100_000)
    return _look_up(*asked, **more)

socket.getaddrinfo = look_up
""",
}
"""Modules with which the import of LiteLLM, or the look-up of a name, takes more than a day."""


@pytest.mark.slow
@pytest.mark.parametrize("workers", by_day([1, 2], 1))
@pytest.mark.parametrize("held", HOLDING)
def test_a_stop_waits_for_nothing_that_is_loaded(tmp_path: Path, held: str, workers: int) -> None:
    """The process ends with status 0 while a thread imports LiteLLM or looks up a name."""
    module = tmp_path / "modules" / held
    module.parent.mkdir(parents=True)
    module.write_text(HOLDING[held])
    adapted = {"model_name": "m", "litellm_params": {"model": "cohere/x", "api_key": "k"}}
    config = {
        "server": {"workers": workers, "drain_s": 1},
        "default_upstream": {"api_base": "http://slow.example/v1"},
        "model_list": [adapted] if "litellm" in held else [],
    }
    env = {"PYTHONPATH": f"{tmp_path / 'modules'}{os.pathsep}{ROOT}"}
    with GatewayProcess(tmp_path, json.dumps(config), env=env) as gateway:
        if "litellm" in held:
            gateway.wait_for("loading LiteLLM: a few seconds, only once; calls that need it wait")
        else:
            asker = threading.Thread(target=httpx.post, args=[f"{gateway.base_url}/embeddings"])
            asker.start()
            gateway.wait_for("request")
            asker.join()
        gateway.process.send_signal(signal.SIGTERM)
        assert gateway.end() == 0
    assert gateway.events("stopped")


@pytest.mark.slow
def test_trusted_names_without_a_restart(tmp_path: Path) -> None:
    """Hosts and origins of a new config hold at once; its limits of heads at the next start."""
    config = "server: {trusted_hosts: [gw.example], max_head_kb: 1}"
    asked = {"host": "gw.example"}
    with GatewayProcess(tmp_path) as gateway:
        assert httpx.get(f"{gateway.url}/metrics", headers=asked).status_code == 403
        gateway.config.write_text(config)
        gateway.process.send_signal(signal.SIGHUP)
        gateway.wait_for("config reloaded")
        assert httpx.get(f"{gateway.url}/metrics", headers=asked).status_code == 200
        waiting = gateway.wait_for("some changes take effect at the next start")
        assert waiting["keys"] == ["server.max_head_kb"]
        long = {**asked, "x-long": "a" * 2000}
        assert httpx.get(f"{gateway.url}/metrics", headers=long).status_code == 200


@pytest.mark.parametrize("trigger", [pytest.param("file", marks=pytest.mark.slow), "SIGHUP"])
def test_a_new_config_without_a_restart(
    upstream: ScriptedUpstream, tmp_path: Path, trigger: str
) -> None:
    """New requests go by the new config, running ones end on the old; a broken one is refused."""
    slow = Reply("word " * 60, chunk_delay_s=0.05)
    with ScriptedUpstream() as other, GatewayProcess(tmp_path, before(upstream)) as gateway:

        def change(config: str, name: str, count: int = 1) -> None:
            gateway.config.write_text(config)
            if trigger == "SIGHUP":
                gateway.process.send_signal(signal.SIGHUP)
            gateway.wait_for(name, count)

        with httpx.Client(base_url=gateway.base_url, timeout=120) as client:
            assert hear(client, json=HELLO).status == 200
            upstream.script(slow)
            with client.stream("POST", "/chat/completions", json=STREAMED) as running:
                chunks = running.iter_raw()
                next(chunks)
                change(before(other, auth={"gateway_keys": {"t": "gw-1"}}), "config reloaded")
                assert hear(client, json=HELLO).status == 401
                assert hear(client, json=HELLO, headers={"x-gateway-key": "gw-1"}).status == 200
                assert len(other.requests) == 1
                assert b"".join(chunks).endswith(b"data: [DONE]\n\n")
            later = {"storage": {"path": "elsewhere.db"}, "server": {"max_body_mb": 1}}
            keys = {"gateway_keys": {"t": "gw-1"}}
            change(before(other, auth=keys, **later), "some changes take effect at the next start")
            (waiting,) = gateway.events("some changes take effect at the next start")
            assert waiting["keys"] == ["storage"]
            change("server: {prot: 1}", "config not reloaded, the old one stays in use")
            assert hear(client, json=HELLO, headers={"x-gateway-key": "gw-1"}).status == 200
            assert len(other.requests) == 2
            more = {"gateway_keys": {"t": "gw-1", "u": "gw-2"}}
            change(before(other, auth=more), "config reloaded", 3)
            assert hear(client, json=HELLO, headers={"x-gateway-key": "gw-2"}).status == 200
            change(before(other), "config not reloaded, the old one stays in use", 2)
            assert hear(client, json=HELLO).status == 401
            metrics = client.get(f"{gateway.url}/metrics").text
        assert 'gateway_config_reloads_total{result="done"} 3.0' in metrics
        assert 'result="refused"' in metrics
        typo, removed = gateway.events("config not reloaded, the old one stays in use")
        assert typo["reason"].endswith("line 1: server.prot: unknown key; did you mean 'port'?")
        assert "may not remove auth.gateway_keys.t, auth.gateway_keys.u" in removed["reason"]
    upstream.wait_for_connections(0)


WHOLE = """\
server:
  trusted_hosts: []
default_upstream:
  api_base: {base}
  api_key: sk-of-the-operator
  provider_prefixes: false
model_list:
  - model_name: own
    litellm_params:
      model: openai/own
      api_base: {base}
      api_key: sk-of-the-deployment
budgets:
  - name: per-run
    scope: run
    limits: {{calls: 1000000}}
auth:
  admin_key: gw-admin-1234567890
  gateway_keys:
    a: gw-tenant-a-1234567890
    b: gw-tenant-b-1234567890
  rights:
    a:
      models: [own, m]
      routes: ["/chat/*"]
"""


@pytest.mark.slow
@pytest.mark.parametrize("unit", ["lines", "bytes"])
def test_a_config_that_was_cut_is_refused_or_loses_nothing(unit: str) -> None:
    """At every line and at every byte: an error, a removal, or everything that protects."""
    text = WHOLE.format(base="http://up.example/v1")
    whole = settings_from_dict(yaml.safe_load(text))
    cuts = text.splitlines(keepends=True) if unit == "lines" else list(text)
    refused = 0
    for count in range(len(cuts)):
        cut = "".join(cuts[:count])
        try:
            after = settings_from_dict(_read(cut))
        except (ConfigError, ValueError):
            refused += 1
            continue
        if removals(whole, after, {}):
            refused += 1
            continue
        assert after.auth == whole.auth
        assert after.default_upstream == whole.default_upstream
        assert [d.litellm_params for d in after.model_list] == [
            d.litellm_params for d in whole.model_list
        ]
    assert refused >= len(cuts) - 2  # but for the last line break
    assert removals(whole, whole, {}) == []


def _read(text: str) -> dict[str, Any]:
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
        file.write(text)
        file.flush()
        return read_file(file.name)


THEIRS = """\
environment_variables:
  PLACE: {base}
model_list:
  - model_name: m
    litellm_params:
      model: openai/m
      api_base: os.environ/PLACE
      api_key: os.environ/PROVIDER_KEY
router_settings:
  num_retries: 0
general_settings:
  master_key: gw-tenant-a-1234567890
"""
VARIABLES = """\
default_upstream:
  api_base: ${{PLACE}}
  api_key: os.environ/PROVIDER_KEY
budgets:
  - name: per-run
    scope: run
    limits:
      calls: 1000000
      tokens: 100000000
steering:
  mode: shadow
storage:
  store_content: false
auth:
  admin_key: os.environ/ADMIN
  gateway_keys:
    a: ${{TENANT}}
"""
_BAD = (
    *("- auth", "auth", "# auth: {}", "{}", "auth: {}", "\0", "\ufeff", "[" * 3000, "a: &a [*a]"),
    *("auth: {}\nauth: {}", "auth: {admin_key: 2024-13-45}", "auth:\n\tadmin_key: a", "auth: {"),
)
_REFUSED = "config not reloaded, the old one stays in use"


def _moved(text: str) -> str:
    """Everything from the last section on, within the one before it."""
    lines = text.splitlines(keepends=True)
    last = max(number for number, line in enumerate(lines) if line[0] not in " -")
    return "".join([*lines[:last], *(f"  {line}" for line in lines[last:])])


@pytest.mark.slow
@pytest.mark.parametrize("rounds", [1, pytest.param(3, marks=pytest.mark.nightly)])
@pytest.mark.parametrize("text", [WHOLE, THEIRS, VARIABLES], ids=["own", "litellm", "variables"])
def test_a_config_that_is_cut_under_load_opens_nothing(
    upstream: ScriptedUpstream, tmp_path: Path, text: str, rounds: int
) -> None:
    """Emptied, cut at each line, and written anew in place while clients call, seen by the watcher
    or with SIGHUP: no call without a key passes, none goes to another host, `/api` stays closed."""
    text = text.format(base=upstream.base_url)
    lines = text.splitlines(keepends=True)
    heard: dict[str, Counter[int]] = {name: Counter() for name in ("right", "none", "guess", "api")}
    done = threading.Event()
    with ScriptedUpstream() as elsewhere:
        env = {"OPENAI_BASE_URL": elsewhere.base_url, "PLACE": upstream.base_url}
        env["GATEWAY_AUTH__WRONG_KEYS_PER_MINUTE"] = "0"
        env |= {"ADMIN": "gw-admin-1234567890", "TENANT": "gw-tenant-a-1234567890"}
        with GatewayProcess(tmp_path, text, env={**env, "PROVIDER_KEY": "sk-provider"}) as gateway:

            def ask() -> None:
                keys = {"none": "", "right": "gw-tenant-a-1234567890", "guess": "os.env"}
                with httpx.Client(base_url=gateway.url, timeout=120) as client:
                    while not done.is_set():
                        for name, key in keys.items():
                            headers = {"x-gateway-key": key} if key else {}
                            answer = client.post(
                                "/v1/chat/completions", json=HELLO, headers=headers
                            )
                            heard[name][answer.status_code] += 1
                        heard["api"][client.get("/api/runs").status_code] += 1

            def write(content: str, *, told: bool = True) -> None:
                count = len(gateway.events(_REFUSED))
                gateway.config.write_text(content)
                if told:
                    gateway.process.send_signal(signal.SIGHUP)
                gateway.wait_for(_REFUSED, count + 1)

            callers = [threading.Thread(target=ask) for _ in range(2)]
            for caller in callers:
                caller.start()
            try:
                for count in range(len(lines)):
                    write("".join(lines[:count]), told=count % 6 > 0)
                for bad in (*_BAD, _moved(text)):
                    write(bad)
                for count in [*range(len(lines)), len(lines)] * rounds:
                    gateway.config.write_text("".join(lines[:count]))
                    gateway.process.send_signal(signal.SIGHUP)
                    time.sleep(0.01)
                # No line follows for what is as before; that it was read shows in what follows it.
                gateway.config.write_text(f"{text}logging: {{level: debug}}\n")
                gateway.wait_for("config reloaded")
            finally:
                done.set()
                for caller in callers:
                    caller.join()
        assert not elsewhere.requests
    assert set(heard["right"]) == {200}
    assert [set(heard[name]) for name in ("none", "guess", "api")] == [{401}] * 3
    assert len(upstream.requests) == heard["right"][200]


@pytest.mark.slow
async def test_patterns_switched_on_wait_for_the_next_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Their store and embedder are opened at the start; nobody should wait for guidance in vain."""
    storage = {"storage": {"path": ":memory:"}}
    runtime = Runtime(settings_from_dict({**storage, "etraces": {"enabled": False}}))
    await runtime.start()
    told: list[Any] = []
    monkeypatch.setattr(runtime, "log", Mock(warning=lambda _, **details: told.append(details)))
    assert runtime.replace(lambda: settings_from_dict(storage))
    await runtime.aclose()
    assert told == [{"keys": ["etraces.enabled"]}]


@pytest.mark.slow
def test_models_whose_price_a_budget_in_dollars_guesses_are_named(tmp_path: Path) -> None:
    """At the start, with what to set; a model with a price of its own is not among them."""
    here = {"api_base": "http://127.0.0.1:9/v1", "model": "openai/nobody-knows-it"}
    priced = {**here, "input_cost_per_token": 1e-6, "output_cost_per_token": 2e-6}
    config = {
        "model_list": [
            {"model_name": "mine", "litellm_params": here},
            {"model_name": "known", "litellm_params": priced},
        ],
        "budgets": [{"name": "b", "scope": "run", "limits": {"usd": 1}}],
    }
    with GatewayProcess(tmp_path, json.dumps(config)) as gateway:
        said = gateway.wait_for("budgets in dollars do not know the price of some models")
    (doubt,) = said["models"]
    assert doubt == (
        "model_list (mine): no price is known of 'mine'; budgets in dollars count it as $3.00 for "
        "a million tokens"
    )


@pytest.mark.slow
def test_a_config_file_that_vanishes_changes_nothing(
    upstream: ScriptedUpstream, tmp_path: Path
) -> None:
    """Editors write a new file and remove the old one: in between the settings stay."""
    with GatewayProcess(tmp_path, before(upstream)) as gateway:
        gateway.config.unlink()
        refusal = gateway.wait_for("config not reloaded, the old one stays in use")
        assert "cannot be read: No such file" in refusal["reason"]
        with httpx.Client(base_url=gateway.base_url) as client:
            assert hear(client, json=HELLO).status == 200


def test_it_does_not_start_before_itself(tmp_path: Path) -> None:
    """`OPENAI_BASE_URL` inherited from the agents' environment: one line, status 2."""
    env = {"OPENAI_BASE_URL": "http://localhost:8199/v1"}
    ended = run("serve", "--port", "8199", directory=tmp_path, env=env)
    assert ended.returncode == 2
    assert ended.stderr.startswith(
        "gateway: default_upstream.api_base: http://localhost:8199/v1 is"
    )
    assert "OPENAI_BASE_URL" in ended.stderr
    assert ended.stderr.count("\n") == 1


@pytest.mark.slow
def test_a_start_that_fails_says_why_and_ends(tmp_path: Path) -> None:
    """A store that cannot be opened, an address that is taken: no traceback, not status 0."""
    (tmp_path / "taken").write_text("not a database " * 100)
    ended = run("serve", "--port", "0", directory=tmp_path, env={"GATEWAY_STORAGE__PATH": "taken"})
    assert ended.returncode == 1
    assert "taken" in ended.stderr
    assert "listening" not in ended.stderr
    assert "Traceback" not in ended.stderr
    with ScriptedUpstream() as holder:
        ended = run("serve", "--port", str(holder.port), directory=tmp_path)
        assert ended.returncode == 2
        assert f"server: cannot listen on 127.0.0.1:{holder.port}: Address already" in ended.stderr


@pytest.mark.parametrize(
    ("config", "status", "says"),
    [
        ("server: {port: 9000}", 0, "gateway.yaml: ok"),
        ("server: {prot: 1}", 2, "server.prot: unknown key; did you mean 'port'?"),
        ("server: {", 2, "gateway.yaml, line 1"),
        (
            "model_list: [{model_name: a, lane: native, litellm_params: {model: anthropic/x}}]",
            2,
            "model_list[0]: 'a' takes the native lane and has no api_base",
        ),
        ("default_upstream: {api_base: 'http://127.0.0.1:8080/v1'}", 2, "is this gateway itself"),
        ("router_settings: {routing_strategy: x}", 0, "router_settings.routing_strategy"),
    ],
)
def test_check_config(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], config: str, status: int, says: str
) -> None:
    """It says what `serve` would say, without serving, for people and for machines."""
    file = tmp_path / "gateway.yaml"
    file.write_text(config)
    assert main(["check-config", "--config", str(file)]) == status
    told = capsys.readouterr()
    assert says in told.out
    assert not told.err
    assert main(["check-config", "--json", "--config", str(file)]) == status
    report = json.loads(capsys.readouterr().out)
    assert report["ok"] is (status == 0)
    assert says in f"{report['problem']} {report['ignored']} gateway.yaml: ok"


@pytest.mark.parametrize(
    ("config", "says"),
    [
        (
            "model_list: [{model_name: small, litellm_params: {model: openai/x}}]\n"
            "model_routing: {FAST: smal}",
            "model_routing.FAST: no deployment of model_list serves 'smal': it is asked of "
            "https://api.openai.com/v1 with the client's own key; did you mean 'small'?",
        ),
        (
            "default_upstream: {api_key: sk-d}\nmodel_routing_by_model: {big: {SLOW: huge}}",
            "model_routing_by_model.big.SLOW: no deployment of model_list serves 'huge': it is "
            "asked of https://api.openai.com/v1 with default_upstream.api_key",
        ),
        (
            "router: {fallbacks: [{big: [other]}]}",
            "router.fallbacks[0].big: no deployment of model_list serves 'other': it is asked of "
            "https://api.openai.com/v1 with the client's own key",
        ),
        ("auth: {admin_key: sk-1234}", "auth.admin_key: 7 characters can be guessed; use 16"),
        (
            "default_upstream: {chatgpt_api_base: 'http://proxy.example/chatgpt'}",
            "default_upstream: clients' own credentials go to "
            "http://proxy.example/chatgpt without TLS",
        ),
        (
            "default_upstream: {api_base: 'http://proxy.example/v1'}",
            "default_upstream: clients' own credentials go to http://proxy.example/v1 without TLS",
        ),
        (
            "model_list: [{model_name: small, forward_client_key: true, litellm_params: {model: "
            "openai/x, api_base: 'http://10.0.0.9/v1'}}]",
            "model_list[0]: clients' own credentials go to http://10.0.0.9/v1 without TLS",
        ),
        (
            "auth: {gateway_keys: {acme: abababababababababab}}",
            "auth.gateway_keys.acme: few different characters can be guessed",
        ),
    ],
)
def test_check_config_warns(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], config: str, says: str
) -> None:
    """Doubtful settings are named by their line and key path; the config is still accepted."""
    file = tmp_path / "gateway.yaml"
    file.write_text(config)
    assert main(["check-config", "--config", str(file)]) == 0
    printed = capsys.readouterr().out
    assert re.search(rf"^warning: {file}, line \d: {re.escape(says)}", printed, re.MULTILINE)
    assert printed.endswith("gateway.yaml: ok\n")
    assert main(["check-config", "--json", "--config", str(file)]) == 0
    (warning,) = json.loads(capsys.readouterr().out)["warnings"]
    assert warning.split(": ", 1)[1].startswith(says)
    assert "sk-1234" not in printed
    assert "abab" not in printed


def test_check_config_accepts_what_is_as_it_should_be(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Deployed models and random keys are not mentioned; an admin key may be a gateway key."""
    file = tmp_path / "gateway.yaml"
    key = "gw-Zk3vP0q9TnW7xYc5"
    file.write_text(
        "model_list: [{model_name: small, litellm_params: {model: openai/x}}]\n"
        "model_routing: {FAST: small, SLOW: anthropic/claude-x}\n"
        "default_upstream: {api_base: 'http://127.0.0.1:9/v1', provider_prefixes: true}\n"
        f"auth: {{admin_key: {key}, gateway_keys: {{acme: {key}, other: {key}2}}}}\n"
    )
    assert main(["check-config", "--json", "--config", str(file)]) == 0
    assert json.loads(capsys.readouterr().out)["warnings"] == []


@pytest.mark.parametrize(
    ("config", "says"),
    [
        (
            "auth: {gateway_keys: {acme: one-long-key-of-both, zeta: one-long-key-of-both}}",
            "auth.gateway_keys.zeta: the same key as that of 'acme'",
        ),
        ("storage: {path: gateway.yaml/gateway.db}", "gateway.yaml' is a file, not a folder"),
        ("storage: {path: ../..}", "storage.path: '../..' is a folder, not a file"),
    ],
)
def test_a_shared_key_and_a_wrong_storage_path_are_refused(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    config: str,
    says: str,
) -> None:
    """By `check-config` and by `serve`, before anything is opened."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "gateway.yaml").write_text(config)
    assert main(["check-config", "--config", "gateway.yaml"]) == 2
    assert says in capsys.readouterr().out
    assert main(["serve", "--config", "gateway.yaml", "--port", "0"]) == 2
    assert says in capsys.readouterr().err


@pytest.mark.skipif(os.geteuid() == 0, reason="the superuser may write everywhere")
def test_a_storage_path_without_permission_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The folder is named, which is created with the file's journal in it."""
    folder = tmp_path / "read-only"
    folder.mkdir(mode=0o500)
    file = tmp_path / "gateway.yaml"
    file.write_text(f"storage: {{path: {folder}/runs/gateway.db}}")
    assert main(["check-config", "--config", str(file)]) == 2
    assert f"storage.path: '{folder}' cannot be written" in capsys.readouterr().out


def test_what_is_not_understood_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Wrong usage and a missing file end with status 2 and one line that helps."""
    monkeypatch.chdir(tmp_path)
    assert main(["check-config", "--config", "nothing.yaml"]) == 2
    assert "nothing.yaml: cannot be read" in capsys.readouterr().out
    assert main(["check-config"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "defaults: ok"
    with pytest.raises(SystemExit) as ended:
        main(["sevre"])
    assert ended.value.code == 2
    assert "serve" in capsys.readouterr().err


def test_without_its_libraries_it_says_how_to_get_them() -> None:
    """A fresh clone that was not set up: one line in place of a traceback."""
    ended = subprocess.run(
        [sys.executable, "-S", "-m", "gateway", "serve"],
        cwd=ROOT,
        env={"PATH": os.environ["PATH"]},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 1
    assert "is not installed" in ended.stderr
    assert "make install" in ended.stderr
    assert ended.stderr.count("\n") == 1
