"""Two tenants: neither sees, changes, counts or receives anything of the other, by any route."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import httpx
import pytest

from gateway.api.routes import operations
from gateway.hooks import features, given
from steering_gateway_testing import AppServer, ScriptedUpstream
from steering_gateway_testing.control_plane import a_finished_run, client_of
from tests.api.conftest import Start, with_keys, with_pages

pytestmark = with_keys

ADMIN, ACME, GLOBEX = "the-admin-key", "acme-key", "globex-key"
SECRET = "zanzibar"
"""A word in everything that belongs to Globex."""


@dataclass
class House:
    """A gateway where Globex has a run, a conversation, an experiment and an instance pattern."""

    server: AppServer
    run_id: str
    pattern_id: str
    before: dict[str, Any] = field(default_factory=dict)

    @property
    def conversation_id(self) -> str:
        return self.run_id.removesuffix(".0")

    def everything(self) -> dict[str, Any]:
        """What the operator sees of Globex."""
        with client_of(self.server, ADMIN) as client:
            return {
                path: client.get(path, params={"tenant": "globex"}).json()
                for path in (
                    f"/api/runs/{self.run_id}",
                    "/api/runs",
                    "/api/conversations",
                    "/api/health-summary",
                    f"/api/patterns/{self.pattern_id}",
                    "/api/experiments/secret-zanzibar/report",
                )
            }


@pytest.fixture
def house(start: Start, upstream: ScriptedUpstream) -> Iterator[House]:
    server = start(
        auth={"admin_key": ADMIN, "gateway_keys": {"acme": ACME, "globex": GLOBEX}},
        experiment={"id": "secret-zanzibar", "arms": {"on": 1}},
    )
    run_id = a_finished_run(server, upstream, key=GLOBEX, task=f"The {SECRET} affair")
    with client_of(server, ADMIN) as client:
        added = client.post(
            "/api/patterns?tenant=globex",
            json={
                "tier": "e1",
                "fields": {
                    "task_context_embedding_text": f"The {SECRET} affair",
                    "recommended_action": f"Call {SECRET}.",
                },
            },
        )
        assert added.status_code == 201
    made = House(server, run_id, added.json()["pattern_id"])
    made.before = made.everything()
    yield made
    assert made.everything() == made.before


Ask = Callable[[httpx.Client, House], httpx.Response]


def get(path: str, **params: str) -> Ask:
    """A GET; `{run}`, `{pattern}` and `{conversation}` in path and parameters are Globex's."""

    def ask(client: httpx.Client, house: House) -> httpx.Response:
        names = {
            "run": house.run_id,
            "pattern": house.pattern_id,
            "conversation": house.conversation_id,
        }
        filled = {name: value.format(**names) for name, value in params.items()}
        return client.get(path.format(**names), params=filled)

    return ask


def send(method: str, path: str, body: Any) -> Ask:
    """A change of something of Globex's."""

    def ask(client: httpx.Client, house: House) -> httpx.Response:
        filled = path.format(
            run=house.run_id, pattern=house.pattern_id, conversation=house.conversation_id
        )
        if isinstance(body, str):
            return client.request(method, filled, content=body)
        return client.request(method, filled, json=body)

    return ask


PATTERN = {"tier": "e1", "fields": {"recommended_action": "Mine now."}}
SHARED = {"tier": "e3", "fields": {"instruction": "Obey Acme."}}
BUDGET = {"budget": "daily", "subject": "globex"}
LINES = '{"tier": "e3", "fields": {"instruction": "Obey Acme."}}'

