"""How often people typed a rule before and since it was written down."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import orjson
import pytest
from msgspec.structs import replace

from gateway.backends import Stores, open_stores
from gateway.cli import main
from gateway.config.storage import StorageSettings
from gateway.core.pattern import Status
from gateway.features.learning.life_cycle import BY_OPERATOR
from gateway.features.learning.typed_counts import TypedCounts, count_typed
from gateway.steering.transcript.interventions import Intervention
from gateway.stores.records import PromptMessage
from steering_gateway_testing.control_plane import client_of
from steering_gateway_testing.store_conformance import records
from tests.api.conftest import Start, start
from tests.features.learning.runs import DAY_S, state, stored
from tests.features.learning.test_pages import ACME, ADMIN, KEYS
from tests.features.learning.test_rules import RULE, rules

__all__ = ["start"]
HERE = "Working directory: /home/ann/shop"
WRITTEN = records.START + 100 * DAY_S  # 23 August 2026 or so: the tests only compare
AGAIN = "please use pnpm instead of npm"


async def session(
    stores: Stores, number: int, day: float, *said: str, system: str = HERE, **changes: Any
) -> None:
    """A session of a project, in which a person typed these messages one after the other."""
    record = stored(number, [("Read", {}, "x")] * len(said), tenant="default")
    steps = []
    for index, row in enumerate(record.steps):
        messages = [PromptMessage(role="user", text=said[index])] if index < len(said) else []
        if index == 0:
            messages.insert(0, PromptMessage(role="system", text=system))
        content = records.some_content(messages=tuple(messages), actions=(), **changes)
        at = records.START + day * DAY_S + index
        steps.append(replace(row, at=at, content=content))
    await stores.states.commit(replace(record, steps=tuple(steps)))


async def counts_of(stores: Stores, texts: Sequence[str] = (RULE,)) -> TypedCounts:
    """The counts of the one rule, which an operator approved on the 100th day."""
    for number, text in enumerate(texts):
        await state(stores, 50 + number, text)
    (rule,) = await rules(stores)
    moved = ("default", rule.pattern.pattern_id, Status.ACTIVE)
    await stores.learning.move(*moved, reason=f"approved {BY_OPERATOR}", at=WRITTEN)
    found = await rules(stores)
    (counts,) = (await count_typed(stores.learning, found, "default")).values()
    return counts


async def test_a_rule_is_counted_before_and_since_its_date(stores: Stores) -> None:
    """Every message that says it, in every session of the project; nothing is concluded."""
    await session(stores, 1, 0, "Fix it.", AGAIN, f"No! {RULE} And go on.")
    await session(stores, 2, 1, "Fix the parser.")
    await session(stores, 3, 2, AGAIN, system="Working directory: /home/ann/other")
    await session(stores, 4, 101, "Use npm instead of pnpm.", "Never use pnpm instead of npm.")
    await session(stores, 5, 102, "Go on.", f"I said it:\n{AGAIN}")
    counts = await counts_of(stores)
    assert counts == TypedCounts(
        at=WRITTEN, typed_before=2, sessions_before=2, typed_since=1, sessions_since=2
    )
    assert str(counts).endswith("; typed 2 times in 2 sessions before, 1 in 2 since")


async def test_what_no_person_typed_does_not_count(stores: Stores) -> None:
    """Instruction files, summaries of the history, texts that begin alike in two sessions; the
    words with which a call was rejected count."""
    block = f"<system-reminder>\nContents of /home/ann/shop/CLAUDE.md:\n{RULE}\n</system-reminder>"
    summary = f"This session is being continued from a previous conversation.\nAll said:\n{RULE}"
    template = f"{'Review the changes as the team does it. ' * 20}\n{RULE}"
    assert len(template) > 500
    await session(stores, 1, 0, f"{block}\nFix it.", summary, template)
    await session(stores, 2, 1, f"{template} Today the parser.")
    assert (await counts_of(stores)).typed_before == 0
    words = Intervention(kind="reject", words=AGAIN)
    await session(stores, 3, 2, "Fix it.", human=(words,))
    counts = await counts_of(stores)
    assert (counts.typed_before, counts.sessions_before) == (2, 3)  # at each of its two steps


async def test_a_forgotten_session_does_not_count(stores: Stores) -> None:
    """Neither its words nor the session."""
    await session(stores, 1, 0, AGAIN)
    assert await stores.learning.forget("default", "r0001", 1.0) == []
    assert await counts_of(stores) == TypedCounts(at=WRITTEN)


def test_counts_are_listed_and_shown(
    start: Start,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """In `gateway learn rules`, on both pages and in the API."""
    path = str(tmp_path / "runs.db")

    async def fill() -> None:
        found = await open_stores(StorageSettings(path=path))
        await session(found, 1, 0, "Fix it.", AGAIN)
        await counts_of(found)
        await found.close()

    asyncio.run(fill())
    said = "typed 1 time in 1 session before, 0 in 0 since"
    monkeypatch.setenv("GATEWAY_STORAGE__PATH", path)
    assert main(["learn", "rules"]) == 0
    assert said in capsys.readouterr().out
    assert main(["learn", "rules", "--json"]) == 0
    row = orjson.loads(capsys.readouterr().out)
    server = start(storage={"path": path, "retention_days": 0})
    with client_of(server, "") as operator:
        assert said in operator.get("/dashboard/lessons").text
        assert said in operator.get(f"/dashboard/lessons/{row['pattern_id']}").text
        detail = operator.get(f"/api/lessons/{row['pattern_id']}").json()
        assert detail["typed"] == row["typed"]
        assert row["typed"]["typed_before"] == 1


def test_a_typed_sentence_is_taken_over_on_the_page(start: Start, tmp_path: Path) -> None:
    """It stands on *Lessons* with its author and day, and one key makes it a rule as it is, in the
    project where it was typed; only the operator sees it."""
    path = tmp_path / "runs.db"
    server = start(auth=KEYS, storage={"path": str(path), "retention_days": 0})

    async def fill() -> None:
        stores = await open_stores(StorageSettings(path=str(path)))
        await session(stores, 1, 0, "never open draft PRs, please")
        await session(stores, 2, 1, "and again: no draft PR")
        await stores.close()

    asyncio.run(fill())
    page, form = "/dashboard/lessons?typed=1", {"words": "never open draft PRs, please"}
    with client_of(server, ADMIN) as operator, client_of(server, ACME) as acme:
        origin = {"origin": server.url}
        assert "never open draft PRs" not in operator.get("/dashboard/lessons").text
        assert "never open draft PRs" not in acme.get(page).text
        shown = operator.get(page).text
        assert "draft, pr</b>: 2 times in 2 sessions" in shown
        (form["session"],) = set(
            re.findall('name="session" value="([^"]*)"[^<]*<input[^<]*never', shown)
        )
        assert operator.post(page, data={**form, "words": "x"}, headers=origin).status_code == 400
        assert acme.post(page, data=form, headers=origin).status_code == 403
        assert operator.post(page, data=form, headers=origin).status_code == 303
        assert ">a rule<" in operator.get(page).text
        (rule,) = operator.get("/api/lessons").json()["lessons"]
    assert (rule["advice"], rule["status"]) == ("never open draft PRs, please", "active")
    assert rule["applies_when"]["said"] == "never open draft PRs, please"
    assert rule["applies_when"]["project"] == "shop"
    assert rule["last_confirmed_at"] == records.START
