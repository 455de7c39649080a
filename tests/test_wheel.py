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
import tomllib
import venv
import zipfile
from email import message_from_string
from importlib import metadata
from pathlib import Path

import httpx
import pytest
from packaging.requirements import Requirement

from gateway import __version__
from steering_gateway_testing import Reply, ScriptedUpstream
from steering_gateway_testing.processes import GatewayProcess

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[1]
MOST_BYTES = 8_000_000
NAMES = ("gateway", "steering-gateway")
FULL, CORE = ROOT / "packages" / "steering-gateway", ROOT / "packages" / "steering-gateway-core"


def built(folder: Path, made: Path) -> Path:
    """The wheel that the project in `folder` gives."""
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(made)],
        cwd=folder,
        check=True,
        capture_output=True,
    )
    [file] = made.glob("*.whl")
    return file


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of this checkout."""
    return built(ROOT, tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def core_wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel without LiteLLM among its dependencies."""
    return built(CORE, tmp_path_factory.mktemp("core"))


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the commands of an environment in which the wheel is installed."""
    return environment(wheel, tmp_path_factory.mktemp("clean"))


def environment(wheel: Path, home: Path, *, alone: bool = False) -> Path:
    """The folder of the commands of a new environment. `alone`: only what the wheel asks for is in
    it, not all that the tests' own environment has."""
    venv.create(home, symlinks=True)
    commands = home / "bin"
    index = home / "index"
    name = wheel.name.partition("-")[0].replace("_", "-")
    page = index / name / "index.html"
    page.parent.mkdir(parents=True)
    page.write_text(f'<!DOCTYPE html><a href="{wheel.as_uri()}">{wheel.name}</a>')
    pip = [sys.executable, "-m", "pip", "--isolated", "--python", str(commands / "python")]
    options = ["--quiet", "--no-deps", "--disable-pip-version-check", "--no-cache-dir"]
    options.append("--no-compile")  # most modules are not imported here
    found = ["--index-url", index.as_uri(), name]
    subprocess.run([*pip, "install", *options, *found], check=True)
    [packages] = home.glob("lib/python*/site-packages")
    if alone:
        for source in needed(wheel):
            (packages / source.name).symlink_to(source)
        return commands
    dependencies = [path for path in sys.path if path.endswith("site-packages")]
    (packages / "dependencies.pth").write_text("\n".join(dependencies) + "\n")
    return commands


def needed(wheel: Path) -> set[Path]:
    """Modules and metadata of all distributions that a wheel asks for, and of those they need."""
    with zipfile.ZipFile(wheel) as archive:
        [path] = [path for path in archive.namelist() if path.endswith("/METADATA")]
        said = message_from_string(archive.read(path).decode())
    asked = said.get_all("Requires-Dist") or []
    found: set[Path] = set()
    seen: set[str] = set()
    while asked:
        requirement = Requirement(asked.pop())
        if requirement.name in seen or (requirement.marker and not requirement.marker.evaluate()):
            continue
        seen.add(requirement.name)
        distribution = metadata.distribution(requirement.name)
        asked += distribution.requires or []
        tops = {file.parts[0] for file in distribution.files or () if file.parts[0] != ".."}
        found |= {Path(str(distribution.locate_file(top))) for top in tops - {"__pycache__"}}
    return found


def test_every_file_of_the_package_and_nothing_else_is_in_it(wheel: Path) -> None:
    """Modules, the embedder's model, patterns, weights, templates and `py.typed`; no tests."""
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    described = {name for name in names if name.split("/")[0].endswith(".dist-info")}
    files = {
        str(path.relative_to(ROOT))
        for path in (ROOT / "gateway").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert names - described == files
    assert {"gateway/py.typed", "gateway/library/starter.jsonl"} <= files
    assert {
        "gateway/embedding/model/rows.npy",
        "gateway/features/pages/templates/base.html",
    } <= files
    assert any(name.endswith("licenses/LICENSE") for name in described)


def test_it_is_small_and_says_what_it_is(wheel: Path) -> None:
    """Below 8 MB; its version is the package's, its README the project's, no address invented."""
    assert wheel.stat().st_size < MOST_BYTES
    with zipfile.ZipFile(wheel) as archive:
        [name] = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        said = archive.read(name).decode()
    fields = said.partition("\n\n")[0].splitlines()
    assert f"Version: {__version__}" in fields
    assert "Classifier: Typing :: Typed" in fields
    assert not [line for line in fields if line.startswith(("Project-URL", "Home-page"))]
    assert (ROOT / "README.md").read_text() in said


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
            timeout=120,
        )
        assert answer.json()["choices"][0]["message"]["content"] == "It works."
        assert answer.headers["x-gateway-state"]
        patterns = httpx.get(f"{gateway.url}/api/patterns", timeout=120).json()["patterns"]
        page = httpx.get(f"{gateway.url}/dashboard", timeout=120)
        style = httpx.get(f"{gateway.url}/dashboard/static/app.css", timeout=120)
    assert patterns
    assert (page.status_code, style.status_code) == (200, 200)
    assert answer.headers["x-gateway-conversation-id"] in page.text