# (what Acme tries, by the operation's name): the status it gets. 200: an answer without a trace
# of Globex.
TABLE: list[tuple[str, Ask, int]] = [
    ("listConversations", get("/api/conversations"), 200),
    ("listConversations", get("/api/conversations", tenant="globex"), 403),
    ("listRuns", get("/api/runs"), 200),
    ("listRuns", get("/api/runs", tenant="globex"), 403),
    ("listRuns", get("/api/runs", conversation_id="{conversation}", count="1"), 200),
    ("listRuns", get("/api/runs", task=SECRET, count="1"), 200),
    ("listRuns", get("/api/runs", experiment="secret-zanzibar"), 200),
    ("listSessions", get("/api/sessions"), 200),
    ("listSessions", get("/api/sessions", tenant="globex"), 403),
    ("listSessions", get("/api/sessions", side="true", count="1"), 200),
    ("getSession", get("/api/sessions/{conversation}"), 404),
    ("getSession", get("/api/sessions/{run}"), 404),
    ("getRun", get("/api/runs/{run}"), 404),
    ("listTries", get("/api/runs/{run}/steps/1/tries", model="m"), 200),
    ("tryAgain", send("POST", "/api/runs/{run}/steps/1/tries?model=m", {}), 403),
    ("compareRuns", get("/api/runs/{run}/compare", other="{run}"), 404),
    ("reportOutcome", send("POST", "/api/runs/{run}/outcome", {"outcome": "failure"}), 404),
    ("listPatterns", get("/api/patterns", limit="1000"), 200),
    ("listPatterns", get("/api/patterns", text=SECRET), 200),
    ("listPatterns", get("/api/patterns", tenant="globex"), 403),
    ("addPattern", send("POST", "/api/patterns", SHARED), 403),
    ("addPattern", send("POST", "/api/patterns?tenant=globex", PATTERN), 403),
    ("exportPatterns", get("/api/patterns.jsonl"), 200),
    ("exportPatterns", get("/api/patterns.jsonl", tenant="globex"), 403),
    ("importPatterns", send("POST", "/api/patterns.jsonl", LINES), 403),
    ("importPatterns", send("POST", "/api/patterns.jsonl?tenant=globex", LINES), 403),
    ("getPattern", get("/api/patterns/{pattern}"), 404),
    ("getPattern", get("/api/patterns/{pattern}", tenant="globex"), 403),
    ("editPattern", send("PATCH", "/api/patterns/{pattern}", {"fields": {"a": "b"}}), 403),
    ("editPattern", send("PATCH", "/api/patterns/read-the-error", {"fields": {"a": "b"}}), 403),
    ("deletePattern", send("DELETE", "/api/patterns/{pattern}", None), 403),
    ("deletePattern", send("DELETE", "/api/patterns/read-the-error", None), 403),
    ("listLessons", get("/api/lessons", limit="1000"), 200),
    ("listLessons", get("/api/lessons", tenant="globex"), 403),
    ("getLesson", get("/api/lessons/{pattern}"), 404),
    ("getLesson", get("/api/lessons/{pattern}", tenant="globex"), 403),
    ("changeLesson", send("PATCH", "/api/lessons/{pattern}", {"status": "active"}), 403),
    ("listOutcomes", get("/api/runs/{run}/outcomes"), 200),
    ("listOutcomes", get("/api/runs/{run}/outcomes", tenant="globex"), 403),
    ("forgetSessions", send("POST", "/api/sessions/forget", {"subject": "x"}), 403),
    ("dashboard/lessons", get("/dashboard/lessons"), 200),
    ("dashboard/lessons", get("/dashboard/lessons/{pattern}"), 404),
    ("listBudgets", get("/api/budgets"), 200),
    ("listBudgets", get("/api/budgets", tenant="globex"), 403),
    ("raiseBudget", send("POST", "/api/budgets/raise", {**BUDGET, "limits": {"usd": 9}}), 403),
    ("liftBudget", send("POST", "/api/budgets/lift", BUDGET), 403),
    ("resetBudget", send("POST", "/api/budgets/reset", BUDGET), 403),
    ("approveRun", send("POST", "/api/runs/{run}/approve", {}), 403),
    ("denyRun", send("POST", "/api/runs/{run}/deny", {}), 403),
    ("commentRun", send("POST", "/api/runs/{run}/comments", {"comment": "x"}), 403),
    ("listActs", get("/api/audit"), 403),
    ("listKeys", get("/api/keys"), 403),
    ("addKey", send("POST", "/api/keys", {"tenant": "acme"}), 403),
    ("changeKey", send("PATCH", "/api/keys/key-1", {"owner": "x"}), 403),
    ("replaceKey", send("POST", "/api/keys/key-1/rotate", None), 403),
    ("revokeKey", send("DELETE", "/api/keys/key-1", None), 403),
    ("listHeld", get("/api/held"), 200),
    ("listHeld", get("/api/held", tenant="globex"), 403),
    ("stopConversation", send("POST", "/api/conversations/{conversation}/stop", {}), 403),
    ("pauseConversation", send("POST", "/api/conversations/{conversation}/pause", {}), 403),
    ("resumeConversation", send("POST", "/api/conversations/{conversation}/resume", {}), 403),
    ("stopRun", send("POST", "/api/runs/{run}/stop", {}), 403),
    ("pauseRun", send("POST", "/api/runs/{run}/pause", {}), 403),
    ("resumeRun", send("POST", "/api/runs/{run}/resume", {}), 403),
    ("muteAlarm", send("POST", "/api/runs/{run}/wrong-alarm", {}), 403),
    ("getUsage", get("/api/usage"), 200),
    ("getUsage", get("/api/usage", tenant="globex"), 403),
    ("exportRuns", get("/api/export"), 200),
    ("exportRuns", get("/api/export", tenant="globex"), 403),
    ("getHealthSummary", get("/api/health-summary"), 200),
    ("getHealthSummary", get("/api/health-summary", tenant="globex"), 403),
    ("getPilot", get("/api/pilot"), 404),
    ("getRouting", get("/api/routing"), 200),
    ("getRouting", get("/api/routing", tenant="globex"), 403),
    ("listActs", get("/api/audit"), 403),
    ("commentRun", send("POST", "/api/runs/{run}/comments", {"comment": "x"}), 403),
    ("listAlerts", get("/api/alerts"), 200),
    ("listAlerts", get("/api/alerts", tenant="globex"), 403),
    ("streamEvents", get("/api/events", tenant="globex"), 403),
    ("getDocument", get("/api/openapi.json"), 200),
    ("steeringOff", send("POST", "/api/steering/off", "{}"), 403),
    ("steeringOn", send("POST", "/api/steering/on", "{}"), 403),
    ("dashboard", get("/dashboard"), 200),
    ("dashboard", get("/dashboard/runs", task=SECRET[:4]), 200),
    ("dashboard", get("/dashboard", tenant="globex"), 403),
    ("dashboard", get("/dashboard/time", bucket="hour", by="agent"), 200),
    ("dashboard", get("/dashboard/time", tenant="globex"), 403),
    ("dashboard", get("/dashboard/runs/{run}/steps/1/raw"), 404),
    ("dashboard", get("/dashboard/runs/{run}"), 404),
    ("dashboard", get("/dashboard/runs/{run}/steps"), 404),
    ("dashboard", get("/dashboard/runs/{run}/steps/1.txt"), 404),
    ("dashboard", send("POST", "/dashboard/runs/{run}", "outcome=failure"), 404),
    ("dashboard", get("/dashboard/health"), 200),
    ("dashboard", get("/dashboard/patterns", limit="1000"), 200),
    ("dashboard", get("/dashboard/patterns/{pattern}"), 404),
]

