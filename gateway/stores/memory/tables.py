"""What a state store and a run store in memory share."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from gateway.stores.records import ConversationRecord, HeadRecord, InjectionRow, StepRow
from gateway.stores.totals import RunRecord


@dataclass(slots=True)
class StoredRun:
    """One run; steps by index, injections by (step index, ordinal)."""

    record: RunRecord
    steps: dict[int, StepRow] = field(default_factory=dict)
    injections: dict[tuple[int, int], InjectionRow] = field(default_factory=dict)


class Tables:
    """Conversations and runs by id, heads by (tenant, root, digest), items by (tenant, id).

    `store_content` False keeps lengths and digests in place of texts.
    """

    def __init__(self, *, store_content: bool = True) -> None:
        self.store_content = store_content
        self.conversations: dict[str, ConversationRecord] = {}
        self.heads: dict[tuple[str, bytes, bytes], dict[tuple[str, str], HeadRecord]] = {}
        self.runs: dict[str, StoredRun] = {}
        self.items: dict[tuple[str, str], tuple[str, bytes]] = {}

    def remove_conversations(self, conversations: Iterable[ConversationRecord]) -> None:
        """Remove them with their runs and heads."""
        gone = {record.id for record in conversations}
        for conversation_id in gone:
            del self.conversations[conversation_id]
        for run in [run for run in self.runs.values() if run.record.conversation_id in gone]:
            del self.runs[run.record.id]
        self.items = {key: item for key, item in self.items.items() if item[0] not in gone}
        for at, heads in list(self.heads.items()):
            left = {key: head for key, head in heads.items() if key[0] not in gone}
            if left:
                self.heads[at] = left
            else:
                del self.heads[at]

    def used_bytes(self) -> int:
        """The length of everything as text: about what it takes."""
        states = sum(len(record.state) for record in self.conversations.values())
        return states + sum(len(repr(run)) for run in self.runs.values())
