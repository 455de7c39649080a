"""A step as the core knows it: what was called, what came back, and facts that were read of both.

Transcripts are read around the core (`gateway/steering/transcript`), and so is the language of
calls and results (`gateway/steering/evidence`). The core compares facts, and reads no text of a
tool for its meaning."""

from collections.abc import Callable, Sequence
from typing import Literal, Protocol

from gateway.values import Value

# What the message before a step tells the agent: to go on, that it repeats itself, that its call
# was not found, what came before a compaction, that the person has stopped it again and again.
Cue = Literal["", "go", "reminded", "uncalled", "compacted", "stopped"]


class Action(Value):
    """One tool call with its result."""

    name: str  # of the tool; "" for a result whose call could not be read
    arguments: str = ""  # as the model wrote them, mostly JSON
    observation: str = ""  # text of the result; "" while there is none
    is_error: bool = False  # the protocol flags the result as an error
    image: int = 0  # checksum of the images in the result or right behind it; 0 without any


class Step(Value):
    """One assistant message and its answers."""

    index: int  # counts the steps of a conversation from 0
    # text next to the calls, stripped, because clients change its ends when they echo
    thought: str = ""
    actions: tuple[Action, ...] = ()  # parallel calls are all kept, in the order of the reply
    reasoning: str = ""  # text of the model's reasoning; "" where the client does not send it
    tokens: int | None = None  # output tokens of the call; None when unknown
    prompted: bool = False  # a user message came before it
    cue: Cue = ""  # direction that the message before it gave; "" for none


class CallArguments(Protocol):
    """The arguments of a call, to compare it with another one."""

    @property
    def identity(self) -> int:
        """Digest of the names in the arguments; holds within one process."""

    @property
    def words(self) -> frozenset[str]:
        """The vocabulary of all arguments."""

    @property
    def formal_words(self) -> frozenset[str]:
        """The words of the queries, programs and long commands in the arguments."""

    @property
    def objects(self) -> frozenset[str]:
        """The files, hosts, ids and tables among the arguments."""

    def is_like(self, other: "CallArguments") -> bool:
        """True if the names are equal and the formal words of one include those of the other."""


class Effect(Value):
    """The kind of a call. One call may be of several kinds."""

    reads: bool  # it shows content of files or pages
    changes: bool  # files may differ afterwards
    waits: bool  # it only lets time pass
    settles: bool  # its success makes the state of the files a good one: a test, a commit
    looks_up: bool  # it only asks, such as a search
    plans: bool = False  # it writes a list of what is to be done
    acts: bool = False  # it may change something that is no file, such as a record behind an API


class FileEdit(Value):
    """One change of one file."""

    path: str  # as the call wrote it
    old: int  # digest of the text taken out; 0 when the call did not state it
    new: int  # digest of the text put in; 0 when the call did not state it
    is_line: bool = False  # the text put in is one line


class Answer(Value):
    """The result of a call."""

    result: int  # digest of the result, equal for the same result: see `sameness`
    words: frozenset[str]  # of its opening, to compare two results
    empty: bool  # it holds nothing but blanks or a phrase for "nothing"
    pending: bool  # the result is to come later
    transient: bool  # it asks to try again
    negative: bool  # it says no: not found, not possible
    by_user: bool = False  # it is from the user, who turned the call down
    cancelled: bool = False  # the call was not made, because another one of its batch failed


class CallText(Protocol):
    """A call, for people."""

    @property
    def label(self) -> str:
        """The object of the call: its command line, file, address or query."""


class ActionFacts(Value):
    """One tool call and its result."""

    tool: str  # the tool's name
    text: CallText  # what was called, for people
    operation: str  # the tool with its sub-command; for a shell the program that it starts
    call: int  # digest of operation and arguments
    question: CallArguments  # the arguments, read only when another call is compared with this one
    program: int | None  # digest of what is executed; None when nothing is
    effect: Effect  # what the call does to files and to the run
    edits: tuple[FileEdit, ...]  # changes of files that the arguments state
    answer: Answer  # facts of the result; an empty one when there is none yet
    # signature of a reported failure, equal for the same failure; None without one
    failure: str | None
    # (file, first line, last line) that it shows; None when not stated
    span: tuple[str, int, int] | None = None

    command: str = ""  # the command line that a shell runs; "" for another tool
    sought: str = ""  # the term of a search that found nothing, letters and digits in lower case
    denied: bool = False  # the answer says no without an error; of a look-up, no is an answer
    bare: bool = False  # the failure has no words of its own, such as an exit code
    of_object: bool = False  # the failure is that of the host or table that was asked for

    @property
    def works(self) -> bool:
        """True if it shows or changes files, or runs a program."""
        return self.effect.changes or self.effect.reads or self.program is not None


class StepFacts(Value):
    """One step, as far as later steps are compared with it."""

    actions: tuple[ActionFacts, ...]  # the tool calls in the order of the reply
    thought: int  # digest of the text next to the calls, lower case; holds within one process
    vocabulary: frozenset[str]  # words of both ends of the thought, see THOUGHT_CHARS
    words: int  # number of words read of the thought
    hedges: int  # number of hedging words and phrases in it
    retracts: bool  # the thought takes back something said earlier
    asks: bool  # the step calls nothing and hands the turn to the user
    prompted: bool  # a user message came before the step
    cue: Cue = ""  # direction that the message before the step gave; "" for none
    reminded: bool = False  # the agent's harness has just reminded it that it repeats itself


# Reads the facts of a step; pure.
Describe = Callable[[Step], StepFacts]


def alike(a: frozenset[str], b: frozenset[str], threshold: float) -> bool:
    """True when the Jaccard similarity of two vocabularies is at least `threshold`, in (0, 1]."""
    size_a = len(a)
    size_b = len(b)
    if not size_a or not size_b or size_a < threshold * size_b or size_b < threshold * size_a:
        return False
    shared = len(a & b)
    return shared >= threshold * (size_a + size_b - shared)


MAX_STEP_CHARS = 600  # text of one step that is used; the time to embed it stays bounded
_ARGUMENT_CHARS = 120
_ERROR_CHARS = 200


def recent_text(steps: Sequence[Step], count: int) -> str:
    """The newest `count` steps as text for a look-up or a judge, oldest first; "" without text. A
    step is its thought (its reasoning when it has none), then its calls; the end of a failed call's
    result is added, because that is where the error is named."""
    recent = steps[-count:] if count > 0 else ()
    return "\n".join(text for step in recent if (text := _step_text(step)))


def _step_text(step: Step) -> str:
    thought = (step.thought or step.reasoning).strip()
    parts = [thought[-MAX_STEP_CHARS // 2 :]] if thought else []
    for action in step.actions:
        text = f"{action.name} {action.arguments[:_ARGUMENT_CHARS]}".strip()
        error = f" {action.observation[-_ERROR_CHARS:].strip()}" if action.is_error else ""
        parts.append(text + error)
    return " ".join(parts)[:MAX_STEP_CHARS]
