"""The values that stores keep, the same for every store.

Times are seconds since the epoch (UTC), costs are US dollars, token counts are the provider's.
`None` means unknown, never zero."""

from collections.abc import Mapping

from gateway import errors
from gateway.core.pattern import ETrace
from gateway.core.step import Action
from gateway.steering.transcript.interventions import Intervention
from gateway.stores.learning import DecisionRow
from gateway.values import Value

# The `mode` of a run that was imported from a log of its agent. It is listed with the others and
# may be learned from; no sum, nothing that is under way and no alert counts it. Its steps have the
# session's times; `updated_at` is the time of the import, from which its retention is counted.
IMPORTED = "imported"
OWN_MODE = "own_mode"
_REFUSED = (errors.BudgetExceeded, errors.RateLimited, errors.RunPaused, errors.RunStopped)
_UNSENT = tuple(error.label for error in _REFUSED)
# Errors of calls that cost nothing: refused by the provider, not sent, or not connected.
_UNCHARGED = (None, errors.UpstreamUnreachable.label, *_UNSENT)


class ConversationAbout(Value):
    """A conversation, described."""

    id: str  # made by the gateway, or from tenant and the client's id
    tenant: str  # owner; requests of another never reach it
    source: str  # where its id came from, as in `x-gateway-identity`
    parent_id: str | None = None  # the conversation it was forked or started from; None for a root
    external_key: str | None = None  # the client's own id; None without one
    created_at: float  # epoch seconds of its first request
    updated_at: float  # epoch seconds of its latest call
    message_count: int = 0  # messages of its last request


class ConversationRecord(ConversationAbout):
    """Everything needed to continue a conversation from its last request."""

    version: int = 0  # the stored version that this value was made from; 0 = not stored yet
    served_head: bytes = b""  # chained digest of the last served request
    signature: bytes = b""  # digest of the agent's tools and role
    has_tools: bool = False  # its requests offer tools
    state: bytes = b""  # encoded run and branch; opaque to the store
    # first conversation of its tree; None for that one itself; never changes
    root_id: str | None = None
    # of a sub-agent, as its client names it, such as `Explore`, or `side call`; "" if unknown
    agent_kind: str = ""
    task: str = ""  # of a sub-agent, in a few words; "" if unknown


class PrefixHashRecord(Value):
    """A digest by which a later request finds its conversation."""

    tenant: str  # part of every digest: the same history of another tenant has another one
    # digest of the history's first message; SQLite stores the hashes of one root together, which
    # keeps a commit cheap
    root: bytes
    digest: bytes  # chained over the messages of the prefix
    conversation_id: str  # the one that a request with this prefix continues
    position: int  # messages that the prefix has
    # `served`, `reply`, or the caller's name for another digest, such as that of a response id
    kind: str = "served"
    step: int = 0  # the run's steps at the end of the prefix


class ItemRecord(Value):
    """One output item, which a later request may refer to by its id alone."""

    id: str  # the provider's
    content: bytes  # the item as JSON


