"""Views of the list of runs that people save under a name."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from steering_gateway_testing import AppServer
from tests.api.conftest import Start
from tests.api.conftest import start as start
from tests.features.pages.test_pages import Tags
from tests.postgres import empty_database

ADMIN, ACME, OTHER = "gw-admin-1234567890", "gw-acme-1234567890", "gw-other-1234567890"
QUERY = "severity=in-trouble&period=week&sort=cost"


@pytest.fixture(params=["file", "postgres"])
def guarded(request: pytest.FixtureRequest, start: Start) -> Iterator[AppServer]:
    keys = {"admin_key": ADMIN, "gateway_keys": {"acme": ACME, "other": OTHER}}
    if request.param == "file":
        yield start(auth=keys)
        return
    with empty_database() as url:
        yield start(auth=keys, storage={"url": url})


def client_of(server: AppServer, key: str, **headers: str) -> httpx.Client:
    return httpx.Client(base_url=server.url, headers={"x-gateway-key": key, **headers}, timeout=120)


def names_of(client: httpx.Client) -> list[str]:
    return [view["name"] for view in client.get("/api/views").raise_for_status().json()["views"]]


def links_of(client: httpx.Client) -> dict[str, str]:
    page = Tags(client.get("/dashboard/runs").raise_for_status().text)
    return {str(a["href"]): str(a.get("title", "")) for a in page.named("a") if "href" in a}


def test_views_are_kept_in_the_store(guarded: AppServer) -> None:
    """Saved, renamed and removed by the API; each tenant sees its own, the operator all."""
    with client_of(guarded, ADMIN, **{"x-gateway-author": "Ada"}) as admin:
        bodies: list[tuple[str, dict[str, Any]]] = [
            ("/api/views", {"name": " Trouble ", "query": QUERY}),
            ("/api/views?tenant=acme", {"name": "acme's", "query": "outcome=failure"}),
        ]
        made = [admin.post(path, json=body).raise_for_status().json() for path, body in bodies]
        assert (made[0]["name"], made[0]["author"], made[0]["tenant"]) == ("Trouble", "Ada", "")
        assert names_of(admin) == ["acme's", "Trouble"]
        changed = {"id": made[0]["id"], "name": "Costly trouble", "query": QUERY}
        kept = admin.post("/api/views?tenant=acme", json=changed).raise_for_status().json()
        assert kept == made[0] | {"name": "Costly trouble"}
        assert links_of(admin)[f"?{QUERY}"] == "Saved by Ada"
        for key, seen in ((ACME, ["acme's"]), (OTHER, [])):
            with client_of(guarded, key) as agent:
                assert names_of(agent) == seen
                assert ("?outcome=failure" in links_of(agent)) is bool(seen)
                assert agent.post("/api/views", json=bodies[0][1]).status_code == 403
                assert agent.delete(f"/api/views/{made[1]['id']}").status_code == 403
        admin.delete(f"/api/views/{made[0]['id']}").raise_for_status()
        assert names_of(admin) == ["acme's"]
        assert admin.delete(f"/api/views/{made[0]['id']}").status_code == 404


def test_a_view_is_saved_by_a_form(guarded: AppServer) -> None:
    """Without a script; what is shown is what was saved, and the audit log has it."""
    with client_of(guarded, ADMIN) as admin:
        form = {"action": "save", "name": "Trouble <b>", "query": QUERY}
        moved = admin.post("/dashboard/views", data=form)
        assert moved.headers["location"] == f"/dashboard/runs?{QUERY}"
        (view,) = admin.get("/api/views").json()["views"]
        assert "Trouble &lt;b&gt;" in admin.get(moved.headers["location"]).text
        form |= {"action": "rename", "id": view["id"], "name": "Other"}
        admin.post("/dashboard/views", data=form)
        assert names_of(admin) == ["Other"]
        admin.post("/dashboard/views", data=form | {"action": "remove"})
        assert names_of(admin) == []
        acts = admin.get("/api/audit", params={"kind": "view"}).json()["acts"]
        assert [act["act"] for act in acts] == ["remove", "rename", "save"]


@pytest.mark.parametrize(
    ("body", "named"),
    [
        ({"name": "x", "query": "colour=red"}, "colour"),
        ({"name": "x", "query": "sort=beauty"}, "sort"),
        ({"name": " ", "query": ""}, "name"),
        ({"name": "x" * 61, "query": ""}, "name"),
        ({"query": ""}, "name"),
    ],
)
def test_a_view_that_cannot_be_shown_is_refused(
    start: Start, body: dict[str, Any], named: str
) -> None:
    """With the key that is wrong."""
    with client_of(start(auth={"admin_key": ADMIN}), ADMIN) as admin:
        answer = admin.post("/api/views", json=body)
        assert answer.status_code == 400
        assert named in answer.json()["error"]["message"]
