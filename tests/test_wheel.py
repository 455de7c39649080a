"""The wheel: what is in it, and that it runs where the checkout is not.

The environment is a new one, and the gateway in it comes from the wheel alone, which pip finds in
an index of the test's own. Its dependencies are those of the environment that runs the tests, put
on the path behind the wheel: to download 100 MB for each run of the tests would take minutes and a
network. `.pth` files there are not read, so an editable install of the checkout does not count.
`tests/test_install.py` installs the dependencies too, and with other installers.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import httpx
import pytest

from gateway import __version__
from steering_gateway_testing import Reply, ScriptedUpstream
from tests.relay.processes import GatewayProcess

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[1]
MOST_BYTES = 8_000_000
NAMES = ("gateway", "steering-gateway")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of this checkout."""
    made = tmp_path_factory.mktemp("wheel")
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(made)],
        cwd=ROOT,
        check=True,
        capture_output=True,
    )
    [file] = made.glob("*.whl")
    return file


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the commands of an environment in which the wheel is installed."""
    home = tmp_path_factory.mktemp("clean")
    venv.create(home, symlinks=True)
    commands = home / "bin"
    index = home / "index"
    page = index / "steering-gateway" / "index.html"
    page.parent.mkdir(parents=True)
    page.write_text(f'<!DOCTYPE html><a href="{wheel.as_uri()}">{wheel.name}</a>')
    pip = [sys.executable, "-m", "pip", "--isolated", "--python", str(commands / "python")]
    options = ["--quiet", "--no-deps", "--disable-pip-version-check", "--no-cache-dir"]
    options.append("--no-compile")  # most modules are not imported here
    found = ["--index-url", index.as_uri(), "steering-gateway"]
    subprocess.run([*pip, "install", *options, *found], check=True)
    [packages] = home.glob("lib/python*/site-packages")
    dependencies = [path for path in sys.path if path.endswith("site-packages")]
    (packages / "dependencies.pth").write_text("\n".join(dependencies) + "\n")
    return commands


def test_every_file_of_the_package_and_nothing_else_is_in_it(wheel: Path) -> None:
    """Modules, the embedder's model, patterns, weights, templates and `py.typed`; no tests."""
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    metadata = {name for name in names if name.split("/")[0].endswith(".dist-info")}
    files = {
        str(path.relative_to(ROOT))
        for path in (ROOT / "gateway").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert names - metadata == files
    assert {"gateway/py.typed", "gateway/library/starter.jsonl"} <= files
    assert {"gateway/embedding/model/rows.npy", "gateway/dashboard/templates/base.html"} <= files
    assert any(name.endswith("licenses/LICENSE") for name in metadata)


def test_it_is_small_and_says_what_it_is(wheel: Path) -> None:
    """Below 8 MB; its version is the package's, its README the project's, no address invented."""
    assert wheel.stat().st_size < MOST_BYTES
    with zipfile.ZipFile(wheel) as archive:
        [name] = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        metadata = archive.read(name).decode()
    fields = metadata.partition("\n\n")[0].splitlines()
    assert f"Version: {__version__}" in fields
    assert "Classifier: Typing :: Typed" in fields
    assert not [line for line in fields if line.startswith(("Project-URL", "Home-page"))]
    assert (ROOT / "README.md").read_text() in metadata


def test_both_names_are_the_same_command(installed: Path, tmp_path: Path) -> None:
    """`gateway` and `steering-gateway` call the same function; `python -m gateway` is run below."""
    scripts = [(installed / name).read_text() for name in NAMES]
    assert len(set(scripts)) == 1
    said = subprocess.run(
        [installed / NAMES[1], "--version"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    assert said.stdout == f"gateway {__version__}\n"


def test_it_runs_in_a_clean_environment(
    installed: Path, upstream: ScriptedUpstream, tmp_path: Path
) -> None:
    """With the defaults that ship: a config is checked, a request steered, a page shown."""
    environment = {"PATH": os.environ["PATH"], "OPENAI_BASE_URL": upstream.base_url}
    where = subprocess.run(
        [installed / "python", "-c", "import gateway; print(gateway.__file__)"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert Path(where.stdout.strip()).is_relative_to(installed.parent)
    checked = subprocess.run(
        [installed / "python", "-m", "gateway", "check-config", "--json"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert checked.returncode == 0, checked.stderr
    json.loads(checked.stdout)
    upstream.script(Reply("It works."))
    steered = {"GATEWAY_STEERING__MODE": "on", "GATEWAY_ETRACES__ENABLED": "true"}
    defaults = {**steered, "OPENAI_BASE_URL": upstream.base_url, "PYTHONPATH": ""}
    with GatewayProcess(tmp_path, env=defaults, program=[str(installed / "gateway")]) as gateway:
        answer = httpx.post(
            f"{gateway.base_url}/chat/completions",
            json={"model": "m", "messages": [{"role": "user", "content": "Does it work?"}]},
            timeout=60,
        )
        assert answer.json()["choices"][0]["message"]["content"] == "It works."
        assert answer.headers["x-gateway-state"]
        patterns = httpx.get(f"{gateway.url}/api/patterns", timeout=60).json()["patterns"]
        page = httpx.get(f"{gateway.url}/dashboard", timeout=60)
        style = httpx.get(f"{gateway.url}/dashboard/static/app.css", timeout=60)
    assert patterns
    assert (page.status_code, style.status_code) == (200, 200)
    assert answer.headers["x-gateway-conversation-id"] in page.text
