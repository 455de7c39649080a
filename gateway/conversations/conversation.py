"""One conversation in memory, as three values.

    history   what connects its requests: hashes, bytes, the answers that may be continued by id
    run       its newest run: the memory of guidance, judged scores, the fold
    unsaved   what the store does not have yet, and which version it has

Whatever can be derived from the transcript is a cache and may be missing."""

import asyncio
from collections.abc import Container, Iterable, Mapping, Sequence
from typing import Any

from msgspec import Struct, field
from msgspec.structs import replace

from gateway.core.decision_settings import Policy
from gateway.core.fold import RunSnapshot, StepOutcome
from gateway.core.fsm import FSMState
from gateway.core.steer import RunMemory, RunPosition
from gateway.core.step import Step
from gateway.dialects.base import EarlierHistory
from gateway.steering.identity import Awaits, Branch, Incoming
from gateway.steering.runs_of_transcript import ConversationFold
from gateway.steering.sub_agents import NOBODY, SubAgent
from gateway.values import FieldDict, Value
from gateway.wire.body_prefix import BodyPrefix
from gateway.wire.message_identity import digest_fields
from gateway.wire.prefix_hash import ChainState, PrefixHashes


class KeptFold(Value):
    """A fold that another gateway has overtaken, kept until a request continues its messages."""

    fold: ConversationFold  # over the messages that were read here
    digest: bytes  # prefix hash of these messages

    def has_read(self, hashes: PrefixHashes) -> bool:
        """Whether a history begins with the messages that were read, at the same positions."""
        at = self.fold.consumed - hashes.start
        return 0 <= at < len(hashes.digests) and hashes.digests[at] == self.digest


MAX_UNSAVED_STEPS = 512  # the newest, while the store is unavailable
MAX_JUDGED_SCORES = 1000  # the newest; no window of the state machine is longer
MAX_ANSWERS = 64  # the newest final answers whose places are kept
# Most conversations above one whose ids are kept: the root, and the nearest.
MAX_DEPTH = 32
KEPT_OUTCOMES = 8  # the newest steps whose texts a look-up may need (E2 reads five)
# Answers of a conversation kept in memory; a fork may continue from one a few calls back.
KEPT_PER_CONVERSATION = 8
STORED_PER_CONVERSATION = 2  # the newest, and the one before, which a retry continues from

# Start of the kind of a reply's stored prefix hash; the hash that it is a reply to follows.
REPLY = "reply:"
# The kind of a stored prefix hash that is computed from the id of an answer.
RESPONSE_KIND = "response"
# Large, and not part of any digest or step.
_LEFT_OUT = ("encrypted_content", "logprobs", "annotations")
_SHORT_DIGEST_BYTES = 8  # of 16; 64 bits suffice for the messages of one conversation
_MAX_SEEN = 8192  # the newest messages: 64 kB
_MANY_NEW = 32
_MAX_SEEN_STORED = 512  # 4 kB: kept of an idle conversation, stored when its client trims


class SeenDigests:
    """The digests of a conversation's messages, the newest `_MAX_SEEN` of them."""

    __slots__ = ("_digests",)

    def __init__(self, kept: bytes = b""):
        self._digests = bytearray(kept)

    def newest(self) -> bytes:
        """The newest `_MAX_SEEN_STORED` digests, for a child conversation or the store."""
        return bytes(self._digests[-_MAX_SEEN_STORED * _SHORT_DIGEST_BYTES :])

    def add(self, digests: Iterable[bytes | None]) -> None:
        """Add the digests of messages; None for a message that has none."""
        fresh = [digest[:_SHORT_DIGEST_BYTES] for digest in digests if digest is not None]
        known: Container[bytes] = self
        if len(fresh) >= _MANY_NEW:  # searching the bytes takes up to 20 us for each
            known = set(self._short())
        for short in dict.fromkeys(fresh):
            if short not in known:
                self._digests += short
        del self._digests[: -_MAX_SEEN * _SHORT_DIGEST_BYTES]

    def join(self, other: "SeenDigests") -> None:
        """Add the digests that another process has seen, as the newest ones."""
        self.add(other._short())

    def _short(self) -> list[bytes]:
        kept = bytes(self._digests)
        size = _SHORT_DIGEST_BYTES
        return [kept[at : at + size] for at in range(0, len(kept), size)]

    def __contains__(self, digest: object) -> bool:
        """Whether a message with this digest was added."""
        if not isinstance(digest, bytes):
            return False
        short = digest[:_SHORT_DIGEST_BYTES]
        at = -1
        while (at := self._digests.find(short, at + 1)) >= 0:
            if at % _SHORT_DIGEST_BYTES == 0:
                return True
        return False


def first_hash(hashes: PrefixHashes) -> bytes:
    """The hash of the first message, by which the store groups the hashes of a history; empty for
    a history without one, such as a system message alone."""
    if hashes.candidates:
        return hashes.candidates[-1][1]
    return b""