def test_the_core_has_the_same_files_and_the_full_package_adds_the_rest(
    wheel: Path, core_wheel: Path, tmp_path: Path
) -> None:
    """What a package index gets: the core with every file, and a package of dependencies that
    together ask for what the project at the top asks for."""
    files = []
    for each in (wheel, core_wheel, built(FULL, tmp_path)):
        with zipfile.ZipFile(each) as archive:
            files.append({name for name in archive.namelist() if name.startswith("gateway/")})
    assert files[0] == files[1]
    assert not files[2]
    top, core, full = (
        tomllib.loads((folder / "pyproject.toml").read_text())["project"]
        for folder in (ROOT, CORE, FULL)
    )
    pinned = f"steering-gateway-core=={__version__}"
    assert {*core["dependencies"], *full["dependencies"]} == {*top["dependencies"], pinned}
    for name in ("otel", "postgres", "bedrock", "vertex"):
        assert core["optional-dependencies"][name] == top["optional-dependencies"][name]
        [asked] = full["optional-dependencies"][name]
        assert asked == f"steering-gateway-core[{name}]=={__version__}"


CONFIG = """\
model_list:
  - model_name: native
    litellm_params: {{model: openai/gpt-4o, api_base: "{base}", api_key: x}}
    model_info: {{input_cost_per_token: 1e-6, output_cost_per_token: 2e-6}}
  - model_name: claude
    litellm_params: {{model: anthropic/claude-sonnet-4-5, api_base: "{base}", api_key: x}}
"""


def test_the_core_runs_without_litellm(
    core_wheel: Path, upstream: ScriptedUpstream, tmp_path: Path
) -> None:
    """A native call is steered and priced. What needs LiteLLM is refused with the package to
    install: a deployment at the start, a call that would have to be translated. The demo runs."""
    commands = environment(core_wheel, tmp_path / "core", alone=True)

    def run(*words: str, **variables: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [commands / "gateway", *words],
            cwd=tmp_path,
            env={"PATH": os.environ["PATH"], **variables},
            capture_output=True,
            text=True,
            check=False,
        )

    asked_for = "in a clone of the gateway"
    (tmp_path / "translated.yaml").write_text(
        "model_list: [{model_name: a, litellm_params: {model: azure/gpt-4o}}]\n"
    )
    for words in (("check-config",), ("serve", "--port", "0")):
        refused = run(*words, "--config", "translated.yaml")
        assert refused.returncode == 2
        assert "azure/gpt-4o" in refused.stdout + refused.stderr
        assert asked_for in refused.stdout + refused.stderr
    shown = run("demo")
    assert (shown.returncode, shown.stderr) == (0, "")

    upstream.script(Reply("It works."))
    config = CONFIG.format(base=upstream.base_url)
    env = {"GATEWAY_STEERING__MODE": "on", "PYTHONPATH": ""}
    program = [str(commands / "gateway")]
    with GatewayProcess(tmp_path, config, env=env, program=program) as gateway:
        body = {"messages": [{"role": "user", "content": "Does it work?"}]}
        url = f"{gateway.base_url}/chat/completions"
        answer = httpx.post(url, json={"model": "native", **body}, timeout=120)
        translated = httpx.post(url, json={"model": "claude", **body}, timeout=120)
        spent = httpx.get(f"{gateway.url}/api/health-summary", timeout=120).json()
    assert answer.json()["choices"][0]["message"]["content"] == "It works."
    assert answer.headers["x-gateway-state"]
    assert translated.status_code == 500
    assert asked_for in translated.json()["error"]["message"]
    assert spent["cost_usd"] > 0
