"""Asking a model how a run's newest step went, within a limit."""

from __future__ import annotations

import asyncio
import hashlib
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import orjson

from gateway.config.scorer import JudgeSettings
from gateway.conversations.memo import Conversation
from gateway.observability.logging import get_logger
from gateway.steering.fold import RunFold
from gateway.steering.judged import INSTRUCTION, question, read_score
from gateway.steering.steps import Step
from gateway.upstream.deployments import Target
from gateway.upstream.dispatch import Call, Dispatcher

_HEADERS = [(b"content-type", b"application/json"), (b"accept-encoding", b"identity")]
_OK = 200
_log = get_logger("gateway.steering")


class Judging(Protocol):
    """Scores the newest of some steps, in [0, 1]; None when it has no score for it in time."""

    async def __call__(self, steps: Sequence[Step]) -> float | None: ...


async def judged(judge: Judging | None, conversation: Conversation, run: RunFold) -> list[str]:
    """Put a model's score in place of the newest step's, once; why there is none."""
    key = run.score_key
    if judge is None or not key or not run.outcomes or key in conversation.judged:
        return []
    newest = run.outcomes[-1]
    if (newest.run, newest.index) not in conversation.unrecorded:
        return []
    score = await judge(run.recent)
    if score is None:
        return ["score: calibrated, none from the judge"]
    conversation.judge(key, score)
    conversation.learn([run.rescore(score)])
    return []


class Judge:
    """Scores in [0, 1] from a model that is reached as any other; `count` is told what happened.

    That is: judged, cached, clamped (the number lay outside of [0, 1]), invalid (no number),
    timeout, error.
    """

    def __init__(
        self,
        settings: JudgeSettings,
        dispatcher: Dispatcher,
        *,
        limit_s: float,
        count: Callable[[str], None],
    ) -> None:
        self._model = settings.model
        self._entries = settings.cache_entries
        self._dispatcher = dispatcher
        self._limit_s = limit_s
        self._count = count
        self._known: OrderedDict[bytes, float] = OrderedDict()

    async def __call__(self, steps: Sequence[Step]) -> float | None:
        """The score of the newest of `steps`, within the limit; None when there is none."""
        # Half a surrogate pair has no form in UTF-8.
        text = question(steps).encode("utf-8", "replace")
        if not text:
            return None
        key, asked = hashlib.blake2b(text, digest_size=16).digest(), text.decode()
        if key in self._known:
            self._known.move_to_end(key)
            self._count("cached")
            return self._known[key]
        score = await self._judged(asked)
        if score is not None:
            self._known[key] = score
            while len(self._known) > self._entries:
                self._known.popitem(last=False)
        return score

    async def _judged(self, asked: str) -> float | None:
        try:
            async with asyncio.timeout(self._limit_s):
                answer = await self._ask(asked)
        except TimeoutError:
            self._count("timeout")
            return None
        except Exception as exc:
            self._count("error")
            _log.warning("no judged score", kind=type(exc).__name__, reason=str(exc)[:200])
            return None
        score = read_score(answer)
        if score is None:
            self._count("invalid")
            return None
        clamped = min(max(score, 0.0), 1.0)
        self._count("judged" if clamped == score else "clamped")
        return clamped

    async def _ask(self, asked: str) -> str:
        """What the model says. Raises: UpstreamFailure, ValueError, LookupError, TypeError."""

        def parsed(target: Target) -> Mapping[str, Any]:
            messages = [
                {"role": "system", "content": INSTRUCTION},
                {"role": "user", "content": asked},
            ]
            own = target.params if target.lane == "native" else {}
            return {**own, "model": target.model or self._model, "messages": messages}

        call = Call(
            method="POST",
            path="/chat/completions",
            dialect="chat",
            headers=list(_HEADERS),
            body=lambda target: orjson.dumps(parsed(target)),
            parsed=parsed,
        )
        response = (await self._dispatcher.send(call, self._model)).response
        try:
            body = b"".join([chunk async for chunk in response])
        finally:
            await response.aclose()
        if response.status != _OK:
            raise ValueError(f"status {response.status}")
        content = orjson.loads(body)["choices"][0]["message"]["content"]
        return content if isinstance(content, str) else ""