class CallRow(Value):
    """The model call made at one step. The tokens, cost and attempts of repetitions add up; all
    other fields are of the newest call."""

    request_id: str  # the client's `x-request-id`, or the gateway's own
    model_requested: str  # by the client
    model_asked: str  # of the upstream
    model_served: str | None = None  # as the upstream reported it; None when it did not
    deployment: str = ""  # `model_name` of the one that answered, or `default`
    lane: str = ""  # native, litellm, or "" when nothing was sent
    status: int = 200  # of HTTP, as the client saw it
    error: str | None = None  # label of the error; None without one
    finish_reason: str | None = None  # as in chat completions; None when unknown
    input_tokens: int | None = None  # with cached and cache-write tokens; None = not reported
    cached_tokens: int | None = None  # of the input, those read from the provider's cache
    cache_write_tokens: int | None = None  # of the input, those written into the provider's cache
    output_tokens: int | None = None  # with those of reasoning
    reasoning_tokens: int | None = None  # of the output, those that the client does not see
    cost_usd: float | None = None  # US dollars; None when the model has no price
    # US dollars for the same tokens at the requested model's prices
    cost_unsteered_usd: float | None = None
    latency_s: float = 0.0  # seconds from the request's arrival to the end of the answer
    # seconds from the arrival to the upstream's first byte; None without one
    first_byte_s: float | None = None
    overhead_ms: float = 0.0  # the gateway's own milliseconds before the answer began
    timings_ms: Mapping[str, float] = {}  # milliseconds by stage
    attempts: int = 1  # sendings to any upstream
    retries: int = 0  # repetitions of the request by the client
    streamed: bool = False  # the client asked for a stream
    unsteered: str = ""  # why no decision was made; "" when one was
    # tokens and cost are estimated, because the provider reported none
    usage_estimated: bool = False
    # whether the cost is at the prices of a relative, because no list has the model
    price_estimated: bool = False
    reasons: tuple[str, ...] = ()  # of the decision, in words
    # why the provider's cache did not have what the call before had sent: `tools`, `system prompt`,
    # `message N`, `compaction`, `model`, `text of the gateway`, `pause`; "" when it had
    lost_cause: str = ""
    lost_tokens: int = 0  # of the input, those; 0 where the provider does not report cached tokens
    # US dollars beyond the price of reading them from the cache; 0 without known prices
    lost_usd: float = 0.0

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


class PromptMessage(Value):
    """One message that the agent did not write."""

    role: str  # as on the wire
    text: str  # its text parts, joined


class StepContent(Value):
    """The texts of one step, and the reply to the call made at it."""

    # new in this call and of no step; at step 0 the opening of the run
    messages: tuple[PromptMessage, ...] = ()
    thought: str = ""  # text next to the calls
    reasoning: str = ""  # text of the model's reasoning; "" where the client does not send it
    actions: tuple[Action, ...] = ()  # tool calls with their results
    prompted: bool = False  # a user message came before the step
    reply_text: str = ""  # of the call made at this step; the thought of the next one
    reply_actions: tuple[Action, ...] = ()  # tool calls of the reply, without results
    # acts of a person on the step or the reply, each once; a later commit may add some
    human: tuple[Intervention, ...] = ()


class StepReadings(Value):
    """The readings of a step, which share one column."""

    scores: Mapping[str, float] = {}  # by monitor, in [0, 1]; 1 is worst
    fired: tuple[str, ...] = ()  # monitors at or above their threshold
    evidence: Mapping[str, str] = {}  # a short reason for each score above 0
    loop_count: int = 0  # times that a call of the step gave the same result before
    reason: str = ""  # why the difficulty is what it is
    alarms: tuple[str, ...] = ()  # their sentences
    # id of the most similar e1 pattern that cleared its gate; None for none
    e1_match: str | None = None
    # e1 and e2 patterns above the recall threshold and the universal rules for the agent, the most
    # similar first
    candidates: tuple[ETrace, ...] = ()
    # kinds of what was decided to be done, in every mode alike; OWN_MODE alone where the client
    # chose the mode
    acts: tuple[str, ...] = ()


class StepRow(StepReadings):
    """One step of a run: the assessment of the agent's step, and the call made at it. Step 0 is
    the run's first call: no step yet, state INIT, nothing scored."""

    run_id: str  # the run it belongs to
    step_index: int  # scored steps of the run so far, from 0
    at: float  # epoch seconds of the call
    state: str  # difficulty state after scoring, by name
    difficulty: float | None = None  # in [0, 1], 1 is hardest; None when not scored
    # weighted sum of the monitors' scores, in [0, 1]; None when not scored
    composite: float | None = None
    failure_type: str | None = None  # label of the worst monitor that fired; None if none did
    call: CallRow | None = None  # None for a step that is known from a later request only
    content: StepContent | None = None  # the texts; None when not asked for or not stored

    @property
    def began_at(self) -> float:
        """Epoch seconds of the request's arrival; `at` where only the end is known."""
        if self.call is None:
            return self.at
        return self.at - self.call.latency_s


