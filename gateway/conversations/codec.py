"""A conversation as the JSON of its stored record, in both directions.

The keys are those of the first release: a file written by any version since then loads."""

import json
from base64 import b64decode, b64encode
from typing import Any

import msgspec
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
from gateway.core.fold import RunSnapshot
from gateway.core.fsm import FSMState
from gateway.core.guidance_state import GuidanceState, from_json, to_json
from gateway.core.routing import ModelPin, RunChoice
from gateway.core.steer import RunMemory
from gateway.core.trouble import Trouble
from gateway.steering.identity import Awaits, Branch
from gateway.steering.identity.branch import split_line_hashes
from gateway.steering.sub_agents import SubAgent
from gateway.stores.records import ConversationRecord
from gateway.text.secrets import find_secrets, mask_repeated
from gateway.values import FieldDict, Fields
from gateway.wire.prefix_hash import ChainState

STATE_VERSION = 1


def to_record(
    conversation: Conversation,
    message_count: int,
    now: float,
    *,
    snapshot: RunSnapshot | None = None,
    masks_secrets: bool = False,
) -> ConversationRecord:
    """The conversation as a store keeps it, at `now` in seconds of the epoch. `snapshot`: the
    conversation's, if it is known. With `masks_secrets` guidance is masked, and an answer that
    holds a secret is stored without its items, as with `store_content: false`: masked ones would
    give the history other digests."""
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
        state=_state(conversation, snapshot or conversation.snapshot(), masks_secrets),
        root_id=conversation.ancestors[0] if conversation.ancestors else None,
        agent_kind=conversation.sub_agent.kind,
        task=conversation.sub_agent.task,
    )


def from_record(record: ConversationRecord) -> Conversation:
    """The conversation that `to_record` described. Raises: ValueError: the state is damaged, or of
    an unknown version."""
    try:
        state = json.loads(record.state or b"{}")
        if state.get("v") != STATE_VERSION:
            raise ValueError(f"version {state.get('v')!r} is not known")
        return _conversation(record, state)
    except (ValueError, TypeError, KeyError, AttributeError, IndexError) as exc:
        raise ValueError(f"state of conversation {record.id!r}: {exc}") from exc


def _state(conversation: Conversation, newest: RunSnapshot | None, masks_secrets: bool) -> bytes:
    history = conversation.history
    start = conversation.run.start
    branch = _branch_state(history.branch)
    state = _run_state(conversation.run, masks_secrets) | branch
    if start is not None:
        state["base"] = start
        state["heard"] = b64encode(history.seen.newest()).decode()
    if newest is not None:
        state["last"] = newest
        before = None
        if newest.state is FSMState.END:
            before = conversation.snapshot_before_reply()
        if before is not None:
            state["before_end"] = before.state
    if conversation.unit:
        state["unit"] = conversation.unit
    if conversation.ancestors:
        state["ancestors"] = conversation.ancestors
    if conversation.sub_agent.id:
        # Its task is a text, which is masked or left out in a column of its own.
        state["sub_agent"] = replace(conversation.sub_agent, task="")
    if history.responses:
        stored = list(history.responses.values())[-STORED_PER_CONVERSATION:]
        state["answered"] = [_response_json(response, masks_secrets) for response in stored]
    try:
        return msgspec.json.encode(state)
    except UnicodeEncodeError:  # a model name with half of a surrogate pair
        return json.dumps(msgspec.to_builtins(state)).encode()


def _run_state(run: CurrentRun, masks_secrets: bool) -> FieldDict:
    memory = run.memory
    routed = run.routed
    if masks_secrets:
        guidance = _masked(memory.guidance)
    else:
        guidance = memory.guidance
    optional = {
        "held": memory.pinned_model,
        "choice": asdict(memory.choice) if memory.choice is not None else None,
        "answers": run.answers,
        "judged": run.judged,
        "resting": run.resting,
        "decided": routed and (routed.prefix_hash.hex(), routed.requested, routed.model),
    }
    state = {key: value for key, value in optional.items() if value}
    if memory.trouble != Trouble():
        state["trouble"] = asdict(memory.trouble)
    return state | {
        "v": STATE_VERSION,
        "run": run.index,
        "run_started_at": run.started_at,
        "run_tokens": memory.tokens,
        "guidance": to_json(guidance),
    }


def _masked(guidance: GuidanceState) -> GuidanceState:
    """Guidance quotes errors, and an error may quote a key."""
    masked = [mask_repeated(item.text) for item in guidance.injections]
    if masked == [item.text for item in guidance.injections]:
        return guidance
    kept = [replace(i, text=text) for i, text in zip(guidance.injections, masked, strict=True)]
    return replace(guidance, injections=tuple(kept))


