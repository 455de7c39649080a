"""Scoring a run's newest step by asking a model, within a time limit."""

import asyncio
from collections.abc import Callable, Sequence
from hashlib import blake2b

from cachetools import LRUCache

from gateway.budget_interface import OwnCalls
from gateway.config.judge import JudgeSettings
from gateway.conversations.conversation import Conversation, run_id
from gateway.core.fold import RunFold
from gateway.core.scoring.judged import INSTRUCTION, question, read_score
from gateway.core.step import Step
from gateway.observability.logging import get_logger
from gateway.upstream.dispatch import Dispatcher, ask

_log = get_logger("gateway.steering")


async def judge_newest(
    judge: "ModelJudge | None", conversation: Conversation, run: RunFold
) -> list[str]:
    """Replace the newest step's score by the judge's, once; a reason if the judge gave none."""
    key = run.score_key
    current = conversation.run
    if judge is None or not key or not run.outcomes or key in current.judged:
        return []
    newest = run.outcomes[-1]
    if (newest.run, newest.index) not in conversation.unsaved.steps:
        return []
    score = await judge.score([*run.newest], conversation, newest.run)
    if score is None:
        return ["score: the ledger, none from the judge"]
    current.judge(key, score)
    conversation.unsaved.add([run.rescore(score)])
    return []


class ModelJudge:
    """Scores in [0, 1] from a model of the gateway's own deployments; results are cached. `count`
    is called with the result of each request for a score: judged, cached, clamped (the number was
    outside [0, 1]), invalid (no number), timeout, error, budget (not asked, because a budget of the
    run is used up)."""

    def __init__(
        self,
        settings: JudgeSettings,
        dispatcher: Dispatcher,
        *,
        limit_s: float,
        count: Callable[[str], None],
        meter: OwnCalls,
    ):
        self._model = settings.model
        self._dispatcher = dispatcher
        self._limit_s = limit_s
        self._count = count
        self._meter = meter
        self._known: LRUCache[bytes, float] = LRUCache(settings.cache_entries)

    async def score(self, steps: Sequence[Step], whose: Conversation, run: int) -> float | None:
        """The score of the newest of `steps`; None when there is none within the time limit."""
        # Half of a surrogate pair cannot be encoded in UTF-8.
        text = question(steps).encode("utf-8", "replace")
        if not text:
            return None
        key = blake2b(text, digest_size=16).digest()
        asked = text.decode()
        if key in self._known:
            self._count("cached")
            return self._known[key]
        score = await self._judged(asked, whose, run)
        if score is not None and self._known.maxsize:
            self._known[key] = score
        return score

    async def _judged(self, asked: str, whose: Conversation, run: int) -> float | None:
        spent = await self._meter.admit(
            self._model, asked, tenant=whose.tenant, root=whose.root_id, run=run_id(whose.id, run)
        )
        if spent is None:
            self._count("budget")
            return None
        usage = None
        try:
            async with asyncio.timeout(self._limit_s):
                messages = [
                    {"role": "system", "content": INSTRUCTION},
                    {"role": "user", "content": asked},
                ]
                answer = await ask(self._dispatcher, self._model, messages)
                usage = answer.usage
        except TimeoutError:
            self._count("timeout")
            return None
        except Exception as exc:
            self._count("error")
            usage = {}
            _log.warning("no judged score", kind=type(exc).__name__, reason=str(exc)[:200])
            return None
        finally:
            spent.settle(usage)
        score = read_score(answer.text)
        if score is None:
            self._count("invalid")
            return None
        clamped = min(max(score, 0.0), 1.0)
        self._count("judged" if clamped == score else "clamped")
        return clamped
