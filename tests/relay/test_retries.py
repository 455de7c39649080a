"""Balancing, retries and fallbacks: who is asked, how often, and what the client is told."""

from __future__ import annotations

import itertools
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from email.utils import formatdate
from pathlib import Path
from typing import Any

import httpx
import pytest

from gateway.config.base_url import base_url
from gateway.upstream.deployments import Target
from gateway.upstream.retries import may_help
from steering_gateway_testing import Fault, FaultKind, Reply, ScriptedUpstream, closed_port
from steering_gateway_testing.gateways import a_gateway, replace_settings
from steering_gateway_testing.hearing import HELLO, STREAMED, hear
from tests.examples import by_day

Relay = Callable[..., httpx.Client]
DOWN = Fault(FaultKind.SERVER_ERROR)


@pytest.fixture
def two() -> Iterator[tuple[ScriptedUpstream, ScriptedUpstream]]:
    """Two providers beside the default one."""
    with ExitStack() as stack:
        yield (
            stack.enter_context(ScriptedUpstream(Reply("from the first"))),
            stack.enter_context(ScriptedUpstream(Reply("from the second"))),
        )


def hello(number: int, **more: Any) -> dict[str, Any]:
    """A request that begins a conversation of its own; each keeps its deployment."""
    return {**HELLO, "messages": [{"role": "user", "content": f"call {number}"}], **more}


def deployments(*servers: ScriptedUpstream, name: str = "m", **more: Any) -> list[dict[str, Any]]:
    return [
        {
            "model_name": name,
            "litellm_params": {"model": "openai/x", "api_base": s.base_url, **more},
        }
        for s in servers
    ]


@pytest.mark.parametrize("status", by_day([408, 425, 429, 500, 502, 503, 504, 520, 524, 529], 3))
@pytest.mark.parametrize("body", [HELLO, STREAMED], ids=["whole", "stream"])
def test_a_passing_failure_is_not_seen(
    upstream: ScriptedUpstream, relay: Relay, body: dict[str, Any], status: int
) -> None:
    """Two failures and a success: the client gets the success, and the attempts are told."""
    passing = Fault(FaultKind.UNAVAILABLE, times=2, status=status, retry_after="0")
    upstream.script(passing, Reply("well"))
    heard = hear(relay(), json=body)
    assert heard.status == 200
    assert b"well" in heard.body
    assert heard.headers["x-gateway-attempts"] == "3"
    assert len(upstream.requests) == 3
    assert len({r.body for r in upstream.requests}) == 1


def test_a_dropped_connection_is_repeated(upstream: ScriptedUpstream, relay: Relay) -> None:
    """Also one that was open before: the provider may have closed it meanwhile."""
    client = relay()
    assert hear(client, json=HELLO).status == 200
    upstream.script(Fault(FaultKind.DROP_BEFORE_RESPONSE), Reply("well"))
    assert hear(client, json=HELLO).headers["x-gateway-attempts"] == "2"


@pytest.mark.parametrize("status", [400, 401, 403, 404, 409, 422])
def test_what_cannot_get_better_is_not_repeated(
    upstream: ScriptedUpstream, relay: Relay, status: int
) -> None:
    """The request itself is wrong: asked once, told as it is."""
    upstream.script(Fault(FaultKind.BAD_REQUEST, status=status))
    heard = hear(relay(), json=HELLO)
    assert (heard.status, len(upstream.requests)) == (status, 1)
    assert heard.headers["x-gateway-attempts"] == "1"


