"""Checks of AnswerStore."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from gateway.backends import Stores
from gateway.stores.raw_calls_and_answers import AnswerRecord, AnswerStore
from steering_gateway_testing.store_conformance.check import Check
from steering_gateway_testing.store_conformance.records import START, TENANT

PENDING = AnswerRecord(
    tenant=TENANT, id="resp_1", at=START, place="ab12", echo='["a1", null]', call='{"step": 1}'
)


def _answers(stores: Stores) -> AnswerStore:
    assert stores.answers is not None
    return stores.answers


async def keeps_what_is_known_of_an_answer(stores: Stores) -> None:
    """It comes back to its tenant alone; a later one with its id replaces it."""
    if stores.answers is None:
        return
    for answer in (PENDING, replace(PENDING, at=START + 1, place="", echo="", id="resp_\x00é")):
        await _answers(stores).keep_answer(answer)
        assert await _answers(stores).find_answer(TENANT, answer.id) == answer
    changed = replace(PENDING, at=START + 2, place="cd34")
    await _answers(stores).keep_answer(changed)
    assert await _answers(stores).find_answer(TENANT, "resp_1") == changed
    assert await _answers(stores).find_answer("other", "resp_1") is None
    assert await _answers(stores).find_answer(TENANT, "resp_2") is None


async def gives_a_call_to_one_alone(stores: Stores) -> None:
    """However many ask at once; what else is known of the answer stays."""
    if stores.answers is None:
        return
    await _answers(stores).keep_answer(PENDING)
    assert not await _answers(stores).take_call("other", "resp_1")
    taken = await asyncio.gather(*(_answers(stores).take_call(TENANT, "resp_1") for _ in range(8)))
    assert sorted(taken) == [False] * 7 + [True]
    assert await _answers(stores).find_answer(TENANT, "resp_1") == replace(PENDING, call="")


async def forgets_old_answers(stores: Stores) -> None:
    """With the runs of their time."""
    if stores.answers is None:
        return
    new = replace(PENDING, id="resp_2", at=START + 10)
    for answer in (PENDING, new):
        await _answers(stores).keep_answer(answer)
    await stores.runs.prune(older_than=START + 5)
    assert await _answers(stores).find_answer(TENANT, "resp_1") is None
    assert await _answers(stores).find_answer(TENANT, "resp_2") == new


ANSWER_CHECKS: tuple[Check, ...] = (
    keeps_what_is_known_of_an_answer,
    gives_a_call_to_one_alone,
    forgets_old_answers,
)