def _branch_state(branch: Branch) -> FieldDict:
    digests = {
        "fallback_head": branch.fallback_hash,
        "reply_digest": branch.reply_digest,
        "echoed": branch.echoed_hash,
        "reply_marks": b"".join(branch.line_hashes),
        "tail": branch.tail,
    }
    state: FieldDict = {key: digest.hex() for key, digest in digests.items() if digest}
    if branch.reply_calls or branch.served_calls:
        state["calls"] = (branch.reply_calls, branch.served_calls)
    return state | {
        "steps": branch.steps,
        "awaits": branch.awaits.value,
        "asked": (branch.model, branch.system.hex()),
        "task": branch.task.hex(),
    }


def _conversation(record: ConversationRecord, state: Fields) -> Conversation:
    history = History(branch=_branch(record, state))
    run = _run(state)
    if base := state.get("base"):
        # Older files do not say where the earlier steps are logged: in the run itself.
        run.start = msgspec.convert((*base, record.id)[:3], RunStart)
        history.seen = SeenDigests(b64decode(state.get("heard", "")))
    history.responses = {
        id: StoredResponse(
            id=id,
            chain=_chain(chain),
            after=_chain(after),
            snapshot=msgspec.convert(snapshot, RunSnapshot),
            reply=tuple(reply),
        )
        for id, chain, after, snapshot, reply in state.get("answered", ())
    }
    unsaved = Unsaved(version=record.version)
    if last := state.get("last"):
        unsaved.snapshot = snapshot = msgspec.convert(last, RunSnapshot)
        if snapshot.state is FSMState.END:
            unsaved.ended_run = snapshot.run
        else:
            unsaved.ended_run = None
        unsaved.state_before_end = FSMState(state.get("before_end", FSMState.NORMAL))
    # Older files name the parent only.
    parent = (record.parent_id,) if record.parent_id else ()
    return Conversation(
        tenant=record.tenant,
        source=record.source,
        external_key=record.external_key,
        created_at=record.created_at,
        history=history,
        unit=str(state.get("unit", "")),
        ancestors=tuple(map(str, state.get("ancestors", parent))),
        sub_agent=replace(msgspec.convert(state.get("sub_agent", ()), SubAgent), task=record.task),
        run=run,
        unsaved=unsaved,
    )


def _branch(record: ConversationRecord, state: Fields) -> Branch:
    def digest(key: str) -> bytes:
        return bytes.fromhex(state.get(key) or "")

    awaits = Awaits(state["awaits"])
    reply_calls, served_calls = state.get("calls", ((), ()))
    model, system = state.get("asked", ("", ""))
    return Branch(
        conversation_id=record.id,
        served_hash=record.served_head,
        signature=record.signature,
        has_tools=record.has_tools,
        parent=record.parent_id,
        fallback_hash=digest("fallback_head") or None,
        reply_digest=digest("reply_digest") or None,
        echoed_hash=digest("echoed") or None,
        line_hashes=split_line_hashes(digest("reply_marks")),
        reply_calls=tuple(map(str, reply_calls)),
        served_calls=tuple(map(str, served_calls)),
        # No call is in progress after a restart.
        awaits=Awaits.ANYTHING if awaits is Awaits.MODEL else awaits,
        steps=int(state["steps"]),
        model=str(model),
        system=bytes.fromhex(system),
        tail=digest("tail"),
        task=digest("task"),
    )


def _run(state: Fields) -> CurrentRun:
    pin = state.get("held")
    routed = state.get("decided")
    choice = state.get("choice")
    run = CurrentRun(
        index=int(state["run"]),
        started_at=float(state["run_started_at"]),
        memory=RunMemory(
            guidance=from_json(state["guidance"]),
            pinned_model=msgspec.convert(pin, ModelPin) if pin else None,
            tokens=int(state.get("run_tokens", 0)),
            choice=RunChoice(**choice) if choice else None,
            trouble=msgspec.convert(state.get("trouble", {}), Trouble),
        ),
        judged=msgspec.convert(state.get("judged", {}), dict[str, float]),
        answers=msgspec.convert(state.get("answers", ()), list[int]),
        resting=msgspec.convert(state.get("resting", {}), dict[str, int]),
    )
    if routed:
        digest, requested, model = routed
        run.routed = RoutedCall(prefix_hash=bytes.fromhex(digest), requested=requested, model=model)
    return run


def _response_json(response: StoredResponse, masks_secrets: bool) -> tuple[Any, ...]:
    if response.storable:
        reply = response.reply
    else:
        reply = ()
    if masks_secrets and find_secrets(json.dumps(reply)):
        reply = ()
    chains = _chain_json(response.chain), _chain_json(response.after)
    return response.id, *chains, response.snapshot, reply


def _chain_json(chain: ChainState) -> tuple[Any, ...]:
    known = chain.root.hex(), chain.digest.hex(), chain.count, chain.turns
    return *known, chain.in_turn, chain.call_ids, chain.answered


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