@pytest.mark.parametrize("lane", ["native", "litellm"])
@pytest.mark.parametrize(
    ("status", "asked"),
    by_day(
        [
            *((status, [1, 0]) for status in (400, 409, 413)),
            *((status, [2, 1]) for status in (408, 425, 429, 500, 503, 529)),
            *((status, [1, 1]) for status in (501, 505)),
            *((status, [1, 1]) for status in (401, 403, 404)),
        ],
        5,
    ),
)
def test_both_lanes_ask_again_after_the_same_answers(
    two: tuple[ScriptedUpstream, ScriptedUpstream],
    relay: Relay,
    lane: str,
    status: int,
    asked: list[int],
) -> None:
    """The same target once more, a fallback, both or none: by the status alone."""
    two[0].default = Fault(FaultKind.UNAVAILABLE, status=status, retry_after="0")
    made = [*deployments(two[0], api_key="k"), *deployments(two[1], name="spare")]
    listed = [{**made[0], "lane": lane}, made[1]]
    router = {"fallbacks": [{"m": ["spare"]}], "num_retries": 1}
    hear(relay({"model_list": listed, "router": router}), json=HELLO)
    assert [len(server.requests) for server in two] == asked


def test_retry_after_is_honoured(upstream: ScriptedUpstream, relay: Relay) -> None:
    """The pause the upstream asks for is made before asking again."""
    upstream.script(Fault(FaultKind.RATE_LIMIT, retry_after="0.3"), Reply("well"))
    assert hear(relay(), json=HELLO).status == 200
    first, second = upstream.requests
    # A loop may wake a little before the time that it was asked for.
    assert second.received_at - first.received_at >= 0.29


def test_retry_after_holds_while_another_deployment_is_asked(
    two: tuple[ScriptedUpstream, ScriptedUpstream], relay: Relay
) -> None:
    """The pause that the first of two asked for is made before its second turn, less the time
    since."""
    limited, down = two
    limited.script(Fault(FaultKind.RATE_LIMIT, retry_after="0.5"), Reply("well"))
    down.default = DOWN
    made = deployments(limited, down)
    made[1]["litellm_params"]["weight"] = 1e-9  # asked second
    router = {"backoff_s": 600}  # for an attempt that follows at once, which none does
    assert hear(relay({"model_list": made, "router": router}), json=HELLO).status == 200
    first, second = limited.requests
    assert second.received_at - first.received_at >= 0.49
    assert len(down.requests) == 1


@pytest.mark.parametrize(("status", "asked"), [(429, "60"), (501, None)])
def test_a_deployment_that_is_not_to_be_asked_again_has_no_second_turn(
    two: tuple[ScriptedUpstream, ScriptedUpstream], relay: Relay, status: int, asked: str | None
) -> None:
    """It asked for more than `router.max_retry_after_s`, or cannot answer otherwise: the answer of
    the other is passed on."""
    first, down = two
    first.default = Fault(FaultKind.UNAVAILABLE, status=status, retry_after=asked)
    down.default = DOWN
    made = deployments(first, down)
    made[1]["litellm_params"]["weight"] = 1e-9
    heard = hear(relay({"model_list": made}), json=HELLO)
    assert (len(first.requests), len(down.requests), heard.status) == (1, 1, 500)


def test_a_long_retry_after_is_the_clients_to_wait(
    upstream: ScriptedUpstream, relay: Relay
) -> None:
    """Above `router.max_retry_after_s` the answer is passed on at once."""
    upstream.default = Fault(FaultKind.RATE_LIMIT, retry_after="60")
    heard = hear(relay(), json=HELLO)
    assert (heard.status, heard.headers["retry-after"]) == (429, "60")
    assert len(upstream.requests) == 1


def test_a_retry_after_may_be_a_date(upstream: ScriptedUpstream, relay: Relay) -> None:
    """A date far ahead is the client's to wait for, one that has passed is no wait."""
    ahead = formatdate(time.time() + 3600, usegmt=True)
    upstream.script(Fault(FaultKind.RATE_LIMIT, retry_after=ahead))
    heard = hear(relay(), json=HELLO)
    assert (heard.status, heard.headers["retry-after"]) == (429, ahead)
    assert len(upstream.requests) == 1
    passed = formatdate(time.time() - 3600, usegmt=True)
    upstream.script(Fault(FaultKind.UNAVAILABLE, retry_after=passed), Reply("well"))
    assert hear(relay({"router": {"backoff_s": 600}}), json=HELLO).status == 200


