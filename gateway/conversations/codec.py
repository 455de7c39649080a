"""A conversation as the JSON of its stored record, in both directions.

The keys are those of the first release: a file written by any version since then loads.
"""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from collections.abc import Iterable, Mapping
from typing import Any

import orjson
from msgspec.structs import asdict, replace

from gateway.conversations.conversation import (
    STORED_PER_CONVERSATION,
    Conversation,
    CurrentRun,
    History,
    RoutedCall,
    RunStart,
    SeenDigests,
    StoredResponse,
    Unsaved,
)
from gateway.steering.fold import RunSnapshot
from gateway.steering.fsm import FSMState
from gateway.steering.guidance.state import GuidanceState, from_json, to_json
from gateway.steering.identity import Awaits, Branch
from gateway.steering.identity.branch import split_line_hashes
from gateway.steering.routing import ModelPin
from gateway.steering.routing_policy import RunChoice
from gateway.steering.scoring.risk import NO_OUTCOMES, WorkloadPrior
from gateway.steering.steer import RunMemory
from gateway.stores.records import ConversationRecord
from gateway.text.secrets import find_secrets, mask_repeated
from gateway.wire.prefix_hash import ChainState

STATE_VERSION = 1


def to_record(
    conversation: Conversation, message_count: int, now: float, *, masks_secrets: bool = False
) -> ConversationRecord:
    """The conversation as a store keeps it, at `now` in seconds of the epoch.

    With `masks_secrets` guidance is masked, and an answer that holds a secret is stored without its
    items, as with `store_content: false`: masked ones would give the history other digests.
    """
    branch = conversation.history.branch
    return ConversationRecord(
        id=branch.conversation_id,
        tenant=conversation.tenant,
        source=conversation.source,
        parent_id=branch.parent,
        external_key=conversation.external_key,
        version=conversation.unsaved.version,
        created_at=conversation.created_at,
        updated_at=now,
        served_head=branch.served_hash,
        message_count=message_count,
        signature=branch.signature,
        has_tools=branch.has_tools,
        state=_state(conversation, masks_secrets),
        root_id=conversation.ancestors[0] if conversation.ancestors else None,
    )


def from_record(record: ConversationRecord) -> Conversation:
    """The conversation that `to_record` described.

    Raises:
        ValueError: the state is damaged, or of an unknown version.
    """
    try:
        state = json.loads(record.state or b"{}")
        if state.get("v") != STATE_VERSION:
            raise ValueError(f"version {state.get('v')!r} is not known")
        return _conversation(record, state)
    except (ValueError, TypeError, KeyError, AttributeError, IndexError) as exc:
        raise ValueError(f"state of conversation {record.id!r}: {exc}") from exc


def _state(conversation: Conversation, masks_secrets: bool) -> bytes:
    state = {
        "v": STATE_VERSION,
        **_run_state(conversation.run, masks_secrets),
        **_branch_state(conversation.history.branch),
        **_start_state(conversation),
        **_snapshot_state(conversation),
    }
    if conversation.unit:
        state["unit"] = conversation.unit
    if conversation.ancestors:
        state["ancestors"] = list(conversation.ancestors)
    responses = conversation.history.responses
    if responses:
        newest = list(responses.values())[-STORED_PER_CONVERSATION:]
        state["answered"] = [_response_json(response, masks_secrets) for response in newest]
    try:
        return orjson.dumps(state)
    except TypeError:  # a model name with half of a surrogate pair, which UTF-8 cannot encode
        return json.dumps(state).encode()


def _run_state(run: CurrentRun, masks_secrets: bool) -> dict[str, Any]:
    memory = run.memory
    guidance = _masked(memory.guidance) if masks_secrets else memory.guidance
    state: dict[str, Any] = {
        "run": run.index,
        "run_started_at": run.started_at,
        "run_tokens": memory.tokens,
        "guidance": to_json(guidance),
    }
    if pin := memory.pinned_model:
        state["held"] = [pin.model, pin.state.value, pin.since_step]
    if memory.struck_at is not None:
        state["struck_at"] = memory.struck_at
    if memory.choice is not None:
        state["choice"] = asdict(memory.choice)
    prior = run.priors.get(run.index, NO_OUTCOMES)
    if prior != NO_OUTCOMES:
        state["prior"] = [prior.solved, prior.failed]
    if run.answers:
        state["answers"] = run.answers
    if run.judged:
        state["judged"] = run.judged
    if run.resting:
        state["resting"] = run.resting
    if routed := run.routed:
        state["decided"] = [routed.prefix_hash.hex(), routed.requested, routed.model]
    return state


