"""Lessons in the control plane and on the pages: what is shown, what is changed, and for whom."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from gateway.backends import open_stores
from gateway.config.storage import StorageSettings
from gateway.core.pattern import ENDED, Lesson, Pattern, Tier
from gateway.features.learning.pages import MOST_SHOWN
from gateway.stores.learning import EvidenceRow, Posterior
from steering_gateway_testing import AppServer
from steering_gateway_testing.control_plane import client_of
from tests.api.conftest import Start, start
from tests.features.learning.families import learn
from tests.features.learning.runs import state
from tests.features.learning.test_ended_failures import MOVE, behind, ended

__all__ = ["start"]
ADMIN, ACME, OTHER = "the-admin-key", "acme-key", "other-key"
KEYS = {"gateway_keys": {"acme": ACME, "other": OTHER}, "admin_key": ADMIN}


def a_lesson(tier: Tier) -> Pattern:
    move = {"e1": "recommended_action", "e2": "intervention"}[tier.value]
    return Pattern(
        tier=tier,
        pattern_id=f"{tier.value}-one",
        tenant="acme",
        fields={"situation": "`mvn`: not there.", move: f"Use <b>gradle</b>, says {tier.value}."},
        source_trace_id="run-1#3",
        lesson=Lesson(key="k", applies_when={"said": "Use <gradle>!"}, last_confirmed_at=1.0),
    )


async def fill(path: str) -> None:
    """Two lessons of one tenant, each with evidence, one with a trial behind it."""
    stores = await open_stores(StorageSettings(path=path))
    for tier in (Tier.E1, Tier.E2):
        evidence = EvidenceRow(
            tenant="acme",
            pattern_id=f"{tier.value}-one",
            run_id="run-1",
            step_index=3,
            kind="fix",
            conversation="c",
            task="t",
            at=1.0,
        )
        await stores.learning.learn([(a_lesson(tier), [evidence])])
    found = Posterior(
        decisions=20,
        given=10,
        rate_given=0.1,
        rate_held=0.5,
        effect=0.4,
        helps=0.97,
        harms=0.01,
        share=0.8,
    )
    await stores.learning.put_posterior("acme", "e1-one", 1, found, 1.0)
    await stores.close()


@pytest.fixture
def gateway(start: Start, tmp_path: Path) -> AppServer:
    path = str(tmp_path / "lessons.db")
    server = start(auth=KEYS, storage={"path": path, "retention_days": 0})
    asyncio.run(fill(path))
    return server


def test_lessons_are_shown_and_changed_by_those_who_may(gateway: AppServer) -> None:
    """Its tenant and the operator see a lesson and change it; another tenant finds nothing."""
    with client_of(gateway, ACME) as acme, client_of(gateway, OTHER) as other:
        listed = acme.get("/api/lessons").json()["lessons"]
        assert sorted(each["pattern_id"] for each in listed) == ["e1-one", "e2-one"]
        one = acme.get("/api/lessons/e1-one").json()
        assert (one["why_not_active"], one["source_trace_id"]) == (
            "an operator has to approve it",
            "run-1#3",
        )
        assert one["applies_when"] == {}  # a person's words are for the operator
        assert one["evidence"] == [{"run_id": "run-1", "step": 3, "kind": "fix", "at": 1.0}]
        assert [(arm["name"], arm["rate"]) for arm in one["arms"]] == [
            ("given", 0.1),
            ("held", 0.5),
        ]
        for path in ("/api/lessons/e1-one", "/dashboard/lessons/e1-one"):
            assert other.get(path).status_code == 404
        assert other.get("/api/lessons").json() == {"lessons": []}
        # The key that an agent has changes none, its own tenant's neither.
        for client in (acme, other):
            for body in ({"status": "active"}, {"advice": "curl it | sh"}):
                assert client.patch("/api/lessons/e1-one", json=body).status_code == 403
            assert client.post("/api/sessions/forget", json={"subject": "run-1"}).status_code == 403
            pattern = {"fields": {"a": "b"}}
            assert client.patch("/api/patterns/e1-one", json=pattern).status_code == 403
    with client_of(gateway, ADMIN) as operator, client_of(gateway, ACME) as acme:
        one_of_acme = "/api/lessons/e1-one?tenant=acme"
        changed = operator.patch(one_of_acme, json={"status": "trial"}).json()
        assert changed == {"pattern_id": "e1-one", "changed": True}
        edited = operator.patch(one_of_acme, json={"advice": "Use ant."}).json()["pattern_id"]
        new = acme.get(f"/api/lessons/{edited}").json()
        assert (new["version"], new["supersedes"], new["advice"]) == (2, "e1-one", "Use ant.")
        assert acme.get("/api/lessons/e1-one").json()["status"] == "retired"


def test_pages_of_lessons(gateway: AppServer) -> None:
    """The list is by status; a lesson has both arms and its runs."""
    with client_of(gateway, ADMIN) as operator:
        page = operator.get("/dashboard/lessons").text
        assert "Candidate" in page
        assert "<b>gradle" not in page
        one = operator.get("/dashboard/lessons/e1-one?tenant=acme").text
        for part in ("10 %", "50 %", "+40.0", "/dashboard/runs/run-1?step=3#step-3", "Not active"):
            assert part in one
        assert "<q>Use &lt;gradle&gt;!</q>" in one
        told = operator.get("/api/lessons/e1-one?tenant=acme").json()["applies_when"]
        assert told == {"said": "Use <gradle>!"}
        moved = operator.post(
            "/dashboard/lessons/e1-one?tenant=acme",
            data={"action": "approve"},
            headers={"origin": gateway.url},
        )
        assert moved.status_code == 303
        assert operator.get("/api/lessons/e1-one?tenant=acme").json()["status"] == "trial"
        led = operator.get("/dashboard/patterns/e1-one?tenant=acme")
        assert led.headers["location"].startswith("/dashboard/lessons/e1-one")


async def many_failures(path: str) -> None:
    """Store a rule, and then more of what ended failures than the page shows."""
    stores = await open_stores(StorageSettings(path=path))
    await state(stores, 0, "Use gradle, not maven.", tenant="acme")
    found = [
        Pattern(
            tier=Tier.E1,
            pattern_id=f"e1-{number}",
            tenant="acme",
            fields={"recommended_action": f"Call `step{number}` first."},
            lesson=Lesson(key=f"error|make|{number}", origin=ENDED),
        )
        for number in range(MOST_SHOWN + 1)
    ]
    await stores.learning.learn([(each, []) for each in found])
    await stores.close()


def test_failures_do_not_push_rules_off_the_page(start: Start, tmp_path: Path) -> None:
    """A rule is shown however many failures were read since."""
    path = str(tmp_path / "runs.db")
    asyncio.run(many_failures(path))
    server = start(auth=KEYS, storage={"path": path, "retention_days": 0})
    with client_of(server, ADMIN) as operator:
        assert "Use gradle, not maven." in operator.get("/dashboard/lessons").text


async def two_runs(path: str) -> None:
    """Store a run in which one command ended a failure, and one that still has it."""
    stores = await open_stores(StorageSettings(path=path))
    await learn(stores, 0, ended("orders"), tenant="acme")
    await learn(stores, 1, (behind("bids"),), tenant="acme")
    await stores.close()


def test_a_failure_shows_what_ended_it_in_another_run(start: Start, tmp_path: Path) -> None:
    """The page of a run names the other run below the failing step, and the page of lessons has
    one row for it, with what is missing until runs are given it."""
    path = str(tmp_path / "runs.db")
    asyncio.run(two_runs(path))
    server = start(auth=KEYS, storage={"path": path, "retention_days": 0})
    with client_of(server, ADMIN) as operator:
        page = operator.get("/dashboard/runs/r0001").text
        assert "What ended it" in page
        assert "/dashboard/runs/r0000?step=3#step-3" in page
        assert MOVE in page
        assert "What ended it" not in operator.get("/dashboard/runs/r0000").text
        lessons = operator.get("/dashboard/lessons").text
        assert lessons.count(MOVE) == 1
        assert "only one conversation shows it so far" in lessons
