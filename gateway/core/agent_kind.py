"""The kind of an agent, by the names of its tools: `agent_kind.toml`."""

import re
import tomllib
from collections.abc import Sequence
from importlib import resources
from typing import Literal

AgentKind = Literal["coding", "research", "dialogue", "general"]

_PART = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")
_NAME_CHARS = 128
_ROWS = tomllib.loads(
    resources.files("gateway.core").joinpath("agent_kind.toml").read_text("utf-8")
)["kinds"]
_KINDS: list[tuple[AgentKind, frozenset[str]]] = [
    (row["kind"], frozenset(row["words"])) for row in _ROWS
]


def kind_of_agent(tools: Sequence[str]) -> AgentKind:
    """The kind by the names of the tools: who edits is coding, even with the web; who works on
    records serves in a dialogue; `general` if the names say nothing."""
    parts = {part.lower() for tool in tools for part in _PART.findall(tool[:_NAME_CHARS])}
    return next((kind for kind, words in _KINDS if parts & words), "general")