def _masked(guidance: GuidanceState) -> GuidanceState:
    """Guidance quotes errors, and an error may quote a key."""
    masked = [mask_repeated(item.text) for item in guidance.injections]
    if masked == [item.text for item in guidance.injections]:
        return guidance
    kept = [replace(i, text=text) for i, text in zip(guidance.injections, masked, strict=True)]
    return replace(guidance, injections=tuple(kept))


def _branch_state(branch: Branch) -> dict[str, Any]:
    state: dict[str, Any] = {"steps": branch.steps, "awaits": branch.awaits.value}
    if branch.fallback_hash:
        state["fallback_head"] = branch.fallback_hash.hex()
    if branch.reply_digest:
        state["reply_digest"] = branch.reply_digest.hex()
    if branch.echoed_hash:
        state["echoed"] = branch.echoed_hash.hex()
    if branch.line_hashes:
        state["reply_marks"] = b"".join(branch.line_hashes).hex()
    if branch.reply_calls or branch.served_calls:
        state["calls"] = [branch.reply_calls, branch.served_calls]
    state["asked"] = [branch.model, branch.system.hex()]
    state["task"] = branch.task.hex()
    if branch.tail:
        state["tail"] = branch.tail.hex()
    return state


def _start_state(conversation: Conversation) -> dict[str, Any]:
    start = conversation.run.start
    if start is None:
        return {}
    seen = b64encode(conversation.history.seen.newest()).decode()
    base = [_snapshot_json(start.snapshot), start.offset, start.logged_in]
    return {"base": base, "heard": seen}


def _snapshot_state(conversation: Conversation) -> dict[str, Any]:
    newest = conversation.snapshot()
    if newest is None:
        return {}
    state: dict[str, Any] = {"last": _snapshot_json(newest)}
    before = conversation.snapshot_before_reply() if newest.state is FSMState.END else None
    if before is not None:
        state["before_end"] = before.state.value
    return state


def _conversation(record: ConversationRecord, state: Mapping[str, Any]) -> Conversation:
    history = History(branch=_branch(record, state))
    run = _run(state)
    if base := state.get("base"):
        # Older files do not say where the earlier steps are logged: in the run itself.
        snapshot, offset, logged_in = (*base, record.id)[:3]
        run.start = RunStart(
            snapshot=_snapshot(snapshot), offset=int(offset), logged_in=str(logged_in)
        )
        history.seen = SeenDigests(b64decode(state.get("heard", "")))
    history.responses = _responses(state.get("answered", ()))
    return Conversation(
        tenant=record.tenant,
        source=record.source,
        external_key=record.external_key,
        created_at=record.created_at,
        history=history,
        unit=str(state.get("unit", "")),
        ancestors=_ancestors(record, state),
        run=run,
        unsaved=_saved(record.version, state),
    )


def _ancestors(record: ConversationRecord, state: Mapping[str, Any]) -> tuple[str, ...]:
    # Older files name the parent only.
    parent = (record.parent_id,) if record.parent_id else ()
    return tuple(map(str, state.get("ancestors", parent)))