class InjectionRow(Value):
    """One piece of guidance, recorded once, at the step where it was decided."""

    run_id: str  # the run that was given it
    step_index: int  # step at which it was decided
    ordinal: int  # its order among the guidance of one call, from 0
    source: str  # monitor, e1, e2, e3, skip or hand_over
    tier: str | None = None  # of the pattern; None without a pattern
    pattern_id: str | None = None  # None without a pattern
    similarity: float | None = None  # cosine of the look-up; None without one
    failure_type: str | None = None  # label of the failure that it answers; None for any
    severity: str | None = None  # of a monitor's text; None for others
    text: str = ""  # as it was sent
    placement: str = ""  # kind of place in the request: system, message or result
    message_position: int | None = None  # index of the message in the request; None when not placed
    applied: bool = True  # False in shadow mode, where nothing is sent


class RunUpdate(Value):
    """The state of a run after one call. The first update of an id creates the run; later ones
    change only `updated_at`, `ended_at`, `state`, `outcome`, `mode`, `policy_digest` and
    `model_requested`, and add tags of new names."""

    id: str  # conversation id and number of the run, such as `c-1.0`
    sequence: int = 0  # number of the run in its conversation, from 0
    started_at: float  # epoch seconds of its first call
    # epoch seconds of its newest call; 0 = only steps are added to a stored run, and none is
    # created
    updated_at: float
    ended_at: float | None = None  # epoch seconds of its final answer; None while it goes on
    state: str = "INIT"  # difficulty state after the newest step, by name
    outcome: str | None = None  # success, failure or other; None keeps the stored one
    outcome_source: str = ""  # who said so; a `derived` outcome never replaces a reported one
    agent: str = ""  # the client's program, as its user agent names it
    task_preview: str = ""  # beginning of the user's request
    profile: str = ""  # weights of the monitors, by kind of task
    mode: str = "on"  # on, shadow or off, of the newest call
    experiment: str | None = None  # id; None outside of one
    arm: str | None = None  # of the experiment; None outside of one
    unit: str | None = None  # what is drawn into an arm together; None = the conversation
    policy_digest: str = ""  # of the settings that decide; equal for equal policies
    identity_source: str = ""  # where the conversation's id came from
    model_requested: str = ""  # by the newest call
    key_name: str = ""  # name of the gateway key; "" without one
    tags: Mapping[str, str] = {}  # labels of the request and of the key, by name


# Memory of one record without its texts and state, indexes included: 4,470 bytes for a call with
# two hashes, a run and a scored step, measured with tracemalloc.
FIXED_BYTES = 4500


class CallRecord(Value):
    """Everything one request commits, all or nothing. Prefix hashes and runs belong to the
    conversation; every step and injection names a run in `runs`."""

    conversation: ConversationRecord  # its state after the call
    heads: tuple[PrefixHashRecord, ...] = ()  # prefix hashes that find it from now on
    runs: tuple[RunUpdate, ...] = ()  # the newest one, and earlier ones that changed
    steps: tuple[StepRow, ...] = ()  # scored by this request, and the call at the newest one
    injections: tuple[InjectionRow, ...] = ()  # guidance that is new with this call
    items: tuple[ItemRecord, ...] = ()  # output items of the answer
    decisions: tuple[DecisionRow, ...] = ()  # about lessons that fitted the call

    def check(self) -> None:
        """Raises: ValueError when the parts do not belong together."""
        known = {run.id for run in self.runs}
        named = {step.run_id for step in self.steps} | {row.run_id for row in self.injections}
        if not named <= known:
            raise ValueError(f"run_id: {min(named - known)!r} is not among the runs of this call")

    @property
    def memory_bytes(self) -> int:
        """About how many bytes of memory it takes."""
        size = FIXED_BYTES + len(self.conversation.state)
        size += sum([len(item.content) for item in self.items])
        size += sum([len(row.text) for row in self.injections])
        for step in self.steps:
            content = step.content
            if content is None:
                continue
            size += len(content.thought) + len(content.reasoning) + len(content.reply_text)
            size += sum([len(message.text) for message in content.messages])
            for action in (*content.actions, *content.reply_actions):
                size += len(action.arguments) + len(action.observation or "")
        return size