class StoredResponse(Value):
    """One answer, with the history and the run as they were when it was given."""

    id: str  # the provider's, by which a request continues it
    chain: ChainState  # hash state after the request
    after: ChainState  # hash state after the reply too
    snapshot: RunSnapshot  # the run when the answer was given
    reply: tuple[Any, ...] = ()  # its items; empty after a restart, if it is not storable
    storable: bool = True  # it may be written to the store

    def earlier(self) -> EarlierHistory:
        """Returns the history that a request leaves out if it continues from this answer."""
        return EarlierHistory(chain=self.chain if self.reply else self.after, reply=self.reply)


def response_hash(tenant: str, id: str) -> bytes:
    """The digest under which the store keeps the id of an answer."""
    return digest_fields(RESPONSE_KIND, tenant, id)


def items_by_id(reply: Iterable[Any]) -> FieldDict:
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


StepPlace = tuple[str, int]  # the id of a run, and one of its steps


class History(Struct, kw_only=True):
    """The connection between the requests of a conversation."""

    branch: Branch  # what a next request is matched with
    chain: ChainState | None = None  # hash state after the latest request; None after a restart
    # offsets in the latest body, to read only what is new in the next one
    prefix: BodyPrefix | None = None
    # digests of the replies that earlier requests had
    seen: SeenDigests = field(default_factory=SeenDigests)
    # hash of the history's first message, by which the store groups the prefix hashes
    root: bytes = b""
    # hash of the messages from the first reply on, up to those of `chain`; None when unknown
    tail: bytes | None = None
    prefix_hashes: list[bytes] = []  # those under which the index knows the conversation
    # the newest answers that a request may continue, by id, oldest first
    responses: dict[str, StoredResponse] = {}
    # prefix hash of the newest request whose answer the client broke off; not stored
    cut: bytes = b""
    # the answer of another conversation that this one was forked to replace, until that is noted;
    # not stored
    dropped: StepPlace | None = None

    def knows_replies(self, request: Incoming) -> bool:
        """Whether every reply in the request but the latest was in an earlier one: a client may
        drop and rewrite much of its history, but it does not invent replies."""
        hashes = request.hashes
        for position, digest in enumerate(hashes.messages):
            before, after = hashes.turns[position : position + 2]
            if after == hashes.state.turns:
                return True
            if after > before and digest is not None and digest not in self.seen:
                return False
        return True


class Workload(Value):
    """The kind of work that one client asks of one model with one set of tools, for one tenant."""

    tenant: str  # owner of the runs
    client: str  # the agent's program; "" when unknown
    requested: str  # model that the client named
    key: str  # digest of client, tools and requested model


class RoutedCall(Value):
    """The latest call and the model it was routed to; a retry of it goes to the same model."""

    prefix_hash: bytes  # of the whole request
    requested: str  # model that the client named
    model: str  # that it was sent to


class RunStart(Value, array_like=True):
    """A replacement for the part of the transcript that a compaction removed."""

    snapshot: RunSnapshot  # the run before the first message that is scored
    # messages at the front of the new history whose steps are in `snapshot` already
    offset: int = 0
    logged_in: str = ""  # conversation whose run log has those steps; "" at the start of a run


class Undecided(Value):
    """A call of the run whose steps were read here, but not decided about."""

    position: RunPosition  # state of the run when the call was made
    messages: int  # how many its request had; -1 when that cannot be seen


class CurrentRun(Struct, kw_only=True):
    """The newest run of a conversation."""

    index: int = 0  # number of the run in its conversation, from 0
    started_at: float = 0.0  # epoch seconds of its first call; 0 before that
    # what cannot be derived from the transcript
    memory: RunMemory = field(default_factory=RunMemory)
    # scores in [0, 1] that a model gave, by their keys, the newest last
    judged: dict[str, float] = {}
    # the latest call and its model, for a retry; None while nothing was routed
    routed: RoutedCall | None = None
    # routed models that refused a call, with the calls for which each is not used
    resting: dict[str, int] = {}
    unscored_calls: int = 0  # newest calls that were recorded without their step being scored
    start: RunStart | None = None  # set when the transcript alone does not give the run's beginning
    # for each final answer that was delivered, the messages that the history then had
    answers: list[int] = []
    workload: Workload | None = None  # what the run is counted for; None when it is not counted
    workload_noted: bool = False  # its beginning was counted
    fold: ConversationFold | None = None  # over the transcript; None when it is not in memory
    # what was read here before another gateway went on; then `fold` is None
    kept_fold: KeptFold | None = None
    # calls that another gateway served while the store could not be read, oldest first
    undecided: list[Undecided] = []

    def begin(self, index: int, now: float) -> None:
        """Start the next run with fresh caps, counts and scores."""
        self.index = index
        self.started_at = now
        self.memory = self.memory.next_run()
        self.judged.clear()
        self.undecided.clear()
        self.workload = None
        self.workload_noted = False

    def note_answer(self, count: int) -> None:
        """A final answer was delivered; with it the history has `count` messages."""
        if count not in self.answers:
            self.answers.append(count)
        del self.answers[:-MAX_ANSWERS]

    def judge(self, key: str, score: float) -> None:
        """Keep a judged score; the oldest are dropped."""
        self.judged[key] = score
        for old in list(self.judged)[:-MAX_JUDGED_SCORES]:
            del self.judged[old]

    def ready_fold(self, policy: Policy, earlier: Sequence[Step] = ()) -> ConversationFold:
        """The fold over the transcript; without one in memory a new one, after `earlier` steps."""
        if self.fold is None and self.kept_fold is not None:
            self.fold = self.kept_fold.fold
            self.kept_fold = None
            self.fold.share(self.judged, self.answers)
        if self.fold is None:
            self.fold = ConversationFold(
                policy,
                base=self.start.snapshot if self.start else None,
                offset=self.start.offset if self.start else 0,
                keep=KEPT_OUTCOMES,
                earlier=earlier,
                judged=self.judged,
                answers=self.answers,
            )
        return self.fold


