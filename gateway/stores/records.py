"""What the stores keep: plain values, equal for every backend.

Times are seconds since the epoch (UTC), costs are US dollars, token counts are the provider's.
`None` means unknown, never zero.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from gateway.errors import UpstreamUnreachable
from gateway.steering.steps import Action


@dataclass(frozen=True, slots=True, kw_only=True)
class ConversationRecord:
    """One conversation's memo: everything that is needed to go on from its last request.

    `version` is the stored version this value was made from, 0 for one never stored; saving it
    is refused when the stored version has moved on. `state` is opaque to the store.
    `served_head` is the chained digest of the last served request, of `message_count` messages.
    """

    id: str
    tenant: str
    source: str
    parent_id: str | None = None
    external_key: str | None = None
    version: int = 0
    created_at: float
    updated_at: float
    served_head: bytes = b""
    message_count: int = 0
    signature: bytes = b""
    has_tools: bool = False
    state: bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadRecord:
    """A digest by which a later request finds its conversation.

    `root` is the digest of the history's first message (`digest` itself for a history of one);
    heads of one root lie together on disk, which is what keeps a commit cheap.
    `position` counts messages, `step` the run's steps at that point. `kind`: `served`, `reply`,
    or another name the caller gives a digest of its own, such as a response id's.
    """

    tenant: str
    root: bytes
    digest: bytes
    conversation_id: str
    position: int
    kind: str = "served"
    step: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ItemRecord:
    """One item of an answer, as JSON, which a later request may name by its id alone."""

    id: str
    content: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class CallRow:
    """The chat completion made at one step: what was asked, what came, what it took.

    `model_requested` by the client, `model_asked` of the upstream, `model_served` as reported.
    `input_tokens` include the cached and cache-write ones. `cost_unsteered_usd`: the same
    tokens at the requested model's prices. `retries`: how often the client sent the same request
    again, which the store counts too; tokens, cost and attempts then add up, the rest is the
    newest call's.
    """

    request_id: str
    model_requested: str
    model_asked: str
    model_served: str | None = None
    deployment: str = ""
    lane: str = ""
    status: int = 200
    error: str | None = None
    finish_reason: str | None = None
    input_tokens: int | None = None
    cached_tokens: int | None = None
    cache_write_tokens: int | None = None
    output_tokens: int | None = None
    reasoning_tokens: int | None = None
    cost_usd: float | None = None
    cost_unsteered_usd: float | None = None
    latency_s: float = 0.0
    first_byte_s: float | None = None
    overhead_ms: float = 0.0
    timings_ms: Mapping[str, float] = field(default_factory=dict)
    attempts: int = 1
    retries: int = 0
    streamed: bool = False
    reasons: tuple[str, ...] = ()

    @property
    def failed(self) -> bool:
        """Whether no proper answer came: refused by the provider, or broken off on the way."""
        return self.error is not None or self.status >= 400

    @property
    def unpriced(self) -> bool:
        """Whether it may have cost what is not known; a call that was refused cost nothing."""
        refused = self.status >= 400 and self.error in (None, UpstreamUnreachable.label)
        return self.cost_usd is None and not refused


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptMessage:
    """One message that no agent wrote: role as on the wire, and its text."""

    role: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StepContent:
    """The texts of one step, and the reply to the call made at it (`reply_actions`: its calls).

    `messages`: those new to this call that belong to no step; at step 0 the run's opening.
    `prompted`: as in `Step`.
    """

    messages: tuple[PromptMessage, ...] = ()
    thought: str = ""
    reasoning: str = ""
    actions: tuple[Action, ...] = ()
    prompted: bool = False
    reply_text: str = ""
    reply_actions: tuple[Action, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRow:
    """One point of a run: the assessment of the agent's step, and the call made there.

    Step 0 is the run's first call: no step yet, state INIT, nothing scored. `call` is None for
    a step the gateway only learnt of later. `state` is the state after scoring. `content` is
    None when it was not asked for.
    """

    run_id: str
    step_index: int
    at: float
    state: str
    difficulty: float | None = None
    scores: Mapping[str, float] = field(default_factory=dict)
    composite: float | None = None
    fired: tuple[str, ...] = ()
    failure_type: str | None = None
    evidence: Mapping[str, str] = field(default_factory=dict)
    call: CallRow | None = None
    content: StepContent | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class InjectionRow:
    """One piece of guidance, recorded at the step where it was decided, never again on replay.

    `source`: monitor, e1, e2, e3 or skip. `ordinal` orders what one call got. `applied` is False
    in shadow mode. `message_position`: index of the message that carries it.
    """

    run_id: str
    step_index: int
    ordinal: int
    source: str
    tier: str | None = None
    pattern_id: str | None = None
    similarity: float | None = None
    failure_type: str | None = None
    severity: str | None = None
    text: str = ""
    placement: str = ""
    message_position: int | None = None
    applied: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class RunUpdate:
    """What one call says about its run.

    The first update of an id makes the run; later ones change only `updated_at`, `ended_at`,
    `state`, `outcome`, `mode`, `policy_digest` and `model_requested`. Totals are the store's
    to keep, from the step rows. `outcome` None leaves the stored one; one that is `derived`
    never replaces a reported one.
    """

    id: str
    sequence: int = 0
    started_at: float
    updated_at: float
    ended_at: float | None = None
    state: str = "INIT"
    outcome: str | None = None
    outcome_source: str = ""
    agent: str = ""
    task_preview: str = ""
    profile: str = ""
    mode: str = "on"
    experiment: str | None = None
    arm: str | None = None
    unit: str | None = None
    policy_digest: str = ""
    identity_source: str = ""
    model_requested: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class CallRecord:
    """Everything one chat completion commits, all of it or nothing.

    Heads and runs are the conversation's own; every step and injection names a run in `runs`.
    """

    conversation: ConversationRecord
    heads: tuple[HeadRecord, ...] = ()
    runs: tuple[RunUpdate, ...] = ()
    steps: tuple[StepRow, ...] = ()
    injections: tuple[InjectionRow, ...] = ()
    items: tuple[ItemRecord, ...] = ()

    def check(self) -> None:
        """Raises: ValueError when the parts do not belong together."""
        known = {run.id for run in self.runs}
        named = {step.run_id for step in self.steps} | {row.run_id for row in self.injections}
        if not named <= known:
            raise ValueError(f"run_id: {min(named - known)!r} is not among the runs of this call")
