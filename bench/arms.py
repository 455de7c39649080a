"""The arms: what stands between the load and the upstream, and how each one is started."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from bench import peers
from bench.bodies import MODEL
from bench.client import LOOPBACK
from bench.processes import Server, clean_env, free_port

CHAT = "/v1/chat/completions"
_ROOT = str(Path(__file__).resolve().parents[1])
_KEY = "sk-bench-0000"

Command = tuple[Sequence[str], dict[str, str]]
"""Arguments of a process, and what its environment holds beside the common."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """What an arm needs to know to start: its port, the upstream's, and a directory of its own."""

    port: int
    upstream: int
    home: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Arm:
    """One way to the upstream. `command` is None for the direct one."""

    name: str
    what: str
    command: Callable[[Place], Command] | None
    ready: str = "/"
    ready_limit_s: float = 60
    probe: str = "/"
    """What its event loop answers at once."""

    remembers: bool = False
    """Whether it goes on from what it knows of a conversation."""

    own: bool = False
    """Whether it is this gateway: then a failure fails the bench."""

    headers: Callable[[Place], tuple[tuple[str, str], ...]] = lambda _: ()


def gateway_command(place: Place, mode: str, **more: Any) -> Command:
    """This gateway before the upstream, with a store on disk; `more`: sections of its config."""
    path = place.home / f"gateway-{place.port}.yaml"
    config = {
        "default_upstream": {"api_base": _base(place)},
        "storage": {"path": str(place.home / f"gateway-{place.port}.db")},
        "steering": {"mode": mode},
        **more,
    }
    path.write_text(yaml.safe_dump(config))
    command = [sys.executable, "-m", "gateway", "serve", "--config", str(path)]
    return [*command, "--port", str(place.port)], {}


def _native(place: Place) -> Command:
    return gateway_command(place, "off")


def _steered(place: Place) -> Command:
    return gateway_command(place, "on")


def _litellm_lane(place: Place) -> Command:
    params = {"model": f"openai/{MODEL}", "api_base": _base(place), "api_key": _KEY}
    entry = {"model_name": MODEL, "lane": "litellm", "litellm_params": params}
    return gateway_command(place, "off", model_list=[entry])


def _litellm_proxy(place: Place) -> Command:
    params = {"model": f"openai/{MODEL}", "api_base": _base(place), "api_key": _KEY}
    config = {"model_list": [{"model_name": MODEL, "litellm_params": params}]}
    path = place.home / "litellm.yaml"
    path.write_text(yaml.safe_dump(config))
    command = [str(peers.litellm_proxy()), "--config", str(path), "--host", LOOPBACK]
    env = {
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        "LITELLM_LOG": "ERROR",
        "LITELLM_TELEMETRY": "False",
        # No keys are checked in the other arms either.
        "LITELLM_DANGEROUSLY_PERMIT_WEAK_OR_UNSET_MASTER_KEY": "true",
    }
    return [*command, "--port", str(place.port)], env


def _portkey(place: Place) -> Command:
    node, script = peers.portkey()
    return [str(node), str(script), f"--port={place.port}", "--headless"], {
        "PORT": str(place.port),
        "NODE_ENV": "production",
    }


def _portkey_headers(place: Place) -> tuple[tuple[str, str], ...]:
    return (("x-portkey-provider", "openai"), ("x-portkey-custom-host", _base(place)))


def _relay(transport: str) -> Callable[[Place], Command]:
    return lambda place: (relay_command(place.port, place.upstream, transport), {})


def relay_command(port: int, upstream: int, transport: str = "aiohttp") -> Sequence[str]:
    """The bare relay before the upstream at this port."""
    base = f"http://{LOOPBACK}:{upstream}"
    options = ["--port", str(port), "--upstream", base, "--transport", transport]
    return [sys.executable, "-m", "bench.relay", *options]


def _base(place: Place) -> str:
    return f"http://{LOOPBACK}:{place.upstream}/v1"


