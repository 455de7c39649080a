"""The values that stores keep, the same for every store.

Times are seconds since the epoch (UTC), costs are US dollars, token counts are the provider's.
`None` means unknown, never zero."""

import dataclasses
import re
from collections.abc import Mapping
from typing import Literal

from msgspec import Struct

from gateway import errors
from gateway.config import KeyRights
from gateway.core.pattern import ETrace
from gateway.steering.transcript.interventions import Intervention
from gateway.steering.transcript.steps import Action
from gateway.stores.learning import DecisionRow

IMPORTED = "imported"
"""The `mode` of a run that was imported from a log of its agent. It is listed with the others and
may be learned from; no sum, nothing that is under way and no alert counts it. Its steps have the
session's times; `updated_at` is the time of the import, from which its retention is counted."""
OWN_MODE = "own_mode"
_REFUSED = (errors.BudgetExceeded, errors.RateLimited, errors.RunPaused, errors.RunStopped)
_UNSENT = tuple(error.label for error in _REFUSED)
# Errors of calls that cost nothing: refused by the provider, not sent, or not connected.
_UNCHARGED = (None, errors.UpstreamUnreachable.label, *_UNSENT)


class ConversationAbout(Struct, frozen=True, kw_only=True):
    """A conversation and its last request, which had `message_count` messages."""

    id: str
    tenant: str
    source: str
    parent_id: str | None = None
    external_key: str | None = None
    created_at: float
    updated_at: float
    message_count: int = 0


class ConversationRecord(ConversationAbout, frozen=True, kw_only=True):
    """One conversation: everything needed to continue from its last request. `version`: the stored
    version this value was made from, 0 when not stored yet. `state` is opaque to the store.
    `served_head`: the chained digest of the last served request. `root_id`: the first conversation
    of its tree, None for that one itself; it never changes."""

    version: int = 0
    served_head: bytes = b""
    signature: bytes = b""
    has_tools: bool = False
    state: bytes = b""
    root_id: str | None = None


class PrefixHashRecord(Struct, frozen=True, kw_only=True):
    """A digest by which a later request finds its conversation. `root`: digest of the history's
    first message; SQLite stores the hashes of one root together, which keeps a commit cheap.
    `position` counts the messages of the prefix, `step` the run's steps at its end. `kind`:
    `served`, `reply`, or the caller's name for another digest, such as that of a response id."""

    tenant: str
    root: bytes
    digest: bytes
    conversation_id: str
    position: int
    kind: str = "served"
    step: int = 0


class ItemRecord(Struct, frozen=True, kw_only=True):
    """One output item as JSON, which a later request may refer to by its id alone."""

    id: str
    content: bytes


class CallRow(Struct, frozen=True, kw_only=True):
    """The model call made at one step: its request, its result, its cost.

    `model_requested` by the client, `model_asked` of the upstream, `model_served` as reported by
    it. `input_tokens` include cached and cache-write tokens. `cost_unsteered_usd`: at the requested
    model's prices. `retries`: repetitions of the request; their tokens, cost and attempts add up,
    all other fields are of the newest call. `unsteered`: why no decision was made.
    `usage_estimated`: tokens and cost are estimated, because the provider reported none."""

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
    timings_ms: Mapping[str, float] = {}
    attempts: int = 1
    retries: int = 0
    streamed: bool = False
    unsteered: str = ""
    usage_estimated: bool = False
    price_estimated: bool = False
    """Whether the cost is at the prices of a relative, because no list has the model."""
    reasons: tuple[str, ...] = ()

    @property
    def failed(self) -> bool:
        """True if the provider refused the call, or the answer is incomplete."""
        return self.error is not None or self.status >= 400

    @property
    def estimated(self) -> tuple[int, int, float]:
        """(1, tokens, US dollars) when these are estimated; zeros when they were reported."""
        if not (self.usage_estimated or self.price_estimated):
            return 0, 0, 0.0
        tokens = (self.input_tokens or 0) + (self.output_tokens or 0)
        return 1, tokens * self.usage_estimated, self.cost_usd or 0.0

    @property
    def unpriced(self) -> bool:
        """True if the call may have an unknown cost; a refused call costs nothing."""
        refused = self.status >= 400 and self.error in _UNCHARGED
        return self.cost_usd is None and not refused and self.error not in _UNSENT


class PromptMessage(Struct, frozen=True, kw_only=True):
    """One message that the agent did not write: its role as on the wire, and its text."""

    role: str
    text: str


class StepContent(Struct, frozen=True, kw_only=True):
    """The texts of one step, and the reply to the call made at it. `messages`: messages new in this
    call that belong to no step; at step 0 the opening of the run. `reply_actions`: the tool calls
    of the reply. `prompted`: as in `Step`. `human`: acts of a person on the step or the reply, each
    once; a later commit may add some."""

    messages: tuple[PromptMessage, ...] = ()
    thought: str = ""
    reasoning: str = ""
    actions: tuple[Action, ...] = ()
    prompted: bool = False
    reply_text: str = ""
    reply_actions: tuple[Action, ...] = ()
    human: tuple[Intervention, ...] = ()


