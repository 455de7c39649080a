"""After a summary of its history a run is given the rules of its project once more."""

from __future__ import annotations

import asyncio
import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gateway.backends import open_stores
from gateway.config.storage import StorageSettings
from gateway.steering.guidance.lessons import STATED
from gateway.stores.learning import Posterior
from steering_gateway_testing import AppServer, Reply, ScriptedUpstream
from steering_gateway_testing.agents import PLAIN
from steering_gateway_testing.looping import looping_model
from tests.dialects.test_compaction import SUMMARY
from tests.dialects.test_summaries import AGENTS, Json, ask, chat, qwen
from tests.features.learning.test_rules import RULE, rules, taught

Start = Callable[..., AppServer]
HERE = "Do.\\nWorking directory: /home/ann/shop"
QWEN = {"x-qwen-code-session-id": "s-1"}
CLIENTS = {**AGENTS, "qwen, named": ("chat/completions", chat, QWEN, qwen)}
STEPS = 3


def placed(body: Json) -> Json:
    """The request of an agent that names its folder."""
    text = json.dumps(body).replace('"Do."', f'"{HERE}"')
    found: Json = json.loads(text)
    return found


async def always_given(path: Path, tenant: str = "default") -> None:
    """A project with one rule, which no draw holds back."""
    await taught(path, (RULE,), tenant)
    stores = await open_stores(StorageSettings(path=str(path)))
    (rule,) = await rules(stores)
    where = (tenant, rule.pattern.pattern_id, 1)
    await stores.learning.put_posterior(*where, posterior=Posterior(share=1.0), at=3.0)
    await stores.close()


@pytest.fixture
def gateway(gateway_server: Start, upstream: ScriptedUpstream, tmp_path: Path) -> AppServer:
    upstream.default = looping_model(99)
    path = tmp_path / "runs.db"
    asyncio.run(always_given(path))
    learning = {"trials": "on", "interval_s": 3600}
    return gateway_server({**PLAIN, "storage": {"path": str(path)}, "learning": learning})


def sent(upstream: ScriptedUpstream) -> str:
    """The newest request as the provider got it."""
    return json.dumps(upstream.last.json)


def before_newest(body: str) -> str:
    """A request up to the end of its newest rule."""
    return body[: body.rindex(STATED) + len(STATED)]


@pytest.mark.parametrize("client", CLIENTS)
def test_rules_are_given_once_more_after_a_summary(
    gateway: AppServer, upstream: ScriptedUpstream, client: str
) -> None:
    """Whatever way the client asks for the summary: in the first call that goes on from it, and
    with the same bytes from then on; the request for the summary gets none at its end."""
    path, build, headers, asking = CLIENTS[client]

    def call(steps: int, opening: str) -> str:
        ask(gateway, path, placed(build(steps, opening)), headers)
        return sent(upstream)

    before = [call(step, "Repair it.") for step in range(STEPS)]
    assert [body.count(STATED) for body in before] == [1] * STEPS
    upstream.script(Reply(SUMMARY))
    ask(gateway, path, asking(copy.deepcopy(placed(build(STEPS, "Repair it.")))), headers)
    assert sent(upstream).count(STATED) <= 1
    after = [call(step, SUMMARY) for step in range(3)]
    again = 2 if headers else 1  # without an id it is another conversation, which begins
    assert [body.count(STATED) for body in after] == [again] * 3
    assert len({before_newest(body) for body in after}) == 1, "the prefix of the prompt stays"
    if again == 2:
        assert "working directory" in after[0][: after[0].rindex(STATED)].lower()


@pytest.mark.parametrize("headers", [{}, QWEN], ids=["gemini", "qwen"])
def test_rules_are_given_after_an_acknowledged_summary(
    gateway: AppServer, upstream: ScriptedUpstream, headers: Json
) -> None:
    """Gemini CLI and Qwen Code put an answer behind the summary that no model gave."""
    path = "chat/completions"
    for step in range(STEPS):
        ask(gateway, path, placed(chat(step, "Repair it.")), headers)
    upstream.script(Reply(SUMMARY))
    ask(gateway, path, qwen(placed(chat(STEPS, "Repair it."))), headers)
    kept = chat(STEPS, "Repair it.")["messages"][-2:]
    for step in range(2):
        body = placed(chat(step, SUMMARY))
        known = {"role": "assistant", "content": "Got it. Thanks for the additional context!"}
        body["messages"][2:2] = [known, *kept]
        ask(gateway, path, body, headers)
        assert sent(upstream).count(STATED) == (2 if headers else 1)


def test_a_second_summary_has_them_once_more(
    gateway: AppServer, upstream: ScriptedUpstream
) -> None:
    """Once for each, and the block of the first goes with the history that it stood in."""
    path, build, headers, asking = CLIENTS["claude"]
    ask(gateway, path, placed(build(0, "Repair it.")), headers)
    for number in range(2):
        opening = ("Repair it.", SUMMARY)[number > 0]
        ask(gateway, path, placed(build(1, opening)), headers)
        summary = f"{SUMMARY}\nFor the time {number}."
        upstream.script(Reply(summary))
        ask(gateway, path, asking(placed(build(2, opening))), headers)
        ask(gateway, path, placed(build(0, SUMMARY)), headers)
        assert sent(upstream).count(STATED) == 2


def test_an_item_that_stands_for_the_history_is_a_summary(
    gateway: AppServer, upstream: ScriptedUpstream
) -> None:
    """Codex has its own provider compact the history on another route, which is passed through."""
    path, build, headers, _ = CLIENTS["codex"]
    for step in range(STEPS):
        ask(gateway, path, placed(build(step, "Repair it.")), headers)
    for step in range(2):
        body = placed(build(step, "Repair it."))
        body["input"].insert(2, {"type": "compaction", "encrypted_content": "opaque"})
        ask(gateway, path, body, headers)
        assert sent(upstream).count(STATED) == 2


@pytest.mark.parametrize("opening", ["Look at the parser, please.", "Start."])
def test_a_history_that_is_only_shorter_gets_nothing_more(
    gateway: AppServer, upstream: ScriptedUpstream, opening: str
) -> None:
    """A client that leaves out old turns at every call would be given the rules at every call."""
    path, build, headers, _ = CLIENTS["claude"]
    for step in range(STEPS):
        ask(gateway, path, placed(build(step, "Repair it.")), headers)
    for step in (1, 2):
        body: dict[str, Any] = placed(build(step, opening))
        assert ask(gateway, path, body, headers).headers["x-gateway-identity"]
        assert sent(upstream).count(STATED) == 1
