"""Sessions: what people see, pay for and stop. A session is a tree of conversations, from the first
one, the root, to its sub-agents, forks and side calls, each with its runs."""

from typing import Literal

from gateway.steering.transcript.client_texts import title_words
from gateway.steering.transcript.user_words import title_of
from gateway.stores.records import ConversationAbout, InjectionRow, StepContent, StepRow
from gateway.stores.severity import Severity
from gateway.stores.totals import RunRecord, TokenTotals
from gateway.text.sanitize import one_line
from gateway.values import Value

# Newest runs of a session that a list has; `SessionStore.session` has all.
SHOWN_RUNS = 10
# Calls of one session that are read for its page, the first ones: about 150 ms in the thread that
# reads.
MOST_CALLS = 10_000
# The `agent_kind` of a conversation that a client holds for itself: a title, a topic, a quota.
SIDE = "side call"
Role = Literal["main", "sub_agent", "fork", "side_call"]
_TITLE = 140  # characters


class SessionSums(TokenTotals):
    """Sums over all runs of a session, imported ones too."""

    conversations: int  # in the tree, with the root
    run_count: int  # runs of all conversations
    steps: int  # answers of the agents, final ones too
    calls: int  # sent upstream, each repetition counted
    errors: int  # answers of status 400 and above, and incomplete ones
    injections: int  # pieces of guidance that reached the model
    composite_peak: float  # the highest of a step, in [0, 1]
    severity: Severity  # the worst that a run came to


class Session(SessionSums):
    """One session, as lists show it."""

    id: str  # of the conversation at the root
    tenant: str  # owner
    title: str  # a person's first words, else the agent's task, else what it did first; never empty
    started_at: float  # epoch seconds of its first request
    last_at: float  # epoch seconds of its newest call
    runs: tuple[RunRecord, ...]  # the newest SHOWN_RUNS, or all; the newest first

    @property
    def newest(self) -> RunRecord:
        """The run that went on last."""
        return max(self.runs, key=lambda run: run.last_at)

    @property
    def duration_s(self) -> float:
        """Seconds from the first request to the newest call."""
        return max(0.0, self.last_at - self.started_at)


class SessionPage(Value):
    """One page of a list of sessions."""

    sessions: tuple[Session, ...]  # in the order that was asked for
    next_cursor: str | None  # None on the last page


class Member(ConversationAbout):
    """One conversation of a session."""

    kind: str  # of a sub-agent, as its client names it, such as `Explore`; "" if unknown
    task: str  # of a sub-agent, in a few words; "" if unknown
    side_calls: int  # calls that its client made aside: titles, summaries
    role: Role  # the main agent, or what it is to its parent
    depth: int  # conversations above it
    runs: tuple[RunRecord, ...]  # oldest first


class SessionTree(Value):
    """A session with its conversations."""

    session: Session  # with all its runs
    members: tuple[Member, ...]  # the root first, then by their time


class SessionCalls(Value):
    """The calls of a session, and what steering cost beside them."""

    # those with a call, by the time of its end, at most MOST_CALLS; content where a person acted
    steps: tuple[StepRow, ...]
    texts: tuple[InjectionRow, ...]  # that were sent, by run and step
    reader_tokens: int  # used by `reader.model` for its runs
    reader_usd: float  # US dollars of these


def said_title(text: str) -> str:
    """A title of what a person asked for; "" where a client wrote it."""
    if words := title_words(text):
        return short_title(title_of(words))
    return ""


def short_title(text: str) -> str:
    """A text as one line of a list."""
    return one_line(text, _TITLE).strip()


def called_title(content: StepContent | None) -> str:
    """The first call of a step; "" without one."""
    if content is None:
        return ""
    called = content.actions or content.reply_actions
    if called:
        from gateway.stores.call_lines import call_line  # few commands need its patterns

        return call_line(called[0], _TITLE)
    return ""


def answered_title(content: StepContent | None) -> str:
    """The words of the agent at a step; "" if nothing."""
    if content is None:
        return ""
    return short_title(content.thought or content.reply_text)
