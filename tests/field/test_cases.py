"""Cases from public reports about other gateways are right here, with and without steering."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest

from steering_gateway_testing import ScriptedUpstream, closed_port
from steering_gateway_testing.agents import GUIDING
from steering_gateway_testing.gateways import merged
from steering_gateway_testing.hearing import Heard, hear
from steering_gateway_testing.patience import ANSWER_S, runs_at
from tests.examples import by_day
from tests.field.cases import CASES, GUIDANCE, answers_of, body_of, changes, filled

MODES = ("off", "on")


def test_all_cases_are_there() -> None:
    """The file has all 36 of them, each once."""
    assert len({case["id"] for case in CASES}) == 36


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("case", by_day(CASES, 8), ids=lambda case: case["id"])
def test_a_case_from_the_field_is_right(
    gateway_server: Any, case: dict[str, Any], mode: str
) -> None:
    """Status, answer, what the upstream got, and what is on record."""
    with an_upstream(case) as upstream, closed_port() as dead:
        served = upstream.url.replace("::1", "[::1]")
        holes = {"UP": upstream.url, "UP6": served, "DEAD": f"http://127.0.0.1:{dead}"}
        given = filled(case.get("config", {}), **holes)
        settings = merged({"default_upstream": {"api_base": f"{served}/v1"}}, given)
        settings = merged(merged(settings, GUIDING), {"steering": {"mode": mode}})
        script(upstream, case)
        server = gateway_server(settings, env=case.get("env", {}))
        heard = asked(server.url, case)
        assert not upstream.errors
        Verdict(case, mode, server.url, upstream, heard).check()


@contextmanager
def an_upstream(case: dict[str, Any]) -> Iterator[ScriptedUpstream]:
    """The upstream of a case, on the address that it wants."""
    host = "::1" if "@UP6@" in json.dumps(case.get("config", {})) else "127.0.0.1"
    with ScriptedUpstream(host=host) as upstream:
        yield upstream


def script(upstream: ScriptedUpstream, case: dict[str, Any]) -> None:
    """Have the upstream give the answers of the case, the last one for ever."""
    upstream.reset()
    *first, upstream.default = answers_of(case)
    upstream.script(*first)
    if "count_tokens" in case["request"]["path"]:  # answered by itself without a script
        upstream.script(*[upstream.default] * 3, path="/count_tokens")


def asked(base: str, case: dict[str, Any]) -> Heard:
    """What the client of a case hears at an address without the version."""
    request = case["request"]
    headers = {"authorization": "Bearer sk-field", **request.get("headers", {})}
    sent = {name: value for name, value in headers.items() if value is not None}
    method, body = request.get("method", "POST"), body_of(case)
    with httpx.Client(base_url=base, timeout=ANSWER_S, headers=sent) as client:
        return hear(client, request["path"], method=method, json=body)


class Verdict:
    """What is expected of one case, beside what came of it."""

    def __init__(
        self, case: dict[str, Any], mode: str, url: str, upstream: ScriptedUpstream, heard: Heard
    ) -> None:
        self.case = case
        self.mode = mode
        self.url = url
        self.upstream = upstream
        self.heard = heard
        self.got = [
            r for r in upstream.requests if r.method == case["request"].get("method", "POST")
        ]

    def check(self) -> None:
        """Raises: AssertionError, for the first expectation that is not met."""
        for name, expected in self.case["expect"].items():
            key, _, mode = name.partition("@")
            if not mode or mode == self.mode:
                getattr(self, f"_{key}")(expected)

    def _status(self, expected: int | list[int]) -> None:
        allowed = expected if isinstance(expected, list) else [expected]
        assert self.heard.status in allowed, self.heard.body

    def _same_answer(self, _: bool) -> None:
        requests = list(self.upstream.requests)
        script(self.upstream, self.case)
        straight = asked(self.upstream.url.replace("::1", "[::1]"), self.case)
        self.upstream.requests.extend(requests)
        assert self.heard.body == straight.body
        assert self.heard.broken is None

    def _same_json(self, _: bool) -> None:
        last = self.case["up"][-1] if isinstance(self.case["up"], list) else self.case["up"]
        assert self.heard.json == last["json"]

    def _same_request(self, _: bool) -> None:
        sent = self.got[-1].json
        if self.mode == "on" and "stream_options" not in (body_of(self.case) or {}):
            # `steering.stream_usage`: asked for, and taken out of the answer again.
            assert sent.pop("stream_options", None) in (None, {"include_usage": True})
        assert sent == body_of(self.case)

    def _only_guidance(self, allowed: bool | list[str]) -> None:
        found = set(changes(body_of(self.case), self.got[-1].json))
        assert found <= set(allowed if isinstance(allowed, list) else ())
        assert self.mode == "on" or self.got[-1].json == body_of(self.case)

    def _guided(self, _: bool) -> None:
        assert GUIDANCE in self.got[-1].body.decode()

    def _contains(self, expected: str) -> None:
        assert expected in self.heard.body.decode()

    def _field(self, expected: dict[str, Any]) -> None:
        for request in self.got:
            for name, value in expected.items():
                assert request.json.get(name, "@missing") == value

    def _request_header(self, expected: dict[str, str]) -> None:
        for name, value in expected.items():
            assert self.got[-1].header(name) == value

    def _answer_header(self, expected: dict[str, str]) -> None:
        for name, value in expected.items():
            assert self.heard.headers[name] == value

    def _note(self, expected: list[str]) -> None:
        assert self.heard.status != 200 or all(name in self.heard.headers for name in expected)

    def _upstream_count(self, expected: list[int]) -> None:
        least, most = expected
        assert least <= len(self.got) <= most

    def _upstream_models(self, expected: list[str]) -> None:
        assert [request.model for request in self.got] == expected

    def _upstream_path(self, expected: str) -> None:
        if self.heard.status != 404 or self.got:
            assert self.got[-1].target == expected

    def _run(self, expected: dict[str, int]) -> None:
        (run,) = runs_at(self.url)
        totals = run["totals"]
        assert {name: totals[name] for name in expected} == expected

    def _step(self, expected: dict[str, list[str]]) -> None:
        (run,) = runs_at(self.url)
        recorded = json.dumps(self._api(f"/api/runs/{run['id']}"), ensure_ascii=False)
        for text in expected["has"]:
            assert text in recorded

    def _api(self, path: str) -> Any:
        with httpx.Client(base_url=self.url, timeout=ANSWER_S) as client:
            return client.get(path).json()