def _branch(record: ConversationRecord, state: Mapping[str, Any]) -> Branch:
    awaits = Awaits(state["awaits"])
    reply_calls, served_calls = state.get("calls", ((), ()))
    model, system = state.get("asked", ("", ""))
    return Branch(
        conversation_id=record.id,
        served_hash=record.served_head,
        signature=record.signature,
        has_tools=record.has_tools,
        parent=record.parent_id,
        fallback_hash=_digest(state.get("fallback_head")),
        reply_digest=_digest(state.get("reply_digest")),
        echoed_hash=_digest(state.get("echoed")),
        line_hashes=split_line_hashes(bytes.fromhex(state.get("reply_marks", ""))),
        reply_calls=tuple(map(str, reply_calls)),
        served_calls=tuple(map(str, served_calls)),
        # No call is in progress after a restart.
        awaits=Awaits.ANYTHING if awaits is Awaits.MODEL else awaits,
        steps=int(state["steps"]),
        model=str(model),
        system=bytes.fromhex(system),
        tail=bytes.fromhex(state.get("tail", "")),
        task=bytes.fromhex(state.get("task", "")),
    )


def _run(state: Mapping[str, Any]) -> CurrentRun:
    pin, routed, choice = state.get("held"), state.get("decided"), state.get("choice")
    solved, failed = state.get("prior", (0.0, 0.0))
    return CurrentRun(
        index=int(state["run"]),
        started_at=float(state["run_started_at"]),
        memory=RunMemory(
            guidance=from_json(state["guidance"]),
            pinned_model=ModelPin(model=pin[0], state=FSMState(pin[1]), since_step=int(pin[2]))
            if pin
            else None,
            tokens=int(state.get("run_tokens", 0)),
            struck_at=state.get("struck_at"),
            choice=RunChoice(**choice) if choice else None,
        ),
        priors={int(state["run"]): WorkloadPrior(solved=float(solved), failed=float(failed))},
        judged={str(key): float(score) for key, score in state.get("judged", {}).items()},
        answers=[int(count) for count in state.get("answers", ())],
        resting={str(model): int(left) for model, left in state.get("resting", {}).items()},
        routed=RoutedCall(
            prefix_hash=bytes.fromhex(routed[0]), requested=routed[1], model=routed[2]
        )
        if routed
        else None,
    )


def _saved(version: int, state: Mapping[str, Any]) -> Unsaved:
    last = state.get("last")
    if not last:
        return Unsaved(version=version)
    snapshot = _snapshot(last)
    return Unsaved(
        version=version,
        snapshot=snapshot,
        ended_run=snapshot.run if snapshot.state is FSMState.END else None,
        state_before_end=FSMState(state.get("before_end", FSMState.NORMAL.value)),
    )


def _responses(values: Iterable[Any]) -> dict[str, StoredResponse]:
    return {
        id: StoredResponse(
            id=id,
            chain=_chain(chain),
            after=_chain(after),
            snapshot=_snapshot(snapshot),
            reply=tuple(reply),
        )
        for id, chain, after, snapshot, reply in values
    }


def _response_json(response: StoredResponse, masks_secrets: bool) -> list[Any]:
    chains = [_chain_json(response.chain), _chain_json(response.after)]
    storable = response.storable and not (masks_secrets and _has_secret(response))
    reply = list(response.reply) if storable else []
    return [response.id, *chains, _snapshot_json(response.snapshot), reply]


def _has_secret(response: StoredResponse) -> bool:
    return bool(find_secrets(json.dumps(response.reply)))


def _snapshot_json(snapshot: RunSnapshot) -> list[Any]:
    return [snapshot.run, snapshot.state.value, list(snapshot.history), snapshot.steps]


def _snapshot(values: list[Any]) -> RunSnapshot:
    run, state, history, steps = values
    return RunSnapshot(
        run=int(run), state=FSMState(state), history=tuple(map(float, history)), steps=int(steps)
    )


def _chain_json(chain: ChainState) -> list[Any]:
    known = [chain.root.hex(), chain.digest.hex(), chain.count, chain.turns]
    return [*known, chain.in_turn, list(chain.call_ids), chain.answered]


def _chain(values: list[Any]) -> ChainState:
    root, digest, count, turns, in_turn, call_ids, answered = values
    return ChainState(
        root=bytes.fromhex(root),
        digest=bytes.fromhex(digest),
        count=int(count),
        turns=int(turns),
        in_turn=bool(in_turn),
        call_ids=tuple(map(str, call_ids)),
        answered=int(answered),
    )


def _digest(text: str | None) -> bytes | None:
    return bytes.fromhex(text) if text else None
