"""Conversations that a model is asked about, a model that answers, and gateways that ask it."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

from gateway.backends import Stores, open_stores
from gateway.config.storage import StorageSettings
from gateway.features.learning.reader.questions import KIND, TITLE
from gateway.stores.learning import JOBS, ReaderJob
from gateway.stores.records import PromptMessage
from steering_gateway_testing import ReceivedRequest, Reply, ScriptedUpstream, Usage
from steering_gateway_testing.agents import PLAIN
from steering_gateway_testing.patience import until_async
from steering_gateway_testing.store_conformance import records

QUESTIONS = (KIND, TITLE)
MODEL = "small-reader"
USED = Usage(prompt_tokens=700, completion_tokens=50)
"""What each answer of the model uses."""
TOKENS = USED.prompt_tokens + USED.completion_tokens
TASK = "Please make the total of the cart right when a voucher is used."
WRONG = "No, that is wrong: the voucher is taken off twice now."


def settings(upstream: ScriptedUpstream, path: str, **reader: Any) -> dict[str, Any]:
    """A gateway whose reader asks a model of its own."""
    reached = {"model": f"openai/{MODEL}", "api_base": upstream.base_url, "api_key": "sk-own"}
    price = {"input_cost_per_token": 1e-5, "output_cost_per_token": 1e-5}
    listed = {"model_name": MODEL, "litellm_params": reached, "model_info": price}
    return {
        **PLAIN,
        "model_list": [listed],
        "router": {"num_retries": 0},
        "storage": {"path": path},
        "learning": {"interval_s": 0.02},
        "reader": {"model": MODEL, "interval_s": 0.02, **reader},
    }


def question_of(request: ReceivedRequest) -> str:
    """The name of the question that a request asks."""
    instruction = request.messages[0]["content"]
    return next(each.name for each in QUESTIONS if each.instruction == instruction)


def answering(request: ReceivedRequest) -> Reply:
    """A model that knows one kind, and gives every task the same title."""
    answers = {"kind": "fix", "title": "Right cart totals with vouchers"}
    return Reply(answers[question_of(request)], usage=USED)


def asked(requests: Sequence[ReceivedRequest]) -> list[ReceivedRequest]:
    """The requests to the reader's model."""
    return [request for request in requests if request.json["model"] == MODEL]


@asynccontextmanager
async def opened(**where: Any) -> AsyncIterator[Stores]:
    stores = await open_stores(StorageSettings(**where))
    try:
        yield stores
    finally:
        await stores.close()


async def typed(stores: Stores, number: int, *messages: str) -> None:
    """Store a conversation of the tenant `acme` in which a person typed these messages, each of
    which begins a run that ends with an answer."""
    name, version = f"c{number:04}", 0
    for sequence, message in enumerate(messages):
        run_id, at = f"{name}.{sequence}", records.START + number + sequence
        content = records.some_content(
            messages=(PromptMessage(role="user", text=message),),
            thought="",
            actions=(),
            reply_text="Done, the totals are right.",
            reply_actions=(),
            human=(),
        )
        call = records.a_call(
            conversation=records.a_conversation(name, version=version),
            heads=(),
            runs=(
                records.a_run(
                    run_id,
                    sequence=sequence,
                    state="END",
                    ended_at=at,
                    started_at=at,
                    updated_at=at,
                    outcome=None,
                    task_preview=message,
                ),
            ),
            steps=(records.a_first_step(run_id, content=content),),
            injections=(),
        )
        version = await stores.states.commit(call)


async def finished(stores: Stores, count: int) -> list[ReaderJob]:
    """All jobs, as soon as so many of them are over. The wait ends a hang: it begins again with
    each job that ends."""

    async def more_over(before: int) -> int:
        counts = Counter(await stores.learning.count_jobs(JOBS))
        now = counts["done"] + counts["failed"]
        return now if now > before else 0

    over = 0
    while over < count:
        over = await until_async(partial(more_over, over))
    return await jobs_of(stores)


async def jobs_of(stores: Stores) -> list[ReaderJob]:
    """All jobs of the questions, the newest first."""
    assert stores.controls is not None
    rows = await stores.controls.engine.fetch(
        "SELECT key FROM jobs WHERE kind = :kind ORDER BY pk DESC", kind=JOBS
    )
    found = [await stores.learning.job(JOBS, key) for (key,) in rows]
    return [job for job in found if job is not None]
