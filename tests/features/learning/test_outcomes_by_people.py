"""Outcomes without a report: what a person does and says after an answer."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest

from gateway.backends import open_stores
from gateway.config.storage import StorageSettings
from gateway.core.step import Action
from gateway.features.learning.settings import LearningSettings
from gateway.features.learning.verdicts import USED_FROM, implicit
from gateway.features.learning.worker import Learner
from gateway.steering.transcript.interventions import Intervention
from gateway.stores.filters import RunFilter
from gateway.stores.lists import PageRequest
from gateway.stores.totals import RunRecord
from steering_gateway_testing import AppServer, Reply, ScriptedUpstream, ToolCall
from steering_gateway_testing.control_plane import client_of
from steering_gateway_testing.store_conformance import records
from tests.features.learning.runs import read_again

WRONG = "No, that's wrong. You broke the tests again, revert that."
FINE = "Great, thanks. Commit and push it."


@pytest.mark.parametrize(
    ("said", "acts", "found"),
    [
        (FINE, (), ("moved_on", "success")),
        (WRONG, ("interrupt",), ("interruption", "failure")),
        (WRONG, ("reject",), ("interruption", "failure")),
        ("continue", ("interrupt",), ("moved_on", "success")),
    ],
)
def test_what_a_person_does_next(said: str, acts: tuple[str, ...], found: tuple[str, str]) -> None:
    """With a confidence, which is never that of a report."""
    done = [Intervention(kind=kind, words=said, of_reply=True) for kind in acts]
    ((source, verdict, _, sure),) = implicit((), answered=True, next_task=said, acts=done)
    assert (source, verdict) == found
    assert USED_FROM <= sure < 1


@pytest.mark.parametrize(
    ("said", "acts"),
    [
        ("Why is it called total?", ()),
        (WRONG, ()),
        (FINE, ("rewind",)),
    ],
)
def test_what_gives_no_verdict(said: str, acts: tuple[str, ...]) -> None:
    """A question, words that correct without an act, a history that was rewound."""
    done = [Intervention(kind=kind, words=said, of_reply=True) for kind in acts]
    assert implicit((), answered=True, next_task=said, acts=done) == []


def test_a_stop_without_words_says_nothing() -> None:
    """The next message decides by itself; a run without an answer gets no verdict by it."""
    silent = [Intervention(kind="interrupt", words="", of_reply=True)]
    assert implicit((), answered=False, next_task=WRONG, acts=silent) == []
    assert implicit((), answered=True, next_task=WRONG, acts=silent) == []
    ((source, verdict, _, _),) = implicit((), answered=True, next_task=FINE, acts=silent)
    assert (source, verdict) == ("moved_on", "success")


@pytest.mark.parametrize(("words", "outcome"), [("ask me before you push", "failure"), ("", None)])
async def test_a_run_that_ends_with_a_rejected_call(words: str, outcome: str | None) -> None:
    """It failed if the person said why, as the result of the call tells; else it is unknown."""
    stores = await open_stores(StorageSettings(path=":memory:"))
    human = (Intervention(kind="reject", words=words),)
    push = Action(name="Bash", arguments='{"command": "git push"}', observation="rejected")
    content = records.some_content(actions=(push,), messages=(), human=human, reply_text="")
    steps = (records.a_first_step("r0000"), records.a_step(1, "r0000", content=content))
    await stores.states.commit(records.one_run(0, steps=steps, state="NORMAL", outcome=None))
    assert (await read_again(stores, ["r0000"])).runs == 1
    run = await stores.runs.get_run("r0000", tenant=None)
    assert run is not None
    assert run.run.outcome == outcome
    await stores.close()


def outcomes_of(
    gateway_server: Callable[..., AppServer], upstream: ScriptedUpstream, *talk: tuple[str, str]
) -> list[RunRecord]:
    """The runs of a conversation, once they were read: each message, and its reported outcome."""
    server = gateway_server()
    messages: list[dict[str, Any]] = []
    with client_of(server) as client:
        for number, (said, reported) in enumerate(talk):
            messages.append({"role": "user", "content": said})
            for turn in range(2):
                call = ToolCall("ls", {}, id=f"call_{number}_a1b2")
                upstream.default = Reply("Done. I did it.") if turn else Reply(tool_calls=(call,))
                headers = {"x-gateway-outcome": reported} if reported else {}
                body = {"model": "gpt-4o", "messages": messages}
                answer = client.post("/v1/chat/completions", json=body, headers=headers)
                messages.append(answer.json()["choices"][0]["message"])
                if not turn:
                    told = {"role": "tool", "tool_call_id": call.id, "content": "a.py"}
                    messages.append(told)

    async def read() -> list[RunRecord]:
        settings = server.app.runtime.settings
        stores = await open_stores(settings.storage)
        learner = Learner(stores.learning, stores.runs, lambda: settings.of(LearningSettings))
        page = PageRequest()
        for _ in range(2):  # the second time changes nothing
            for run in (await stores.runs.list_runs(RunFilter(), page)).runs:
                await learner.read(run.id, run.tenant)
        found = list((await stores.runs.list_runs(RunFilter(), page)).runs)
        verdicts = [len(await stores.learning.outcomes(None, run.id)) for run in found]
        assert max(verdicts) <= 2, json.dumps(verdicts)
        await stores.close()
        return sorted(found, key=lambda run: run.sequence)

    return asyncio.run(read())


def test_runs_get_their_outcomes(
    gateway_server: Callable[..., AppServer], upstream: ScriptedUpstream
) -> None:
    """From the next message, if it accepts the work; a report stays."""
    talk = [("Rename the helper.", ""), (WRONG, ""), (FINE, "failure"), (FINE, "")]
    found = outcomes_of(gateway_server, upstream, *talk)
    assert [(run.outcome, run.outcome_source) for run in found] == [
        (None, ""),
        ("success", "derived"),
        ("failure", "header"),
        (None, ""),
    ]
    assert found[0].totals.human == {}
