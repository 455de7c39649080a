"""Installing from a folder of wheels, with an empty home: pip, pipx and uvx, to a steered call.

The folder is the local index; it holds the wheel of this checkout and those of its dependencies:

    python -m hatchling build -t wheel -d "$WHEELS"
    pip download -d "$WHEELS" "$WHEELS"/steering_gateway-*.whl
    TEST_WHEELS="$WHEELS" pytest -m nightly tests/test_install.py

The installers are found on the path, or in the folder that TEST_INSTALLERS names.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from gateway.testing import Reply, ScriptedUpstream
from tests.relay.processes import GatewayProcess

pytestmark = pytest.mark.nightly

INSTALL_S = 540
PATH = os.environ.get("TEST_INSTALLERS", "") + os.pathsep + os.environ["PATH"]


@pytest.fixture
def wheels() -> str:
    """The folder of wheels."""
    folder = os.environ.get("TEST_WHEELS")
    if not folder:
        pytest.skip("TEST_WHEELS names no folder of wheels: see the module's first lines")
    return str(Path(folder).resolve())


def needs(tool: str) -> pytest.MarkDecorator:
    missing = shutil.which(tool, path=PATH) is None
    return pytest.mark.skipif(missing, reason=f"{tool} is not installed")


def environment(home: Path, wheels: str) -> dict[str, str]:
    """An empty home, and no index but the folder."""
    return {
        "PATH": PATH,
        "HOME": str(home),
        "PIP_NO_INDEX": "1",
        "PIP_FIND_LINKS": wheels,
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        "UV_NO_INDEX": "1",
        "UV_FIND_LINKS": wheels,
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
    start: list[str], wheels: str, upstream: ScriptedUpstream, tmp_path: Path
) -> None:
    """The demo runs, and a gateway that is started the same way steers a request."""
    home = tmp_path / "home"
    home.mkdir()
    env = environment(home, wheels)
    if start == ["pip"]:
        venv = tmp_path / "venv"
        subprocess.run([sys.executable, "-m", "venv", venv], check=True, timeout=INSTALL_S)
        pip = [venv / "bin" / "python", "-m", "pip", "install", "--quiet", "steering-gateway"]
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
    assert "the effect of steering" in shown.stdout
    upstream.script(Reply("It works."))
    here = {**env, "OPENAI_BASE_URL": upstream.base_url, "GATEWAY_STEERING__MODE": "on"}
    with GatewayProcess(tmp_path, env=here, program=start) as gateway:
        answer = httpx.post(
            f"{gateway.base_url}/chat/completions",
            json={"model": "m", "messages": [{"role": "user", "content": "Does it work?"}]},
            timeout=60,
        )
    assert answer.headers["x-gateway-state"] == "INIT"
