"""Protocols of a store, signals between gateways on one store, and the errors a store raises.

Every store must pass the checks of `steering_gateway_testing.store_conformance`."""

import builtins
from collections.abc import Callable, Sequence
from typing import ClassVar, Protocol

from gateway.data_files import read_toml
from gateway.stores.records import CallRecord, ConversationRecord, PrefixHashRecord
from gateway.values import Texts, frozen

# Most hashes `find_prefix_hashes` returns: enough for a hundred parallel runs of one history.
MAX_HEADS = 256
MAX_BRANCHES = 64  # most conversations `branches` returns: sub-agents and forks behind one id


@frozen
class PruneReport:
    """The effect of one retention pass."""

    conversations: int  # number removed
    runs: int  # number removed
    bytes_before: int  # in use before the pass
    bytes_after: int  # in use after it


class StoreError(Exception):
    """The operation failed, and nothing of it was stored. `label`: the value in metrics."""

    label: ClassVar[str] = "store_error"

    def __init_subclass__(cls, *, label: str | None = None) -> None:
        super().__init_subclass__()
        cls.label = label or cls.label


class VersionConflict(StoreError, label="conflict"):
    """The stored version is not the one the caller started from; reload and recompute."""

    def __init__(self, conversation_id: str, *, expected: int, actual: int):
        at = f"conversation {conversation_id!r} is at version {actual}"
        super().__init__(f"{at}, not at {expected}")
        self.conversation_id = conversation_id
        self.expected = expected
        self.actual = actual


class StoreCorrupt(StoreError, label="corrupt"):
    """The file is damaged, or is not a database."""


class SchemaMismatch(StoreError, label="schema"):
    """The file was written by a newer version, or by another application."""


class StoreUnavailable(StoreError, label="unavailable"):
    """The store cannot be reached or written at the moment."""


class StoreBusy(StoreUnavailable, label="busy"):
    """Another process held the lock for longer than `busy_timeout_ms`."""


class StoreFull(StoreUnavailable, label="full"):
    """The disk, or the database's own limit, is full."""


class StoreReadOnly(StoreUnavailable, label="read_only"):
    """The file or its directory cannot be written."""


class StoreReplaced(StoreUnavailable, label="replaced"):
    """The file was deleted or replaced: what is written to it would be lost. `reopen` helps."""


class StoreDamaged(StoreReplaced, label="damaged"):
    """The file may be damaged: what is written to it may be lost. `reopen` looks, and helps."""


class StoreUnreachable(StoreUnavailable):
    """No server answers in time, or it is starting, stopping or out of connections."""


class StoreOverloaded(StoreUnavailable, label="overloaded"):
    """`queue_limit` operations are already waiting."""


class StoreClosed(StoreUnavailable, label="closed"):
    """The store was closed."""


Meanings = list[tuple[tuple[type[Exception], ...], type[StoreError], str]]


def meanings(package: str, driver: object) -> Meanings:
    """The table `errors.toml` of a database: errors of its driver or of Python, the error of the
    store that they become, and the words for people."""
    return [
        (
            tuple(getattr(driver, name, None) or getattr(builtins, name) for name in row["errors"]),
            globals()[row["becomes"]],
            row["words"],
        )
        for row in read_toml(package, "errors.toml")["meaning"]
    ]


def meaning_of(error: BaseException, known: Meanings) -> tuple[type[StoreError], str]:
    """The error of the store and the words by the first row that fits."""
    for kinds, meaning, words in known:
        if isinstance(error, kinds):
            return meaning, words
    return StoreError, "refused the operation"


class StateStore(Protocol):
    """Conversations, found by the hashes of their history and saved by compare-and-swap. Every
    method may raise StoreError."""

    async def find_prefix_hashes(
        self, tenant: str, digests: Sequence[bytes]
    ) -> list[PrefixHashRecord]:
        """The stored prefix hashes among `digests`, which are the chained digests of the whole
        history, the root first. Longest prefix first, then the newest conversation; at most
        MAX_HEADS. Prefixes at least 32 digests shorter than the longest may be left out."""

    async def load(self, tenant: str, conversation_id: str) -> ConversationRecord | None:
        """The conversation as last saved, None when the tenant has no conversation of that id."""

    async def version(self, tenant: str, conversation_id: str) -> int:
        """The version of the conversation as last saved, 0 when the tenant has none of that id."""

    async def branches(self, tenant: str, external_key: str) -> list[ConversationRecord]:
        """The conversations of a client's own id: last used first, at most MAX_BRANCHES."""

    async def find_items(self, tenant: str, ids: Sequence[str]) -> dict[str, bytes]:
        """The output items with these ids, as JSON, by id; unknown ids are left out."""

    async def commit(self, call: CallRecord) -> int:
        """Store all of `call` durably, and return the conversation's new version. A call that is
        already the newest one stored at its step is not counted again, so that a commit may be
        repeated. Raises: VersionConflict when `call.conversation.version` is not the stored version
        (0: not stored yet). StoreError when an id belongs to another tenant. ValueError: see
        `CallRecord.check`."""

    async def ping(self) -> None:
        """Return if the store can be read and written. Raises: StoreError."""

    async def reopen(self) -> str | None:
        """Connect again, after StoreReplaced or to give the tables this version's form; a missing
        database is created, one that is damaged is replaced. Returns the name under which that is
        kept, if it was. Raises: StoreError."""

    async def close(self) -> None:
        """Finish the accepted operations, then refuse more. A second call does nothing."""


# Called with the kind of a signal and its ids; with RESYNC after signals may have been missed.
OnSignal = Callable[[str, Texts], None]
RESYNC = "resync"
# Gateway keys, patterns or holds on runs have changed; the store itself sends these.
KEYS = "keys"
PATTERNS = "patterns"
CONTROLS = "controls"
# Somebody reads live events at another gateway; a call was recorded.
WATCHING = "watching"
STEP = "step"


class Signals(Protocol):
    """Signals of the other gateways on the store. None of them is certain to arrive."""

    async def send(self, kind: str, **ids: str) -> None:
        """Tell the others. Raises: StoreError."""

    async def follow(self, on_signal: OnSignal) -> None:
        """Listen without end; a lost connection is made again."""