class Unsaved(Struct, kw_only=True):
    """Changes that the store does not have yet."""

    version: int = 0  # the one that the store has; 0 before there is one
    steps: dict[tuple[int, int], StepOutcome] = {}  # scored steps to be stored, by run and index
    snapshot: RunSnapshot | None = None  # the newest run when it was last stored; None before that
    # the run whose final answer was the latest reply; None for another reply
    ended_run: int | None = None
    state_before_end: FSMState = FSMState.NORMAL  # that run's state before END

    def add(self, outcomes: Iterable[StepOutcome]) -> None:
        """Add newly scored steps, without those that a restart has scored again."""
        if self.snapshot:
            stored = (self.snapshot.run, self.snapshot.steps)
        else:
            stored = (-1, 0)
        for outcome in outcomes:
            if (outcome.run, outcome.index) > stored:
                self.steps[outcome.run, outcome.index] = outcome
        for key in list(self.steps)[:-MAX_UNSAVED_STEPS]:
            del self.steps[key]


class Conversation(Struct, kw_only=True):
    """One conversation."""

    tenant: str  # owner; requests of another never reach it
    source: str  # where its id came from
    external_key: str | None  # the client's own id; None without one
    created_at: float  # epoch seconds of its first request
    history: History  # what a next request is matched with
    # decides about its arm in an experiment: what the client named, or the unit of the conversation
    # that this one was forked from or started by; "" for the conversation itself
    unit: str = ""
    ancestors: tuple[str, ...] = ()  # those above it, the root of the tree first; empty for a root
    sub_agent: SubAgent = NOBODY  # whose conversation it is; a main agent's where nothing says so
    run: CurrentRun = field(default_factory=CurrentRun)  # the newest one
    unsaved: Unsaved = field(default_factory=Unsaved)  # what the next commit writes
    # held while a decision is made or a call is stored
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    id: str = ""  # "" = taken from the branch

    def __post_init__(self) -> None:
        self.id = self.history.branch.conversation_id

    @property
    def root_id(self) -> str:
        """The first conversation of the tree: all forks and sub-agents add up under it."""
        if self.ancestors:
            return self.ancestors[0]
        return self.id

    @property
    def busy(self) -> bool:
        """Whether a call is in progress, or being stored."""
        return self.history.branch.awaits is Awaits.MODEL or self.lock.locked()

    def snapshot(self) -> RunSnapshot | None:
        """The newest run, in state END when the latest reply was its final answer."""
        fold = self.run.fold
        if fold is None:
            newest = self.unsaved.snapshot
        else:
            newest = fold.runs[-1].snapshot()
        if newest is not None and newest.run == self.unsaved.ended_run:
            return RunSnapshot(
                run=newest.run, state=FSMState.END, history=newest.history, steps=newest.steps
            )
        return newest

    def snapshot_before_reply(self) -> RunSnapshot | None:
        """The newest run as it was before its latest reply, final answer or not."""
        if self.run.fold is not None:
            return self.run.fold.runs[-1].snapshot()
        stored = self.unsaved.snapshot
        if stored is not None and stored.state is FSMState.END:
            return replace(stored, state=self.unsaved.state_before_end)
        return stored

    def stored(self, version: int, snapshot: RunSnapshot | None) -> None:
        """The store has version `version`, with every step up to `snapshot`."""
        if self.run.fold is not None:
            self.unsaved.state_before_end = self.run.fold.runs[-1].state
        self.unsaved.version = version
        self.unsaved.snapshot = snapshot
        self.unsaved.steps.clear()

    def forget_transcript(self) -> None:
        """Drop all caches of the transcript: the next request is read from its first message."""
        self.run.fold = self.run.kept_fold = None
        self.history.chain = self.history.prefix = self.history.tail = None
        self.history.seen = SeenDigests(self.history.seen.newest())


def run_id(conversation_id: str, run: int) -> str:
    """The id of a run: the conversation's and a number, equal on every replica."""
    return f"{conversation_id}.{run}"