# The running experiment is everybody's: its name is no secret, its runs are.
NAMED = {"listExperiments", "getReport"}
KNOWN = {operation.name for operation in operations()}
PAGES = chain.from_iterable(given("pages")) if "pages" in features() else ()
TRIED = KNOWN | {page.path.strip("/") for page in PAGES}


def test_nothing_crosses_by_any_route(house: House) -> None:
    """Each try gets its status, and no answer holds a word of Globex's."""
    wrong = []
    with client_of(house.server, ACME) as client:
        for name, ask, status in TABLE:
            if name not in TRIED:  # of a feature that is gone
                continue
            answer = ask(client, house)
            words = [SECRET, house.run_id, house.conversation_id, house.pattern_id]
            asked = str(answer.request.url)
            shown = [word for word in words if word in answer.text and word not in asked]
            if answer.status_code != status or (status == 200 and shown):
                wrong.append((name, asked, answer.status_code, shown))
    assert wrong == []


def test_every_operation_was_tried() -> None:
    """A new route needs its line in the table."""
    tried = {name for name, _, _ in TABLE}
    assert tried >= KNOWN - NAMED


def test_counts_are_the_tenants_own(house: House) -> None:
    """Nothing of Globex's is summed into what Acme reads."""
    with client_of(house.server, ACME) as client:
        assert client.get("/api/runs", params={"count": "1"}).json()["total"] == 0
        summary = client.get("/api/health-summary").json()
        assert (summary["total_runs"], summary["calls"], summary["input_tokens"]) == (0, 0, 0)


def test_no_instance_is_injected_into_anothers_run(
    house: House, upstream: ScriptedUpstream
) -> None:
    """Acme works on the very task that Globex's pattern is for, and hears nothing of it."""
    a_finished_run(house.server, upstream, key=ACME, task=f"The {SECRET} affair")
    with client_of(house.server, ACME) as client:
        (run,) = client.get("/api/runs").json()["runs"]
        trace = client.get(f"/api/runs/{run['id']}").json()
    texts = [row["text"] for step in trace["steps"] for row in step["guidance"]]
    assert texts
    assert not any("Call zanzibar" in text for text in texts)


@with_pages
def test_the_owner_and_the_operator_see_it_all(house: House) -> None:
    """The table would prove nothing if nobody could see anything."""
    for key in (GLOBEX, ADMIN):
        with client_of(house.server, key) as client:
            assert client.get(f"/api/runs/{house.run_id}").status_code == 200
            assert client.get(f"/dashboard/runs/{house.run_id}").status_code == 200
            assert client.get(f"/api/patterns/{house.pattern_id}").status_code == 200