def test_attempts_are_told_when_none_succeeded(upstream: ScriptedUpstream, relay: Relay) -> None:
    """Also by the gateway's own error."""
    upstream.default = Fault(FaultKind.DROP_BEFORE_RESPONSE)
    heard = hear(relay(), json=HELLO)
    assert (heard.status, heard.headers["x-gateway-attempts"]) == (502, "3")


@pytest.mark.parametrize("said", ["soon", "", "nan", "inf", "-5", "Wed, 21 Oct 2026 07:28:00 GMT"])
def test_a_senseless_retry_after_does_no_harm(
    upstream: ScriptedUpstream, relay: Relay, said: str
) -> None:
    """What is no number of seconds is not waited for."""
    upstream.script(Fault(FaultKind.RATE_LIMIT, retry_after=said), Reply("well"))
    assert hear(relay(), json=HELLO).status in (200, 429)


def test_no_retries_when_told_so(upstream: ScriptedUpstream, relay: Relay) -> None:
    """`router.num_retries: 0` asks once."""
    upstream.default = DOWN
    assert hear(relay({"router": {"num_retries": 0}}), json=HELLO).status == 500
    assert len(upstream.requests) == 1


def test_deployments_of_one_name_share_the_work(
    two: tuple[ScriptedUpstream, ScriptedUpstream], relay: Relay
) -> None:
    """Conversation by conversation: evenly without weights, in proportion with them."""
    weighted = deployments(*two, name="w")
    weighted[0]["litellm_params"]["weight"] = 3
    client = relay({"model_list": [*deployments(*two), *weighted]})
    for number in range(60):
        hear(client, json=hello(number))
    even = [len(s.requests) for s in two]
    for number in range(60):
        hear(client, json=hello(number, model="w"))
    first, second = (len(s.requests) - n for s, n in zip(two, even, strict=True))
    assert min(even) >= 12  # an even share of 60 is 30, with a standard deviation of 4
    assert first >= 30  # three quarters are 45, with a standard deviation of 3.4
    assert second >= 2


def test_a_failing_deployment_is_relieved_by_the_other(
    two: tuple[ScriptedUpstream, ScriptedUpstream], relay: Relay
) -> None:
    """Each request is served, at the second attempt where need be; then the failing one rests."""
    two[0].default = DOWN
    router = {"allowed_fails": 2, "cooldown_s": 60, "num_retries": 1}
    client = relay({"model_list": deployments(*two), "router": router})
    answers = [hear(client, json=hello(number)) for number in range(30)]
    assert {a.status for a in answers} == {200}
    assert len(two[0].requests) == 2
    assert len(two[1].requests) == 30


def test_a_rested_deployment_comes_back(
    two: tuple[ScriptedUpstream, ScriptedUpstream], relay: Relay
) -> None:
    """It is passed over for `router.cooldown_s`, then asked again."""
    two[0].script(DOWN)
    rest_s = 0.2
    router = {"allowed_fails": 1, "cooldown_s": rest_s}
    client = relay({"model_list": deployments(*two), "router": router})
    deadline = time.monotonic() + 120
    for number in itertools.count():
        if len(two[0].requests) >= 2:
            break
        assert time.monotonic() < deadline
        assert hear(client, json=hello(number)).status == 200
    failed, again = two[0].requests
    assert again.received_at - failed.received_at >= rest_s


def test_a_reload_does_not_wake_a_deployment(
    two: tuple[ScriptedUpstream, ScriptedUpstream], upstream: ScriptedUpstream, tmp_path: Path
) -> None:
    """Two that failed twice before it are not asked after it, while a third is awake."""
    for server in two:
        server.default = DOWN
    router = {"allowed_fails": 2, "cooldown_s": 600, "num_retries": 1}
    settings = {"model_list": deployments(*two), "router": router}
    listed = [d for server in (*two, upstream) for d in deployments(server)]
    with (
        a_gateway(upstream.base_url, tmp_path, settings) as gateway,
        httpx.Client(base_url=gateway.base_url, timeout=120) as client,
    ):
        for number in range(2):
            assert hear(client, json=hello(number)).status == 500
        replace_settings(gateway, {**settings, "model_list": listed})
        for number in range(12):
            assert hear(client, json=hello(number)).headers["x-gateway-attempts"] == "1"
    assert [len(server.requests) for server in two] == [2, 2]


