"""A monitor, scorer, store and receiver of another package, found by its entry points."""

from __future__ import annotations

import json
import shutil
import threading
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from tests.recipes.conftest import ROOT, ScratchCopy
from tests.recipes.test_monitor import replayed, sources

PLUGIN = ROOT / "examples" / "plugin"
SCORER = '''"""Scorer `short`: every step is easy."""


class Short:
    def __init__(self, settings):
        pass

    def push(self, step):
        return 0.125
'''

STORE = '''"""A store in files: the path of its URL, with `.db`."""

from dataclasses import replace

from gateway.backends import open_sqlite


async def open_kept(settings, *, vectors, existing):
    path = settings.url.rpartition("/")[2] + ".db"
    own = replace(settings, url=None, path=path)
    return await open_sqlite(own, vectors=vectors, existing=existing)
'''


@pytest.fixture
def installed(scratch: ScratchCopy) -> ScratchCopy:
    """The copy, next to which the package lies as an installer leaves it."""
    shutil.copytree(PLUGIN / "politeness", scratch.root / "politeness")
    scratch.write("short.py", SCORER)
    project = tomllib.loads((PLUGIN / "pyproject.toml").read_text())["project"]
    entries(
        scratch, project["entry-points"] | {"steering_gateway.scorers": {"short": "short:Short"}}
    )
    return scratch


def entries(scratch: ScratchCopy, groups: dict[str, dict[str, str]]) -> None:
    """The metadata with these entry points."""
    folder = "steering_gateway_politeness-1.0.0.dist-info"
    lines = ["Metadata-Version: 2.1", "Name: steering-gateway-politeness", "Version: 1.0.0", ""]
    scratch.write(f"{folder}/METADATA", "\n".join(lines))
    text = ""
    for group, points in groups.items():
        text += f"[{group}]\n" + "".join(f"{name} = {to}\n" for name, to in points.items())
    scratch.write(f"{folder}/entry_points.txt", text)


def test_a_monitor_of_another_package_is_scored_and_guides(installed: ScratchCopy) -> None:
    """It is weighed under its configured weight, fires, and its text is given; no file changes."""
    steps = replayed(installed)
    assert steps[-1]["fired"] == ["politeness"]
    assert steps[-1]["composite"] >= 0.9
    assert "monitor" in sources(steps)
    assert installed.changed() == set()


@pytest.mark.slow
def test_a_scorer_of_another_package_can_be_configured(installed: ScratchCopy) -> None:
    """Its name is valid in the configuration; an unknown one is refused with all that are known."""
    installed.write("own.yaml", "difficulty: {scorer: short}\n")
    installed.write("run.jsonl", '{"id": "r", "steps": [{"action": "read", "thought": "a"}]}\n')
    command = ("-m", "gateway", "replay", "--json", "--config", "own.yaml", "run.jsonl")
    assert '"difficulty":0.125' in installed.run(*command).stdout.replace(" ", "")
    installed.write("own.yaml", "difficulty: {scorer: long}\n")
    refused = installed.run(*command, status=2)
    assert "short" in refused.stdout + refused.stderr


@pytest.mark.slow
def test_a_store_of_another_package_is_opened_by_its_scheme(installed: ScratchCopy) -> None:
    """Commands keep what they store in it; a scheme of no store is refused as before."""
    installed.write("kept.py", STORE)
    entries(installed, {"steering_gateway.stores": {"kept": "kept:open_kept"}})
    installed.write("own.yaml", "storage: {url: 'kept://here/one'}\n")
    command = ("-m", "gateway", "keys", "create", "acme", "--config", "own.yaml", "--json")
    key = json.loads(installed.run(*command).stdout)
    assert (installed.root / "one.db").exists()
    listed = installed.run("-m", "gateway", "keys", "list", "--config", "own.yaml").stdout
    assert key["id"] in listed
    installed.write("own.yaml", "storage: {url: 'lost://here/one'}\n")
    refused = installed.run(*command, status=2)
    assert "storage.url: must begin with postgresql://" in refused.stderr


@pytest.mark.slow
def test_a_receiver_of_another_package_gets_messages_of_its_own_form(
    installed: ScratchCopy,
) -> None:
    """Its kind is valid in the configuration, and its function makes the body of a message."""
    installed.write("counting.py", "def body(alerts, base_url):\n    return {'n': len(alerts)}\n")
    entries(installed, {"steering_gateway.sinks": {"counting": "counting:body"}})
    answered: list[bytes] = []
    with listening(answered) as url:
        sink = f"{{name: own, kind: counting, url: '{url}'}}"
        installed.write("own.yaml", f"alerts: {{sinks: [{sink}]}}\n")
        said = installed.run("-m", "gateway", "alerts", "test", "--config", "own.yaml").stdout
    assert said == "own: sent\n"
    assert answered == [b'{"n":1}']


@contextmanager
def listening(received: list[bytes]) -> Iterator[str]:
    """A receiver on loopback; the bodies of its requests are added to `received`."""

    class Receiver(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            received.append(self.rfile.read(int(self.headers["content-length"])))
            self.send_response(204)
            self.end_headers()

    server = HTTPServer(("127.0.0.1", 0), Receiver)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("points", "reason"),
    [
        ({"streak": "politeness.row:ROW"}, "streak (politeness.row:ROW) is already taken"),
        ({"politeness": "politeness.row:GONE"}, "politeness: module 'politeness.row' has no"),
        ({"politeness": "politeness.broken:ROW"}, "politeness: Object missing required field"),
    ],
)
def test_a_damaged_entry_point_is_named(
    installed: ScratchCopy, points: dict[str, str], reason: str
) -> None:
    """Nothing starts without the monitor that its operator relies on."""
    installed.write("politeness/broken.py", "ROW = {}\n")
    entries(installed, {"steering_gateway.monitors": points})
    ended = installed.run("-c", "import gateway.core.monitors", status=1)
    assert reason in ended.stderr
