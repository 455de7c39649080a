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


def views_of(client: httpx.Client) -> dict[str, str]:
    """Ids of the views that the list has forms for, by name."""
    page = Tags(client.get("/dashboard/runs").raise_for_status().text)
    fields = [(str(each.get("name")), str(each.get("value"))) for each in page.named("input")]
    ids = [value for name, value in fields if name == "id"]
    names = [value for name, value in fields if name == "name" and value != "None"]
    return dict(zip(names, ids, strict=True))


def links_of(client: httpx.Client) -> dict[str, str]:
    page = Tags(client.get("/dashboard/runs").raise_for_status().text)
    return {str(a["href"]): str(a.get("title", "")) for a in page.named("a") if "href" in a}


def test_views_are_kept_in_the_store(guarded: AppServer) -> None:
    """Each tenant sees its own, the operator all; who saved one stays when another renames it."""
    with client_of(guarded, ADMIN, **{"x-gateway-author": "Ada"}) as admin:
        forms = [
            ("/dashboard/views", {"name": " Trouble ", "query": QUERY}),
            ("/dashboard/views?tenant=acme", {"name": "acme's", "query": "outcome=failure"}),
        ]
        for path, form in forms:
            assert admin.post(path, data=form).status_code == 303
        made = views_of(admin)
        assert list(made) == ["acme's", "Trouble"]
        with client_of(guarded, ADMIN, **{"x-gateway-author": "Bob"}) as other:
            changed = {"id": made["Trouble"], "name": "Costly trouble", "query": QUERY}
            assert other.post("/dashboard/views?tenant=acme", data=changed).status_code == 303
        assert views_of(admin) == {"acme's": made["acme's"], "Costly trouble": made["Trouble"]}
        assert links_of(admin)[f"?{QUERY}"] == "Saved by Ada"
        for key, is_own in ((ACME, True), (OTHER, False)):
            with client_of(guarded, key) as agent:
                assert ("?outcome=failure" in links_of(agent)) is is_own
                assert f"?{QUERY}" not in links_of(agent)
                removal = {"action": "remove", "id": made["acme's"], "query": ""}
                for form in (forms[0][1], removal):
                    assert agent.post("/dashboard/views", data=form).status_code == 403
        removal["id"] = made["Trouble"]
        assert admin.post("/dashboard/views", data=removal).status_code == 303
        assert list(views_of(admin)) == ["acme's"]
        assert admin.post("/dashboard/views", data=removal).status_code == 404


def test_a_view_is_saved_by_a_form(guarded: AppServer) -> None:
    """Without a script; what is shown is what was saved, and the audit log has it."""
    with client_of(guarded, ADMIN) as admin:
        form = {"action": "save", "name": "Trouble <b>", "query": QUERY}
        moved = admin.post("/dashboard/views", data=form)
        assert moved.headers["location"] == f"/dashboard/runs?{QUERY}"
        (view_id,) = views_of(admin).values()
        assert "Trouble &lt;b&gt;" in admin.get(moved.headers["location"]).text
        form |= {"action": "rename", "id": view_id, "name": "Other"}
        admin.post("/dashboard/views", data=form)
        assert views_of(admin) == {"Other": view_id}
        admin.post("/dashboard/views", data=form | {"action": "remove"})
        assert views_of(admin) == {}
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
        answer = admin.post("/dashboard/views", data=body)
        assert answer.status_code == 400
        assert named in answer.text.partition("<title>")[2].partition("</title>")[0]