def test_with_all_deployments_resting_they_are_asked_all_the_same(
    two: tuple[ScriptedUpstream, ScriptedUpstream], relay: Relay
) -> None:
    """A rest is a preference: when nobody else is left, the request still goes out."""
    for server in two:
        server.default = DOWN
    router = {"allowed_fails": 1, "cooldown_s": 60, "num_retries": 0}
    client = relay({"model_list": deployments(*two), "router": router})
    assert hear(client, json=HELLO).status == 500
    two[1].default = Reply("well")
    assert hear(client, json=HELLO).status == 200


@pytest.mark.parametrize("body", [HELLO, STREAMED], ids=["whole", "stream"])
def test_fallbacks_follow_the_retries(
    upstream: ScriptedUpstream,
    two: tuple[ScriptedUpstream, ScriptedUpstream],
    relay: Relay,
    body: dict[str, Any],
) -> None:
    """The name's own deployment first, then its fallbacks in order, each with its own model."""
    upstream.default, two[0].default = DOWN, DOWN
    made = [*deployments(two[0], name="b"), *deployments(two[1], name="c")]
    made[1]["litellm_params"]["model"] = "openai/other"
    router = {"fallbacks": [{"m": ["b", "c"]}], "num_retries": 1}
    heard = hear(relay({"model_list": made, "router": router}), json=body)
    assert heard.status == 200
    assert [len(s.requests) for s in (upstream, *two)] == [2, 1, 1]
    assert (heard.headers["x-gateway-attempts"], heard.headers["x-gateway-model"]) == ("4", "other")
    assert two[1].last.model == "other"


@pytest.mark.parametrize("path", ["/chat/completions", "/responses", "/messages"])
def test_a_fallback_without_a_deployment_is_asked_for_by_name(
    upstream: ScriptedUpstream,
    two: tuple[ScriptedUpstream, ScriptedUpstream],
    relay: Relay,
    path: str,
) -> None:
    """The default upstream gets the fallback's name, after a deployment and after a plain name.

    Retries are the requested name's; the fallback is asked once.
    """
    two[0].default = DOWN
    upstream.default = lambda request: Reply("well") if request.model == "spare" else DOWN
    router = {"fallbacks": [{"*": ["spare"]}], "num_retries": 1}
    client = relay({"model_list": deployments(two[0], name="listed"), "router": router})
    for name, asked in (("listed", ["spare"]), ("plain", ["plain", "plain", "spare"])):
        body = {**HELLO, "model": name, "input": HELLO["messages"], "max_tokens": 9}
        heard = hear(client, path, json=body)
        assert (heard.status, heard.headers["x-gateway-model"]) == (200, "spare")
        assert heard.headers["x-gateway-attempts"] == "3"
        assert [r.model for r in upstream.requests] == asked
        upstream.requests.clear()
    assert len(two[0].requests) == 2


def test_a_timeout_moves_on_and_is_not_repeated(
    two: tuple[ScriptedUpstream, ScriptedUpstream], relay: Relay
) -> None:
    """A target that is silent is not given the same time again; another one is."""
    two[0].default = Fault(FaultKind.SLOW_FIRST_BYTE, delay_s=30)
    settings = {
        "model_list": [*deployments(two[0]), *deployments(two[1], name="b")],
        "router": {"fallbacks": [{"m": ["b"]}]},
        "timeouts": {"first_byte_s": 3},
    }
    assert hear(relay(settings), json=HELLO).status == 200
    assert [len(s.requests) for s in two] == [1, 1]
    two[0].last.wait_disconnected()


