"""Bills for requests in the forms of agents: the gateway's sums are those of the host's ledger.

The forms are those of the newest agents; `test_paid.py` runs the agents themselves.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx
import pytest

from steering_gateway_testing import AppServer, Fault, FaultKind, Reply, ScriptedUpstream
from steering_gateway_testing.looping import STEERING, Start
from steering_gateway_testing.patience import ANSWER_S, until
from tests.clients.billing import TASK, BillingHost
from tests.examples import by_day

Asked = tuple[str, Mapping[str, str], Mapping[str, Any]]
"""Path, headers and body of a request."""

CODEX = json.loads((Path(__file__).parents[1] / "dialects/codex_body.json").read_text())
SAID = [{"role": "user", "content": TASK}]
PARTS = [{"role": "user", "parts": [{"text": TASK}]}]
TITLE = [{"role": "system", "content": "Generate a title for this conversation."}, *SAID]
BASH = {"type": "function", "function": {"name": "bash", "parameters": {"type": "object"}}}
CLAUDE = {"name": "Bash", "description": "a shell", "input_schema": {"type": "object"}}
GEMINI = {"functionDeclarations": [{"name": "run_shell_command"}]}
OPENCODE = {"x-session-id": "ses_1", "user-agent": "opencode/1.18.33"}
CLAUDE_CODE = {
    "x-claude-code-session-id": "c0ffee00-0000-4000-8000-000000000001",
    "anthropic-version": "2023-06-01",
    "user-agent": "claude-cli/2.1.332 (external, cli)",
}
KEYS = {"authorization": "Bearer sk-client", "x-api-key": "sk", "x-goog-api-key": "sk"}
FORMS: Mapping[str, tuple[Asked, ...]] = {
    "codex": (("/v1/responses", {}, {**CODEX, "model": "gpt-5.4"}),),
    "claude code with its title": (
        (
            "/v1/messages?beta=true",
            CLAUDE_CODE,
            {"model": "claude-opus-4-8", "max_tokens": 512, "stream": True, "messages": SAID},
        ),
        (
            "/v1/messages?beta=true",
            CLAUDE_CODE,
            {
                "model": "claude-opus-4-8",
                "max_tokens": 512,
                "stream": True,
                "messages": SAID,
                "tools": [CLAUDE],
            },
        ),
    ),
    "opencode with its title": (
        (
            "/v1/chat/completions",
            OPENCODE,
            {"model": "gpt-5.4", "stream": True, "messages": TITLE},
        ),
        (
            "/v1/chat/completions",
            OPENCODE,
            {"model": "gpt-5.4", "stream": True, "messages": SAID, "tools": [BASH]},
        ),
    ),
    "mini-swe-agent": (
        ("/v1/chat/completions", {}, {"model": "gpt-5.4", "messages": SAID, "tools": [BASH]}),
    ),
    "aider": (
        (
            "/v1/chat/completions",
            {},
            {
                "model": "gpt-5.4",
                "messages": SAID,
                "stream": True,
                "stream_options": {"include_usage": True},
            },
        ),
    ),
    "gemini with its classifier": (
        (
            "/v1beta/models/gemini-2.5-flash-lite:generateContent",
            {},
            {"contents": PARTS, "generationConfig": {"responseMimeType": "application/json"}},
        ),
        (
            "/v1beta/models/gemini-2.5-pro:streamGenerateContent?alt=sse",
            {},
            {"contents": PARTS, "tools": [GEMINI]},
        ),
    ),
}


def told(server: AppServer) -> dict[str, dict[str, float]]:
    """The sums of the runs, and of the usage by client."""
    with httpx.Client(base_url=server.url, timeout=ANSWER_S) as client:
        runs = [run["totals"] for run in client.get("/api/runs").json()["runs"]]
        groups = client.get("/api/usage?by=agent").json()["groups"]
    found = {"runs": runs, "usage": [group["sums"] for group in groups]}
    return {
        name: {
            "calls": sum(row["calls"] - row["errors"] for row in rows),
            "cached_tokens": sum(row["cached_tokens"] for row in rows),
            "tokens": sum(row["input_tokens"] + row["output_tokens"] for row in rows),
            "cost_usd": sum(row["cost_usd"] or 0.0 for row in rows),
        }
        for name, rows in found.items()
    }


@pytest.mark.parametrize("fast", [False, True], ids=["usual", "fast"])
@pytest.mark.parametrize("form", by_day(FORMS, 4))
def test_a_form_is_billed_as_its_host_bills_it(
    gateway_server: Start, upstream: ScriptedUpstream, form: str, fast: bool
) -> None:
    """Titles and classifiers, thoughts, tokens written to the cache for an hour and a dearer class
    of service among them, and a 429 that the gateway tries again."""
    host = upstream.default = BillingHost(plain=form == "aider", fast=fast)
    own = {"default_upstream": _base(upstream), "router": {"backoff_s": 0}}
    server = gateway_server({**STEERING, **own})
    with httpx.Client(base_url=server.url, timeout=ANSWER_S) as client:
        for path, headers, body in (*FORMS[form], FORMS[form][-1]):
            answer = client.post(path, headers={**KEYS, **headers}, json=body)
            assert answer.status_code == 200, answer.text
    owed = host.owed()
    assert (owed["calls"], host.refused) == (len(FORMS[form]) + 1, 1)
    assert owed["cost_usd"] > 0
    for place, sums in told(server).items():
        assert sums == pytest.approx(owed, rel=1e-9), place


@pytest.mark.parametrize("form", [name for name in FORMS if name != "mini-swe-agent"])
def test_an_answer_that_breaks_off_is_in_the_sums_as_an_estimate(
    gateway_server: Start, upstream: ScriptedUpstream, form: str
) -> None:
    """Its host takes money for what it has read and said, and reported nothing, or not all."""
    upstream.default = Fault(FaultKind.DROP_MID_BODY, after=6, reply=Reply("Let me look at this."))
    server = gateway_server({**STEERING, "default_upstream": _base(upstream)})
    path, headers, body = FORMS[form][-1]
    with (
        httpx.Client(base_url=server.url, timeout=ANSWER_S) as client,
        contextlib.suppress(httpx.RemoteProtocolError),
    ):
        client.post(path, headers={**KEYS, **headers}, json=body)
    (totals,) = until(lambda: [found for found in _runs(server) if found["calls"]])
    assert (totals["errors"], totals["unpriced_calls"]) == (1, 0)
    guess = totals["estimated"]
    assert guess["calls"] == 1
    assert 0 < guess["tokens"] == totals["input_tokens"] + totals["output_tokens"]
    assert totals["output_tokens"] > 0
    assert 0 < guess["cost_usd"] == pytest.approx(totals["cost_usd"])


def _runs(server: AppServer) -> list[dict[str, Any]]:
    runs = httpx.get(f"{server.url}/api/runs", timeout=ANSWER_S).json()["runs"]
    return [run["totals"] for run in runs]


def _base(upstream: ScriptedUpstream) -> dict[str, str]:
    return {"api_base": upstream.base_url, "gemini_api_base": upstream.url}
