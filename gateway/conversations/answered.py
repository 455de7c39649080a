"""Answers a client may go on from by naming them, without sending the history again."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gateway.dialects.history import Earlier
from gateway.steering.fold import Carried
from gateway.steering.fsm import FSMState
from gateway.wire.heads import ChainState, extend
from gateway.wire.messages import digest_fields

KEPT_IN_MEMORY = 8
"""Answers of a conversation that its client may still go on from; a fork goes a few back."""

KEPT_IN_STORE = 2
"""The newest, and the one before, which a retry goes on from."""

RESPONSE_KIND = "response"
"""The kind of a head that stands for the id of an answer."""

# Bulky, and nothing that a digest or a step is made of.
_LEFT_OUT = ("encrypted_content", "logprobs", "annotations")


@dataclass(frozen=True, slots=True, kw_only=True)
class Answered:
    """One answer: where the history stood when it was given, and how the run stood.

    `chain` is the state after the request, `after` that after the reply. `storable`: whether the
    reply may be kept in a store; one that was not is empty after a restart.
    """

    id: str
    chain: ChainState
    after: ChainState
    carried: Carried
    reply: tuple[Any, ...] = ()
    storable: bool = True

    def earlier(self) -> Earlier:
        """What a request that goes on from here leaves out."""
        return Earlier(chain=self.chain if self.reply else self.after, reply=self.reply)


def answered(
    id: str, chain: ChainState, reply: Sequence[Any], carried: Carried, *, keep: bool
) -> Answered:
    """The answer `id`, a `reply` to the history at `chain`; `keep`: its content may be stored."""
    kept = tuple(slim(item) for item in reply)
    after = extend(chain, kept).state
    return Answered(id=id, chain=chain, after=after, carried=carried, reply=kept, storable=keep)


def response_head(tenant: str, id: str) -> bytes:
    """The digest under which the store keeps the id of an answer."""
    return digest_fields(RESPONSE_KIND, tenant, id)


def to_json(answers: Iterable[Answered]) -> list[Any]:
    """The newest of the answers as JSON values."""
    return [_answer_json(answer) for answer in list(answers)[-KEPT_IN_STORE:]]


def from_json(values: Iterable[Any]) -> dict[str, Answered]:
    """What `to_json` wrote, by id. Raises: ValueError or TypeError when it is damaged."""
    found = {}
    for id, chain, after, carried, reply in values:
        found[id] = Answered(
            id=id,
            chain=_chain(chain),
            after=_chain(after),
            carried=carried_from(carried),
            reply=tuple(reply),
        )
    return found


def carried_json(carried: Carried) -> list[Any]:
    """What a run carries on, as JSON values."""
    return [carried.run, carried.state.value, list(carried.history), carried.steps]


def carried_from(values: list[Any]) -> Carried:
    """What `carried_json` wrote. Raises: ValueError or TypeError when it is damaged."""
    run, state, history, steps = values
    return Carried(
        run=int(run), state=FSMState(state), history=tuple(map(float, history)), steps=int(steps)
    )


def _answer_json(answer: Answered) -> list[Any]:
    chains = [_chain_json(answer.chain), _chain_json(answer.after)]
    reply = list(answer.reply) if answer.storable else []
    return [answer.id, *chains, carried_json(answer.carried), reply]


def _chain_json(chain: ChainState) -> list[Any]:
    head = [chain.root.hex(), chain.digest.hex(), chain.count, chain.turns]
    return [*head, chain.in_turn, list(chain.call_ids), chain.answered]


def _chain(values: list[Any]) -> ChainState:
    root, digest, count, turns, in_turn, call_ids, answers = values
    return ChainState(
        root=bytes.fromhex(root),
        digest=bytes.fromhex(digest),
        count=int(count),
        turns=int(turns),
        in_turn=bool(in_turn),
        call_ids=tuple(map(str, call_ids)),
        answered=int(answers),
    )


def items_by_id(reply: Iterable[Any]) -> dict[str, Any]:
    """The items of an answer that a later request may name by their ids."""
    named = ((item.get("id"), item) for item in reply if isinstance(item, Mapping))
    return {name: slim(item) for name, item in named if isinstance(name, str) and name}


def slim(item: Any) -> Any:
    """An item without what is bulky and tells nothing about a step."""
    if not isinstance(item, Mapping):
        return item
    kept = {key: value for key, value in item.items() if key not in _LEFT_OUT}
    if isinstance(kept.get("content"), list):
        kept["content"] = [slim(part) for part in kept["content"]]
    return kept
