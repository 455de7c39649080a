"""The report of a week, from a store with trouble, stops, interventions and lessons in it."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec import structs
from msgspec.structs import replace

from gateway.backends import open_stores
from gateway.config.storage import StorageSettings
from gateway.core.pattern import Status
from gateway.errors import BudgetExceeded
from gateway.features.reports.week import monday_of, read_week
from gateway.steering.transcript.interventions import KIND_LABELS, Intervention
from gateway.text.page import rendered
from steering_gateway_testing.store_conformance import records
from steering_gateway_testing.store_conformance.learning import a_lesson

DAY = 86_400.0
# A Wednesday at noon, UTC.
NOW = monday_of("2023-11-15", 0) + 2.5 * DAY


@pytest.mark.parametrize(
    ("day", "now", "monday"),
    [
        ("2023-11-15", 0.0, "2023-11-13"),
        ("2023-11-13", 0.0, "2023-11-13"),
        ("2023-11-19", 0.0, "2023-11-13"),
        ("", NOW, "2023-11-06"),
        (None, NOW + 4.6 * DAY, "2023-11-13"),
    ],
)
def test_the_week_of_a_day(day: str | None, now: float, monday: str) -> None:
    """That of the day itself, else the last whole one, from Monday on."""
    assert monday_of(day, now) == monday_of(monday, 0)
    with pytest.raises(ValueError, match="'2026-99-99' is not a day like 2026-11-23"):
        monday_of("2026-99-99", now)


async def test_a_week_with_everything_in_it(tmp_path: Path) -> None:
    """Each part is in the page and in the text; runs of other weeks only in what was before."""
    stores = await open_stores(StorageSettings(path=str(tmp_path / "week.db")))
    stuck = tuple(
        records.a_step(n, fired=("streak",), evidence={"streak": "x"}) for n in range(1, 9)
    )
    refused = records.a_chat(
        status=429, error=BudgetExceeded.label, reasons=(f"{BudgetExceeded.label}: over <b>1 USD",)
    )
    acts = (Intervention(kind="reject", words="not like this"),)
    kinds = [
        records.one_run(
            0,
            steps=(records.a_step(1), *stuck[1:], records.a_step(9, call=refused)),
            started_at=NOW,
        ),
        records.one_run(
            1,
            started_at=NOW + DAY,
            outcome="failure",
            tags={"project": "shop", "team": "web", "owner": "ann", "paid": "subscription"},
            steps=(records.a_step(1, content=records.some_content(human=acts)),),
        ),
        records.one_run(2, started_at=NOW - 7 * DAY, outcome="success"),
        records.one_run(3, started_at=NOW - 30 * DAY),
    ]
    for record in kinds:
        own = record.runs[0].id
        steps = tuple(replace(step, run_id=own) for step in record.steps)
        await stores.states.commit(replace(record, steps=steps))
    await stores.learning.learn([(a_lesson(), [])])
    await stores.learning.move(records.TENANT, "e1-a", Status.ACTIVE, reason="it helps", at=NOW)
    week = await read_week(stores, monday_of("2023-11-15", 0), records.TENANT)
    assert (week["now"].total_runs, week["before"].total_runs) == (2, 1)
    paid = {"savings": (), "paid": week["parts"]["Login"][0], "wrong_alarms": ()}
    report = rendered(
        "gateway.features.reports", "summary.txt", {**structs.asdict(week["now"]), **paid}
    )
    assert ", of it $0.25 with subscriptions, which nobody pays" in report
    (run, _, length, _) = week["stretches"][0]
    assert (run.id, length) == ("r0000", 7)
    assert [run.id for run in week["stopped"]] == ["r0000"]
    assert [each.pattern.pattern_id for each in week["lessons"]] == ["e1-a"]
    assert len(week["summary"]) == 6
    assert ", of it $0.25 with subscriptions, which nobody pays" in week["summary"][0]
    assert "most of the cost: team web $" in week["summary"][2]
    assert "; project shop $" in week["summary"][2]
    assert "; person ann $" in week["summary"][2]
    assert [each[1:] for each in week["said"]] == [(1, KIND_LABELS["reject"], "not like this")]
    assert (week["heard"], week["heard_usd"], week["stopped_usd"]) == (1, 0.25, 2.25)
    for name in ("week_page.html", "week.txt"):
        shown = rendered("gateway.features.reports", name, week)
        for words in (
            "r0000",
            "stopped by a budget",
            "7 steps",
            "shop",
            "streak",
            "it helps",
            "reject 1",
            "not like this",
            "by team",
            "by person",
        ):
            assert words in shown.lower(), (name, words)
    assert "over <b>" not in rendered("gateway.features.reports", "week_page.html", week)
    assert (await read_week(stores, monday_of("2023-11-15", 0), "other"))["now"].total_runs == 0
    await stores.close()
