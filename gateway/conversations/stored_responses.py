"""Answers that later requests name by id: to continue from them, to poll them, to find their host.

A client of the Responses API may leave its history to the server and send only new messages. Then
the gateway needs the state of the conversation at that answer, the call that is still pending, and
the deployment that stores the answer.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gateway.dialects.history import EarlierHistory
from gateway.steering.fold import RunSnapshot
from gateway.stores.exchanges import AnswerStore
from gateway.upstream.deployments import Target
from gateway.wire.echo import EchoFilter
from gateway.wire.messages import digest_fields
from gateway.wire.prefix_hash import ChainState, extend

KEPT_PER_CONVERSATION = 8
"""Answers of a conversation kept in memory; a fork may continue from one a few calls back."""

STORED_PER_CONVERSATION = 2
"""The newest, and the one before, which a retry continues from."""

RESPONSE_KIND = "response"
"""The kind of a stored prefix hash that is computed from the id of an answer."""

MAX_PENDING = 1024
"""Pending background calls; the oldest ones over the limit stay recorded without an answer."""

MAX_TARGETS = 8192
"""Answers whose deployment is known, least recently used ones dropped; a few hundred bytes each."""

MAX_ECHO_CHARS = 4 * 2**20
"""Characters of instructions that stored answers may repeat; those of the oldest go first."""

# Large, and not part of any digest or step.
_LEFT_OUT = ("encrypted_content", "logprobs", "annotations")

Settle = Callable[[Mapping[str, Any] | None, dict[str, Any] | None], Awaitable[None]]
"""Records a call: its answer in the shape of a chat completion, or None for none; and its usage."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredResponse:
    """One answer, with the history and the run as they were when it was given.

    `chain`: the hash state after the request, `after`: after the reply too. `storable`: whether
    the reply may be kept in a store; one that was not is empty after a restart.
    """

    id: str
    chain: ChainState
    after: ChainState
    snapshot: RunSnapshot
    reply: tuple[Any, ...] = ()
    storable: bool = True

    @classmethod
    def of(
        cls,
        id: str,
        chain: ChainState,
        reply: Sequence[Any],
        snapshot: RunSnapshot,
        *,
        storable: bool,
    ) -> StoredResponse:
        """The answer `id`, a `reply` to the history at `chain`."""
        kept = tuple(slim(item) for item in reply)
        after = extend(chain, kept).state
        return cls(
            id=id, chain=chain, after=after, snapshot=snapshot, reply=kept, storable=storable
        )

    def earlier(self) -> EarlierHistory:
        """The part of the history that a request which continues from here leaves out."""
        return EarlierHistory(chain=self.chain if self.reply else self.after, reply=self.reply)


def response_hash(tenant: str, id: str) -> bytes:
    """The digest under which the store keeps the id of an answer."""
    return digest_fields(RESPONSE_KIND, tenant, id)


def items_by_id(reply: Iterable[Any]) -> dict[str, Any]:
    """The items of an answer that a later request may name by their ids."""
    named = ((item.get("id"), item) for item in reply if isinstance(item, Mapping))
    return {name: slim(item) for name, item in named if isinstance(name, str) and name}


def slim(item: Any) -> Any:
    """An item without its large fields, which no step needs."""
    if not isinstance(item, Mapping):
        return item
    kept = {key: value for key, value in item.items() if key not in _LEFT_OUT}
    if isinstance(kept.get("content"), list):
        kept["content"] = [slim(part) for part in kept["content"]]
    return kept


class PendingResponses:
    """Calls whose answers are made in the background, by tenant and answer id.

    Each is settled once, when a request brings the finished answer. `store`: where other gateways
    find them.
    """

    def __init__(self) -> None:
        self.store: AnswerStore | None = None
        self._calls: OrderedDict[tuple[str, str], Settle] = OrderedDict()

    def __contains__(self, key: tuple[str, str]) -> bool:
        return key in self._calls

    def __len__(self) -> int:
        return len(self._calls)

    def put(self, tenant: str, response_id: str, settle: Settle) -> None:
        """Keep a call until its answer is settled."""
        self._calls[tenant, response_id] = settle
        while len(self._calls) > MAX_PENDING:
            self._calls.popitem(last=False)

    async def settle(
        self,
        tenant: str,
        response_id: str,
        completion: Mapping[str, Any] | None,
        usage: dict[str, Any] | None,
    ) -> None:
        """Record the answer, or that there will be none; a second call does nothing."""
        settle = self._calls.pop((tenant, response_id), None)
        if settle is not None:
            await settle(completion, usage)


class ResponseTargets:
    """Which deployment stores an answer, by tenant and answer id.

    Later requests for the answer, or that continue from it, have to go there.
    """

    def __init__(self) -> None:
        self._targets: OrderedDict[tuple[str, str], Target] = OrderedDict()
        self._given: OrderedDict[tuple[str, str], None] = OrderedDict()

    def knows(self, tenant: str, response_id: str) -> bool:
        """Whether a tenant was given an answer by this gateway, as far as it is remembered."""
        return (tenant, response_id) in self._given

    def put(self, tenant: str, response_id: str, target: Target) -> None:
        """Remember that the answer came from a deployment's target, and who was given it."""
        self._given[tenant, response_id] = None
        while len(self._given) > MAX_TARGETS:
            self._given.popitem(last=False)
        if not target.key or target.lane != "native":
            return  # the default upstream, or a lane that stores no answers
        self._targets[tenant, response_id] = target
        self._targets.move_to_end((tenant, response_id))
        while len(self._targets) > MAX_TARGETS:
            self._targets.popitem(last=False)

    def find(self, tenant: str, response_id: str | None) -> Target | None:
        """The target that stores the answer, if it is known."""
        return self._targets.get((tenant, response_id)) if response_id else None


class AnswerEchoes:
    """What takes the guidance out of a stored answer, which repeats the instructions it was asked
    with, whenever a later request reads it: by tenant and answer id."""

    def __init__(self) -> None:
        self._filters: OrderedDict[tuple[str, str], EchoFilter] = OrderedDict()
        self._chars = 0

    def put(self, tenant: str, response_id: str, echo: EchoFilter) -> None:
        """Remember the filter of an answer."""
        self._forget((tenant, response_id))
        self._filters[tenant, response_id] = echo
        self._chars += echo.size
        while self._chars > MAX_ECHO_CHARS:
            self._forget(next(iter(self._filters)))

    def find(self, tenant: str, response_id: str) -> EchoFilter | None:
        """A filter for one reading of the answer; None if nothing is to be taken out."""
        known = self._filters.get((tenant, response_id))
        return known.fresh() if known is not None else None

    def _forget(self, key: tuple[str, str]) -> None:
        known = self._filters.pop(key, None)
        self._chars -= known.size if known is not None else 0


class StoredAnswers:
    """What this process knows of the answers that providers store."""

    def __init__(self) -> None:
        self.targets = ResponseTargets()
        self.echoes = AnswerEchoes()
        self.pending = PendingResponses()
