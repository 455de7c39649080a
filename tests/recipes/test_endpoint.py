"""The recipes for an endpoint and for an operation of the control plane, followed in a copy."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.recipes.conftest import ScratchCopy

ENDPOINT = '''"""`GET /version`: the version of the gateway."""

from __future__ import annotations

from gateway import __version__
from gateway.endpoints.body import Receive, Scope, Send
from gateway.endpoints.edge import EXCHANGE
from gateway.endpoints.body import send_json


async def version(scope: Scope, receive: Receive, send: Send) -> None:
    """Answer with the version."""
    scope[EXCHANGE].route = "version"
    await send_json(send, 200, {"version": __version__})
'''

OPERATION = '''"""`/api/versions/{part}`: the version of a part."""

from __future__ import annotations

from pydantic import BaseModel

from gateway import __version__
from gateway.api.operations import ApiRequest, ApiResponse, Operations
from gateway.api.params import Flag, Parameters, PathText

OPERATIONS = Operations()


class VersionParameters(Parameters):
    """Which part."""

    part: PathText  # the part
    short: Flag = False  # without the patch level


class Version(BaseModel):
    """The version of a part."""

    part: str
    version: str


@OPERATIONS.add("GET /api/versions/{part}", Version, "The version.")
async def get_version(request: ApiRequest[VersionParameters]) -> ApiResponse:
    """The version of a part."""
    params = request.params
    version = __version__.rpartition(".")[0] if params.short else __version__
    return ApiResponse(payload=Version(part=params.part, version=version).model_dump())
'''

ASK = """
import json, sys
import httpx
from gateway.app import build_app
from gateway.config import settings_from_dict
from steering_gateway_testing import AppServer

with AppServer(build_app(settings_from_dict({"embedding": {"embedder": "hashing"}}))) as server:
    answers = [
        httpx.request(method, f"http://127.0.0.1:{server.port}{path}", timeout=120)
        for method, path in json.loads(sys.argv[1])
    ]
print(json.dumps([[a.status_code, a.text] for a in answers]))
"""


def ask(scratch: ScratchCopy, *requests: tuple[str, str]) -> list[tuple[int, str]]:
    """(status, body) of each request to a gateway that runs in the copy."""
    ended = scratch.run("-c", ASK, json.dumps(requests))
    return [(status, text) for status, text in json.loads(ended.stdout.splitlines()[-1])]


def error_of(text: str) -> dict[str, Any]:
    """The error object of an answer."""
    error: dict[str, Any] = json.loads(text)["error"]
    return error


def test_an_endpoint_is_a_module_and_a_route(scratch: ScratchCopy) -> None:
    """It answers, other methods are refused in OpenAI's shape, and its requests are counted."""
    scratch.write("gateway/endpoints/version.py", ENDPOINT)
    scratch.replace(
        "gateway/app.py",
        "from gateway.endpoints.steered",
        "from gateway.endpoints.version import version\nfrom gateway.endpoints.steered",
    )
    scratch.replace(
        "gateway/app.py",
        "    endpoints = [\n",
        '    endpoints = [\n        Route("/version", _Endpoint(version), methods=["GET"]),\n',
    )
    found, refused, metrics = ask(
        scratch, ("GET", "/version"), ("POST", "/version"), ("GET", "/metrics")
    )
    assert found[0] == 200
    assert list(json.loads(found[1])) == ["version"]
    assert (refused[0], error_of(refused[1])["code"]) == (405, "method_not_allowed")
    assert 'route="version",status="200"} 1.0' in metrics[1]
    assert scratch.changed() == {"gateway/app.py", "gateway/endpoints/version.py"}


@pytest.mark.slow
def test_an_operation_is_a_module_and_its_name_in_the_list(scratch: ScratchCopy) -> None:
    """It answers, names a wrong parameter, and the OpenAPI document describes it."""
    scratch.write("gateway/api/versions.py", OPERATION)
    scratch.replace("gateway/api/routes.py", "usage_and_export\n", "usage_and_export, versions\n")
    scratch.replace("gateway/api/routes.py", "export, audit)", "export, audit, versions)")
    found, wrong, document = ask(
        scratch,
        ("GET", "/api/versions/core?short=true"),
        ("GET", "/api/versions/core?short=maybe"),
        ("GET", "/api/openapi.json"),
    )
    assert found[0] == 200
    assert json.loads(found[1])["part"] == "core"
    assert (wrong[0], error_of(wrong[1])["param"]) == (400, "short")
    described = json.loads(document[1])["paths"]["/api/versions/{part}"]["get"]
    assert [param["in"] for param in described["parameters"]] == ["path", "query"]
    assert described["parameters"][1]["description"] == "without the patch level"
    assert scratch.changed() == {"gateway/api/routes.py", "gateway/api/versions.py"}