def test_a_refused_connection_moves_on(two: tuple[ScriptedUpstream, Any], relay: Relay) -> None:
    """Nobody listens at the first deployment: the fallback for every name serves."""
    with closed_port() as port:
        params = {"model": "openai/x", "api_base": f"http://127.0.0.1:{port}/v1"}
        made = [{"model_name": "m", "litellm_params": params}, *deployments(two[0], name="b")]
        settings = {"model_list": made, "router": {"fallbacks": [{"*": ["b"]}]}}
        assert hear(relay(settings), json=HELLO).status == 200


def test_when_all_fail_the_last_word_is_passed_on(
    upstream: ScriptedUpstream, two: tuple[ScriptedUpstream, Any], relay: Relay
) -> None:
    """The client gets the last upstream's own error."""
    upstream.default = DOWN
    two[0].default = Fault(FaultKind.UNAVAILABLE, retry_after="0", message="last word")
    made = deployments(two[0], name="b")
    router = {"fallbacks": [{"m": ["b"]}], "num_retries": 0}
    heard = hear(relay({"model_list": made, "router": router}), json=HELLO)
    assert (heard.status, heard.json["error"]["message"]) == (503, "last word")


def test_after_the_first_byte_nothing_is_repeated(
    upstream: ScriptedUpstream, two: tuple[ScriptedUpstream, Any], relay: Relay
) -> None:
    """A stream that has begun cannot be begun again elsewhere."""
    upstream.default = Fault(FaultKind.DROP_MID_BODY, reply=Reply("a b c d"))
    router = {"fallbacks": [{"m": ["b"]}]}
    client = relay({"model_list": deployments(two[0], name="b"), "router": router})
    heard = hear(client, json=STREAMED)
    assert heard.broken is not None
    assert (len(upstream.requests), len(two[0].requests)) == (1, 0)


def test_attempts_are_counted_by_deployment_and_outcome(
    upstream: ScriptedUpstream, relay: Relay
) -> None:
    """The metric tells each try, with labels from closed sets."""
    upstream.script(Fault(FaultKind.RATE_LIMIT, retry_after="0"), DOWN, Reply("well"))
    client = relay()
    hear(client, json=HELLO)
    text = client.get(str(client.base_url).replace("/v1/", "/metrics")).text
    found = [
        line for line in text.splitlines() if line.startswith("gateway_upstream_attempts_total{")
    ]
    outcomes = Counter(line.split('outcome="')[1].split('"')[0] for line in found)
    assert outcomes == {"429": 1, "500": 1, "200": 1}
    assert all('deployment="default"' in line for line in found)


@pytest.mark.parametrize(
    ("status", "own_key", "served"),
    [(401, True, 200), (403, True, 200), (404, True, 200), (400, True, 400), (401, False, 401)],
)
def test_a_refusal_of_the_operators_key_is_not_the_clients(
    two: tuple[ScriptedUpstream, ScriptedUpstream],
    relay: Relay,
    status: int,
    own_key: bool,
    served: int,
) -> None:
    """A key or model name out of the config that is refused leads to the fallback, at once; what
    the client sent is the client's to mend."""
    first, second = two
    first.default = Fault(FaultKind.BAD_REQUEST, status=status)
    listed = [*deployments(first, api_key="k"), *deployments(second, name="n", api_key="k")]
    if not own_key:
        listed[0]["litellm_params"].pop("api_key")
        listed[0]["forward_client_key"] = True
    client = relay({"model_list": listed, "router": {"fallbacks": [{"m": ["n"]}]}})
    assert hear(client, json=HELLO).status == served
    assert len(first.requests) == 1
    assert len(second.requests) == (served == 200)


@pytest.mark.parametrize(("status", "helps"), [(400, False), (401, True), (502, True)])
def test_both_lanes_judge_alike(status: int, helps: bool) -> None:
    """Only the status counts, of an answer and of a failure."""
    target = Target(name="m", lane="litellm", model="x", api_base=base_url("http://x"))
    assert may_help(status, target) is helps