ARMS = (
    Arm(name="direct", what="no gateway", command=None, probe="/v1/models"),
    Arm(
        name="native",
        what="this gateway, native lane, steering off",
        command=_native,
        remembers=True,
        ready="/readyz",
        probe="/healthz",
        own=True,
    ),
    Arm(
        name="steered",
        what="this gateway, native lane, steering on",
        command=_steered,
        remembers=True,
        ready="/readyz",
        probe="/healthz",
        own=True,
    ),
    Arm(
        name="litellm-lane",
        what="this gateway, LiteLLM lane, steering off",
        command=_litellm_lane,
        ready="/readyz",
        probe="/healthz",
        own=True,
    ),
    Arm(
        name="litellm-proxy",
        what="LiteLLM proxy, one worker, no database",
        command=_litellm_proxy,
        ready="/health/readiness",
        ready_limit_s=180,
        probe="/health/liveliness",
    ),
    Arm(
        name="portkey",
        what=f"Portkey gateway {peers.PORTKEY_VERSION} on Node",
        command=_portkey,
        headers=_portkey_headers,
    ),
    Arm(
        name="switchyard",
        what=f"NVIDIA Switchyard {peers.SWITCHYARD_VERSION}, stage router, nothing stored",
        command=lambda place: (switchyard_command(place.port, place.upstream, place.home), {}),
        ready="/metrics",
        probe="/metrics",
    ),
    Arm(name="relay-aiohttp", what="bare relay over aiohttp", command=_relay("aiohttp")),
    Arm(name="relay-httpx", what="bare relay over httpx on aiohttp", command=_relay("httpx")),
)
OURS = "native"


@dataclass(slots=True, kw_only=True)
class Running:
    """An arm that serves. `server` is None for the direct one."""

    arm: Arm
    port: int
    headers: tuple[tuple[str, str], ...]
    server: Server | None
    ready_s: float = 0.0
    first_answer_s: float = 0.0
    rss_idle_mb: float = 0.0

    def cpu_s(self) -> float:
        """CPU seconds its processes have used; 0 for the direct arm."""
        return self.server.cpu_s() if self.server else 0.0


def start(arm: Arm, upstream: int, home: Path) -> Running:
    """Start one arm and wait until it is ready.

    Raises:
        Unavailable: it cannot be installed on this machine.
        NotReady: it does not come up.
    """
    place = Place(port=free_port(), upstream=upstream, home=home)
    if arm.command is None:
        return Running(arm=arm, port=upstream, headers=(), server=None)
    command, extra = arm.command(place)
    server = launch(command, port=place.port, home=home, name=arm.name, env=extra)
    try:
        ready_s = server.wait_ready(arm.ready, arm.ready_limit_s)
    except BaseException:
        server.stop()
        raise
    return Running(
        arm=arm, port=place.port, headers=arm.headers(place), server=server, ready_s=ready_s
    )


def launch(
    command: Sequence[str], *, port: int, home: Path, name: str, env: dict[str, str] | None = None
) -> Server:
    """A server process with this source tree importable, and its output in `home`."""
    home.mkdir(parents=True, exist_ok=True)
    environment = launch_environment() | (env or {})
    return Server(command, port=port, log=home / f"{name}.log", env=environment)


def switchyard_command(port: int, upstream: int, home: Path) -> Sequence[str]:
    """NVIDIA's Rust router with its stage router, before the upstream at this port.

    Raises:
        Unavailable: it cannot be installed.
    """
    config = home / f"switchyard-{port}.toml"
    client = f'format = "openai_chat"\nbase_url = "http://{LOOPBACK}:{upstream}/v1"\n'
    tiers = "".join(
        f'[targets.{tier}]\nid = "{MODEL}-{tier}"\nllm_client = "upstream"\n'
        for tier in ("capable", "efficient")
    )
    config.write_text(
        f"schema_version = 1\n[llm_clients.upstream]\n{client}{tiers}"
        f'[routes.bench]\nid = "{MODEL}"\ntype = "stage_router"\ncapable_target = "capable"\n'
        'efficient_target = "efficient"\npicker = "efficient_first"\nconfidence_threshold = 0.5\n'
    )
    serve = (
        "import sys, time; from switchyard_rust.server import Server; "
        "server = Server(sys.argv[1], int(sys.argv[2])); time.sleep(1e6)"
    )
    return [str(peers.switchyard()), "-c", serve, str(config), str(port)]


def launch_environment() -> dict[str, str]:
    """The environment of a server process: with this source tree importable."""
    return clean_env() | {"PYTHONPATH": _ROOT}


@contextmanager
def upstream(home: Path, *arguments: str) -> Iterator[int]:
    """The scripted upstream as a process of its own; its port."""
    port = free_port()
    command = [sys.executable, "-m", "steering_gateway_testing", "--port", str(port), *arguments]
    server = launch(command, port=port, home=home, name=f"upstream-{port}")
    try:
        server.wait_ready("/v1/models", 30)
        yield port
    finally:
        server.stop()
