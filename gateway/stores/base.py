"""What the gateway needs of a store, and how a store fails.

    Exception
    └── StoreError                    label `store_error`
        ├── VersionConflict           another request has moved the conversation on
        ├── StoreCorrupt              the file is damaged, or no database at all
        ├── SchemaMismatch            the file is a newer version's, or another application's
        └── StoreUnavailable          may pass: the next write can succeed
            ├── StoreBusy             locked by another process for too long
            ├── StoreFull             no room on the disk
            ├── StoreReadOnly         the file or its directory cannot be written
            ├── StoreOverloaded       more waits to be written than is allowed
            └── StoreClosed           it was closed

Conformance: `tests/stores/conformance.py` runs against every backend.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import ClassVar, Protocol

from gateway.stores.queries import (
    ConversationPage,
    Facets,
    HealthSummary,
    PageRequest,
    PruneReport,
    RunFilter,
    RunPage,
    RunTrace,
)
from gateway.stores.records import CallRecord, ConversationRecord, HeadRecord
from gateway.stores.totals import RunRecord

MAX_HEADS = 256
"""Most heads `find_heads` returns: those of a hundred parallel runs with one history."""

MAX_BRANCHES = 64
"""Most conversations `branches` returns: sub-agents and forks behind one id."""


class StoreError(Exception):
    """The store could not do what was asked, or was asked what cannot be; nothing was kept.

    `label` is the closed set used for metrics.
    """

    label: ClassVar[str] = "store_error"


class VersionConflict(StoreError):
    """The conversation is not at the version the caller started from; reload and recompute."""

    label = "conflict"

    def __init__(self, conversation_id: str, *, expected: int, actual: int) -> None:
        super().__init__(
            f"conversation {conversation_id!r} is at version {actual}, not at {expected}"
        )
        self.conversation_id = conversation_id
        self.expected = expected
        self.actual = actual


class StoreCorrupt(StoreError):
    """The file is damaged, or is not a database."""

    label = "corrupt"


class SchemaMismatch(StoreError):
    """The file was written by a newer version, or by another application."""

    label = "schema"


class StoreUnavailable(StoreError):
    """The store cannot be reached or written now."""

    label = "unavailable"


class StoreBusy(StoreUnavailable):
    """Another process held the lock for longer than `busy_timeout_ms`."""

    label = "busy"


class StoreFull(StoreUnavailable):
    """The disk, or the database's own limit, is full."""

    label = "full"


class StoreReadOnly(StoreUnavailable):
    """The file or its directory cannot be written."""

    label = "read_only"


class StoreOverloaded(StoreUnavailable):
    """`queue_limit` operations are waiting already."""

    label = "overloaded"


class StoreClosed(StoreUnavailable):
    """The store was closed."""

    label = "closed"


class StateStore(Protocol):
    """Conversations, found by the digests of their history and saved by compare and swap.

    Every method may raise StoreError.
    """

    async def find_heads(self, tenant: str, digests: Sequence[bytes]) -> list[HeadRecord]:
        """The stored heads among a history's digests: the longest, and those near it.

        `digests` are the chained digests of the whole history in message order; the first is
        the root. Longest head first, the newest conversation first among equals, at most
        MAX_HEADS. Heads at least 32 digests shorter than the longest may be left out.
        """

    async def load(self, tenant: str, conversation_id: str) -> ConversationRecord | None:
        """The conversation as last saved, None when this tenant has none of that id."""

    async def branches(self, tenant: str, external_key: str) -> list[ConversationRecord]:
        """The conversations behind an id from outside: last used first, at most MAX_BRANCHES."""

    async def find_items(self, tenant: str, ids: Sequence[str]) -> dict[str, bytes]:
        """The items of answers with these ids, as JSON, by id; those not known are left out."""

    async def commit(self, call: CallRecord) -> int:
        """Keep all of `call`, durably, and return the conversation's new version.

        Raises: VersionConflict when `call.conversation.version` is not the stored one (0: not
        stored yet); then nothing was kept. StoreError when the conversation's or a run's id is
        another tenant's. ValueError when a step or injection names a run not in `call.runs`.
        """

    async def ping(self) -> None:
        """Return when the store can be reached. Raises: StoreError."""

    async def close(self) -> None:
        """Finish what was accepted, then refuse more. Calling it again does nothing."""


class RunStore(Protocol):
    """The run log. `tenant` None means every tenant; every method may raise StoreError."""

    async def list_runs(self, runs: RunFilter, page: PageRequest) -> RunPage:
        """One page of the runs admitted. Raises: ValueError for a foreign cursor."""

    async def count_runs(self, runs: RunFilter) -> int:
        """How many runs are admitted."""

    async def get_run(
        self,
        run_id: str,
        *,
        tenant: str | None,
        content: bool = True,
        after_step: int = -1,
        limit: int | None = None,
    ) -> RunTrace | None:
        """One run with its steps above `after_step`, None when the tenant has none of that id.

        `limit` ends the steps, and the guidance, at step `after_step + limit`.

        Without `content` the rows come without texts; guidance keeps its own.
        """

    async def set_outcome(
        self, run_id: str, outcome: str, *, source: str, tenant: str | None
    ) -> bool:
        """Set success, failure or other; False when the tenant has no such run.

        Raises: ValueError for another outcome.
        """

    async def list_conversations(
        self,
        *,
        tenant: str | None,
        external_key: str | None = None,
        limit: int = 50,
        cursor: str | None = None,
    ) -> ConversationPage:
        """One page of conversations, newest first. Raises: ValueError for a foreign cursor."""

    async def facets(self, *, tenant: str | None) -> Facets:
        """The agents, models, failure types, experiments and arms that occur."""

    async def health_summary(self, runs: RunFilter) -> HealthSummary:
        """How the admitted runs went, taken together."""

    async def experiment_runs(self, experiment: str, *, tenant: str | None) -> list[RunRecord]:
        """Every run of an experiment, oldest first, for a report."""

    def export_runs(self, runs: RunFilter, *, content: bool = True) -> AsyncIterator[RunTrace]:
        """The admitted runs with their steps, oldest first, read a few at a time."""

    async def prune(
        self,
        *,
        older_than: float | None = None,
        max_bytes: int | None = None,
        active_since: float | None = None,
    ) -> PruneReport:
        """Remove runs and conversations last touched before `older_than` (seconds since the
        epoch), then the longest untouched ones until at most `max_bytes` are in use.

        Conversations touched at or after `active_since` are never removed for room.
        """
