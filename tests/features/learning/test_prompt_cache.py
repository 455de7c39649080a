"""Lessons cost nothing of the provider's prompt cache: what was sent is sent again, unchanged."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from gateway.backends import open_stores
from gateway.config.storage import StorageSettings
from gateway.conversations.observe import opening_prompts
from gateway.core.pattern import Status
from gateway.features.learning.context import project_of
from gateway.features.learning.life_cycle import BY_OPERATOR
from gateway.offline.recordings import parse_recording, read_lines, steps_of
from gateway.steering.guidance.lessons import LEARNED
from gateway.stores.learning import Posterior
from steering_gateway_testing import AppServer, ReceivedRequest, ScriptedUpstream
from steering_gateway_testing.agents import PLAIN
from steering_gateway_testing.recorded_agents import WHICH, Drive, Run, read_runs, recorded_replies
from tests.features.learning.runs import SourceRun, lessons_of
from tests.live.test_recorded_runs import SAMPLE

EVERY = 12
"""Of the sample's runs every so many are sent."""
TENANT = "default"

Start = Callable[..., AppServer]
Messages = list[dict[str, object]]
Sent = dict[str, list[Messages]]


def sent_by_run(requests: Iterable[ReceivedRequest]) -> Sent:
    """The messages of each request as the provider got them, by run, in the order of its calls."""
    found: dict[str, dict[int, Messages]] = defaultdict(dict)
    for request in requests:
        run, _, index = str(request.header(WHICH)).rpartition("|")
        found[run][int(index)] = request.messages
    return {run: [calls[index] for index in sorted(calls)] for run, calls in found.items()}


def extends(before: Messages, now: Messages) -> bool:
    """Whether a request begins with all that an earlier one held."""
    return now[: len(before)] == before


def repeated(sent: Sent) -> int:
    """Characters that the request before in the same run began with, too."""
    found = 0
    for calls in sent.values():
        for before, now in itertools.pairwise(calls):
            same = itertools.takewhile(
                lambda pair: pair[0] == pair[1], zip(before, now, strict=False)
            )
            found += sum(len(str(message)) for message, _ in same)
    return found


async def learn_all(path: Path) -> int:
    """Store a lesson that an operator made active for every failure of the sample; how many."""
    stores, known = await open_stores(StorageSettings(path=str(path))), set()
    try:
        for file, number, line in read_lines([SAMPLE]):
            recording = parse_recording(line, f"{file}:{number}")
            run = SourceRun(
                id=recording.label.id,
                tenant=TENANT,
                conversation=recording.label.id,
                task=recording.label.group,
                steps=steps_of(recording),
                at=0.0,
                project=project_of(opening_prompts({}, recording.messages or (), 0)),
            )
            for pattern in lessons_of(run):
                await stores.learning.learn([(pattern, ())])
                known.add(pattern.pattern_id)
        for each in known:
            await stores.learning.move(TENANT, each, Status.ACTIVE, reason=BY_OPERATOR, at=0.0)
            await stores.learning.put_posterior(TENANT, each, 1, Posterior(share=0.9), 0.0)
    finally:
        await stores.close()
    return len(known)


async def drive(server: AppServer, upstream: ScriptedUpstream, runs: list[Run]) -> Sent:
    upstream.requests.clear()
    await Drive(lambda: server.base_url)(runs)
    return sent_by_run(upstream.requests)


@pytest.mark.slow
async def test_lessons_lose_nothing_of_the_prompt_cache(
    gateway_server: Start, upstream: ScriptedUpstream, tmp_path: Path
) -> None:
    """With lessons each call begins with all that the one before held wherever it does without
    them, and no less text is repeated."""
    runs = read_runs(SAMPLE)[::EVERY]
    upstream.default = recorded_replies(runs)
    learning = {"trials": "on", "interval_s": 3600}
    path = tmp_path / "lessons.db"
    assert await learn_all(path) > 10
    plain = await drive(gateway_server(PLAIN), upstream, runs)
    taught = await drive(
        gateway_server({**PLAIN, "learning": learning, "storage": {"path": str(path)}}),
        upstream,
        runs,
    )
    assert sum(LEARNED in str(calls[-1]) for calls in taught.values())
    for run, calls in plain.items():
        assert list(map(extends, taught[run], taught[run][1:])) == list(
            map(extends, calls, calls[1:])
        )
    assert repeated(taught) >= repeated(plain)