class StepReadings(Struct, frozen=True, kw_only=True):
    """The readings of a step, which share one column. `loop_count`: times that a call of the step
    gave the same result before. `reason`: why the difficulty is what it is; `alarms`: their
    sentences. `e1_match`: the most similar e1 pattern that cleared its gate. `candidates`: all e1
    and e2 patterns above the recall threshold, and the universal rules for the agent, the most
    similar first. `acts`: kinds of what was decided to be done, in every mode alike; OWN_MODE alone
    where the client chose the mode."""

    scores: Mapping[str, float] = {}
    fired: tuple[str, ...] = ()
    evidence: Mapping[str, str] = {}
    loop_count: int = 0
    reason: str = ""
    alarms: tuple[str, ...] = ()
    e1_match: str | None = None
    candidates: tuple[ETrace, ...] = ()
    acts: tuple[str, ...] = ()


class StepRow(StepReadings, frozen=True, kw_only=True):
    """One step of a run: the assessment of the agent's step, and the call made at it. Step 0 is the
    run's first call: no step yet, state INIT, nothing scored. `call` is None for a step that is
    known from a later request only. `state`: after scoring. `content` None: not requested."""

    run_id: str
    step_index: int
    at: float
    state: str
    difficulty: float | None = None
    composite: float | None = None
    failure_type: str | None = None
    call: CallRow | None = None
    content: StepContent | None = None


class InjectionRow(Struct, frozen=True, kw_only=True):
    """One piece of guidance, recorded once, at the step where it was decided. `source`: monitor,
    e1, e2, e3, skip or hand_over. `ordinal`: its order among the guidance of one call. `applied`
    is False in shadow mode. `message_position`: the index of its message."""

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


class RunUpdate(Struct, frozen=True, kw_only=True):
    """The state of a run after one call. The first update of an id creates the run; later ones
    change only `updated_at`, `ended_at`, `state`, `outcome`, `mode`, `policy_digest` and
    `model_requested`, and add tags of new names. `outcome` None keeps the stored outcome; a
    `derived` outcome never replaces a reported one. With `updated_at` 0 only its steps are added
    to, and a run that is not stored is not created."""

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
    key_name: str = ""
    tags: Mapping[str, str] = {}


class CallRecord(Struct, frozen=True, kw_only=True):
    """Everything one request commits, all or nothing. Prefix hashes (`heads`) and runs belong to
    the conversation; every step and injection names a run in `runs`. `items`: the output items of
    the answer. `decisions`: about learned patterns."""

    conversation: ConversationRecord
    heads: tuple[PrefixHashRecord, ...] = ()
    runs: tuple[RunUpdate, ...] = ()
    steps: tuple[StepRow, ...] = ()
    injections: tuple[InjectionRow, ...] = ()
    items: tuple[ItemRecord, ...] = ()
    decisions: tuple[DecisionRow, ...] = ()

    def check(self) -> None:
        """Raises: ValueError when the parts do not belong together."""
        known = {run.id for run in self.runs}
        named = {step.run_id for step in self.steps} | {row.run_id for row in self.injections}
        if not named <= known:
            raise ValueError(f"run_id: {min(named - known)!r} is not among the runs of this call")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class KeyRecord:
    """One gateway key, without the key itself. `hint`: the key's first characters, by which its
    owner recognises it. `digest`: SHA-256 of the key. `revoked_at` None: the key is valid."""

    id: str
    tenant: str
    name: str
    hint: str
    digest: bytes = dataclasses.field(repr=False)
    created_at: float
    revoked_at: float | None = None
    terms: "KeyTerms" = dataclasses.field(default_factory=lambda: KeyTerms())


class KeyLimits(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Most dollars that a key may spend in a period, and most calls and tokens in a minute; None:
    any amount."""

    usd: float | None = None
    per: Literal["day", "week", "month", "total"] = "day"
    rpm: int | None = None
    tpm: int | None = None


_NAME_OF_TAG = re.compile(r"[a-z0-9][a-z0-9_-]{0,39}")


class KeyTerms(KeyLimits, frozen=True, kw_only=True, omit_defaults=True):
    """The rights, limits and attributes of a gateway key. `owner`: a person; `models`, `routes`:
    patterns, as in `auth.rights`; `expires_at`: as if revoked from then on, None: never;
    `replaces`: the id of the key in whose place it was made. Raises: ValueError."""

    owner: str = ""
    team: str = ""
    tags: Mapping[str, str] = {}
    models: tuple[str, ...] = ("*",)
    routes: tuple[str, ...] = ("*",)
    expires_at: float | None = None
    replaces: str = ""

    def __post_init__(self) -> None:
        KeyRights(routes=self.routes)
        for limit in ("usd", "rpm", "tpm"):
            if (most := getattr(self, limit)) is not None and not 0 < most < float("inf"):
                raise ValueError(f"{limit}: must be above 0")
        for name, value in {"owner": self.owner, "team": self.team, **self.tags}.items():
            if not _NAME_OF_TAG.fullmatch(name):
                raise ValueError(f"tags: {name[:60]!r} is not made of a to z, 0 to 9, `_` and `-`")
            if not value.isprintable() or len(value) > 120:
                raise ValueError(f"{name}: must be at most 120 visible characters")

    def labels(self) -> dict[str, str]:
        """The attributes by which budgets count, which no request can change."""
        return {"team": self.team, "owner": self.owner}

    def tagged(self, tags: Mapping[str, str]) -> dict[str, str]:
        """The tags of a run: the request's before the key's, but for its team and its owner."""
        fixed = {name: value for name, value in self.labels().items() if value}
        return {**self.tags, **tags, **fixed}
