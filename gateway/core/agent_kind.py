"""The kind of an agent, by the names of its tools: `agent_kind.toml`."""

import re
from collections.abc import Sequence
from typing import Literal

from gateway.data_files import read_toml

AgentKind = Literal["coding", "research", "dialogue", "general"]

_PART = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")
_NAME_CHARS = 128
_ROWS = read_toml(__package__, "agent_kind.toml")["kinds"]
_KINDS = [(row["kind"], frozenset(row["words"])) for row in _ROWS]


def kind_of_agent(tools: Sequence[str]) -> AgentKind:
    """The kind by the names of the tools: who edits is coding, even with the web; who works on
    records serves in a dialogue; `general` if the names say nothing."""
    parts = {part.lower() for tool in tools for part in _PART.findall(tool[:_NAME_CHARS])}
    return next((kind for kind, words in _KINDS if parts & words), "general")
