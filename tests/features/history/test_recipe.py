"""The recipe "read another agent's session logs": a module and a row."""

from __future__ import annotations

import json

import pytest

from tests.recipes.conftest import ScratchCopy
from tests.recipes.conftest import scratch as scratch

READER = '''"""Session logs of Tern: one JSON object per message."""

from __future__ import annotations

from collections.abc import Iterable

from gateway.features.history.log_file import LogFile
from gateway.features.history.session import ModelCall, Session


def matches(head: bytes, name: str) -> bool:
    """See LogFormat."""
    return name.endswith(".tern")


def read(log: LogFile) -> Iterable[Session]:
    """See LogFormat."""
    session = Session(id=log.stem, agent="tern")
    for record in log.records():
        if record["from"] == "agent":
            session.calls.append(ModelCall(position=len(session.messages), model="tern-1"))
            session.messages.append({"role": "assistant", "content": record["text"]})
        else:
            session.did("message", record["text"])
            session.messages.append({"role": "user", "content": record["text"]})
    yield session
'''


@pytest.mark.slow
def test_a_log_format_is_a_module_and_a_row(scratch: ScratchCopy) -> None:
    """Nothing else has to know it: the command finds the file, counts and shows it."""
    scratch.write("gateway/features/history/readers/tern.py", READER)
    row = '[[format]]\nname = "tern"\nmodule = ".tern"\ntested = "1.0"\n\n'
    start = '[[format]]\nname = "codex"\n'
    scratch.replace("gateway/features/history/log_places.toml", start, row + start)
    said = [{"from": "me", "text": "Count to two."}, {"from": "agent", "text": "One, two."}]
    scratch.write("logs/first.tern", "\n".join(map(json.dumps, said)))
    ended = scratch.run("-m", "gateway", "history", "logs", "--json")
    found = json.loads(ended.stdout)
    assert {key: found[key] for key in ("id", "agent", "steps", "said")} == {
        "id": "first",
        "agent": "tern",
        "steps": 1,
        "said": 1,
    }
    assert "One, two." in scratch.run("-m", "gateway", "history", "logs", "show", "first").stdout
    assert len(scratch.changed()) == 2
