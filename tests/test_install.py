"""Installing from a local index, with an empty home: pip, pipx and uvx, to a steered call.

The index is made from a folder of wheels: that of this checkout and those of its dependencies:

    python -m hatchling build -t wheel -d "$WHEELS"
    pip download -d "$WHEELS" "$WHEELS"/steering_gateway-*.whl
    TEST_WHEELS="$WHEELS" pytest -m nightly tests/test_install.py

The installers are found on the path, or in the folder that TEST_INSTALLERS names.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import httpx
import pytest

from steering_gateway_testing import Reply, ScriptedUpstream
from steering_gateway_testing.processes import GatewayProcess

pytestmark = pytest.mark.nightly

INSTALL_S = 900
PATH = os.environ.get("TEST_INSTALLERS", "") + os.pathsep + os.environ["PATH"]


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a package index on loopback that has the wheels."""
    folder = os.environ.get("TEST_WHEELS")
    if not folder:
        pytest.skip("TEST_WHEELS names no folder of wheels: see the module's first lines")
    pages = tmp_path_factory.mktemp("index")
    for wheel in Path(folder).resolve().glob("*.whl"):
        page = pages / re.sub(r"[-_.]+", "-", wheel.name.split("-")[0]).lower()
        page.mkdir(exist_ok=True)
        (page / wheel.name).symlink_to(wheel)
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(_Quiet, directory=str(pages)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/"
    server.shutdown()
    server.server_close()


def needs(tool: str) -> pytest.MarkDecorator:
    missing = shutil.which(tool, path=PATH) is None
    return pytest.mark.skipif(missing, reason=f"{tool} is not installed")


def environment(home: Path, index: str) -> dict[str, str]:
    """An empty home, and no index but the local one."""
    return {
        "PATH": PATH,
        "HOME": str(home),
        "PIP_CONFIG_FILE": os.devnull,
        "PIP_INDEX_URL": index,
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        "UV_NO_CONFIG": "1",
        "UV_DEFAULT_INDEX": index,
        "UV_PYTHON": sys.executable,
        "UV_PYTHON_DOWNLOADS": "never",
        "PIPX_DEFAULT_PYTHON": sys.executable,
    }


@pytest.mark.parametrize(
    "start",
    [
        pytest.param(["pipx", "run", "steering-gateway"], marks=needs("pipx"), id="pipx"),
        pytest.param(["uvx", "steering-gateway"], marks=needs("uvx"), id="uvx"),
        pytest.param(["pip"], id="pip"),
    ],
)
def test_from_nothing_to_a_steered_call(
    start: list[str], index: str, upstream: ScriptedUpstream, tmp_path: Path
) -> None:
    """The demo runs, and a gateway that is started the same way steers a request."""
    home = tmp_path / "home"
    home.mkdir()
    env = environment(home, index)
    if start == ["pip"]:
        venv = tmp_path / "venv"
        subprocess.run([sys.executable, "-m", "venv", venv], check=True, timeout=INSTALL_S)
        pip = [str(venv / "bin" / "python"), "-m", "pip", "install", "--quiet", "steering-gateway"]
        subprocess.run(pip, env=env, check=True, timeout=INSTALL_S)
        start = [str(venv / "bin" / "steering-gateway")]
    shown = subprocess.run(
        [*start, "demo"],
        cwd=home,
        env=env,
        capture_output=True,
        text=True,
        timeout=INSTALL_S,
        check=False,
    )
    assert shown.returncode == 0, shown.stderr[-3000:]
    assert "repaired" in shown.stdout
    upstream.script(Reply("It works."))
    here = {**env, "OPENAI_BASE_URL": upstream.base_url, "GATEWAY_STEERING__MODE": "on"}
    with GatewayProcess(tmp_path, env=here, program=start) as gateway:
        answer = httpx.post(
            f"{gateway.base_url}/chat/completions",
            json={"model": "m", "messages": [{"role": "user", "content": "Does it work?"}]},
            timeout=120,
        )
    assert answer.headers["x-gateway-mode"] == "on"
    assert answer.headers["x-gateway-state"]
