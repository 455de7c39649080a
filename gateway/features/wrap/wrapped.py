"""The wrapped command: its variables and options by client, its start, signals and exit status.

Sources of the clients' variables: their own documentation, and for those of `docs/clients` a run
against a scripted provider; `tests/features/wrap/test_real_clients.py` repeats five of them.

The child keeps the terminal, the process group and the standard streams: keys, the window's size
and job control work without help. This process passes on signals that somebody sends to it alone,
stops when the child stops, and ends as it ends."""

import json
import os
import re
import signal
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path, PurePath
from subprocess import Popen

from msgspec import Struct
from msgspec.structs import replace

from gateway.config.values import http_url
from gateway.data_files import read_toml
from gateway.errors import ConfigError
from gateway.values import FieldDict, Fields, Texts, frozen
from gateway.wire.coerce import as_mapping

BASE = "{base}"  # the gateway's base URL with its version, as OpenAI's clients want it
ROOT = "{root}"  # the same without `/v1`, as Anthropic's clients want it
_TABLE = read_toml(__package__, "clients.toml")
COMMON: Texts = _TABLE["common"]  # set for every command


class WrappedClient(Struct, frozen=True):
    """One agent, and what it reads besides the common variables."""

    names: Sequence[str] = ()  # of its command
    variables: Texts = {}  # of the environment, by name
    # variable with the address of a provider of the user's, in whose place ours is put
    own: str = ""
    options: Sequence[str] = ()  # put right behind the command's name
    chatgpt: Sequence[str] = ()  # the same with a ChatGPT login
    # variables whose value is JSON; the user's own value is kept where this one says nothing
    json: Fields = {}
    by_hand: str = (
        ""  # what the user has to do, for a client that reads none of them; "" for others
    )
    # what it reads besides, where no call of it arrives
    reads: str = "the address of its provider from a config of its own"


_UPSTREAM = "GATEWAY_DEFAULT_UPSTREAM__"
_CLOUDS = (
    "BEDROCK",
    "VERTEX",
    "GEMINI",
    "CODE_ASSIST",
    "COPILOT",
)  # in names of clients' variables
CLIENTS = tuple(WrappedClient(**row) for row in _TABLE["client"])

_KEYS = ("GATEWAY_ADMIN_KEY", "GATEWAY_AUTH__ADMIN_KEY")  # not for the command
_PROXIES = ("http_proxy", "https_proxy", "all_proxy")


@frozen
class PreparedCommand:
    """A command as it is to be started."""

    command: tuple[str, ...]  # with its arguments
    environment: Texts  # all of its variables
    note: str = ""  # for the user; "" for none


def client_of(command: Sequence[str]) -> WrappedClient | None:
    """The client that a command starts, also through `npx`, `uvx` and the like; None if unknown."""
    for word in command:
        name = PurePath(word).name.lower().removesuffix(".exe").removesuffix(".cmd")
        found = next((client for client in CLIENTS if name in client.names), None)
        if found is not None:
            return found
        if name not in _TABLE["launchers"] and not word.startswith("-") and "=" not in word:
            return None
    return None


def with_login(client: WrappedClient, environment: Texts) -> WrappedClient:
    """The client as it works with the login that this user has."""
    home = Path(environment.get("HOME") or Path.home())
    if client.chatgpt and _is_at_chatgpt(environment, home):
        # Its `chatgpt_base_url` takes no http: what is not for a model goes to ChatGPT directly.
        return replace(client, options=client.chatgpt)
    if "GOOGLE_GEMINI_BASE_URL" in client.variables:
        path = Path(environment.get("GEMINI_CLI_HOME") or home) / ".gemini/settings.json"
        chosen = ""
        if path.is_file():
            chosen = path.read_text("utf-8", "replace")
        for name in ("GOOGLE_GENAI_USE_VERTEXAI", "GOOGLE_GENAI_USE_GCA"):
            chosen += environment.get(name, "") + "\n"
        if re.search('"(?:gemini-api-key|vertex-ai|oauth-personal)"|true$', chosen, re.M):
            return replace(client, by_hand="")
    if client.own and client.variables and not environment.get(client.own):
        return replace(client, by_hand="")
    kind = environment.get(client.own.replace("BASE_URL", "TYPE"), "openai")
    if environment.get(client.own) and kind != "azure":
        ours = ROOT if kind == "anthropic" else BASE
        return replace(client, variables={client.own: ours}, by_hand="")
    return client


def _is_at_chatgpt(environment: Texts, home: Path) -> bool:
    """Whether Codex uses a ChatGPT login; one in the system's keyring is not seen."""
    path = Path(environment.get("CODEX_HOME") or home / ".codex") / "auth.json"
    known = None
    with suppress(OSError, ValueError):
        known = json.loads(path.read_bytes())
    known = as_mapping(known)
    by_key = known.get("OPENAI_API_KEY") and "apikey"
    kept = (known.get("auth_mode") or by_key) != "apikey" and known.get("tokens")
    return bool(kept) and not environment.get("CODEX_API_KEY")


def with_upstreams(command: Sequence[str], environment: Texts) -> dict[str, str]:
    """The gateway's environment: the client's variables name its provider, unless one is set.
    Raises ValueError: one of them is no address."""
    found = dict(environment)
    client = client_of(command) or WrappedClient()
    for name, ours in {**COMMON, **with_login(client, environment).variables}.items():
        base = environment.get(name, "").rstrip("/") * ("{" in ours)  # or it is a switch
        if base:
            http_url(base, name)
        kind = next((each for each in _CLOUDS if each in name), "")
        if base and name == client.own:
            found["OPENAI_BASE_URL" if ours == BASE else "ANTHROPIC_BASE_URL"] = base
        elif base and kind:
            found.setdefault(f"{_UPSTREAM}{kind}_API_BASE", base.removesuffix("/v1"))
            skip = f"CLAUDE_CODE_SKIP_{kind}_AUTH"
            if skip in client.variables and not environment.get(skip):  # it signed for that host
                found.setdefault(f"{_UPSTREAM}CLOUD_CREDENTIALS", "true")
    return found


def prepared(command: Sequence[str], environment: Texts, root: str) -> PreparedCommand:
    """`command` and its variables, pointed to the gateway at `root` (`http://127.0.0.1:8080`)."""
    client = client_of(command)
    if client is None:
        client = WrappedClient()
        after = 1
    else:
        after = 1 + next(i for i, word in enumerate(command) if client_of([word]) is client)
        client = with_login(client, environment)
    values = {**COMMON, **client.variables}
    fresh = dict(environment) | {name: _filled(value, root) for name, value in values.items()}
    for name, value in client.json.items():
        own = None
        with suppress(ValueError):
            own = json.loads(environment.get(name) or "{}")
        filled = json.loads(_filled(json.dumps(value), root))
        fresh[name] = json.dumps(_merged(as_mapping(own), filled))
    for name in _KEYS:
        fresh.pop(name, None)
    if any(name.lower() in _PROXIES and value for name, value in fresh.items()):
        # A proxy for web traffic cannot reach this machine's loopback interface.
        for name in ("NO_PROXY", "no_proxy"):
            known = fresh.get(name, "")
            fresh[name] = ",".join(filter(None, [known, "127.0.0.1", "localhost"]))
    options = tuple(_filled(option, root) for option in client.options)
    return PreparedCommand(
        command=(*command[:after], *options, *command[after:]),
        environment=fresh,
        note=_filled(client.by_hand, root),
    )


def _filled(text: str, root: str) -> str:
    return text.replace(BASE, f"{root}/v1").replace(ROOT, root)


def _merged(before: Fields, fresh: Fields) -> FieldDict:
    result = dict(before)
    for key, value in fresh.items():
        known = result.get(key)
        both = isinstance(known, dict) and isinstance(value, dict)
        result[key] = _merged(known, value) if both else value  # type: ignore[arg-type]
    return result


NOT_FOUND = 127
# Exit statuses of the shell for a command that cannot be started.
NOT_EXECUTABLE = 126

_PASSED_ON = ("SIGINT", "SIGQUIT", "SIGTERM", "SIGHUP", "SIGUSR1", "SIGUSR2", "SIGCONT")
_WAITED_FOR = (*_PASSED_ON, "SIGTSTP", "SIGCHLD")
# Python ignores these two, and an ignored signal stays ignored in the program that is started.
_IGNORED_BY_PYTHON = ("SIGPIPE", "SIGXFSZ")
_LOOK_S = 0.2  # between two looks, should the signal of the child's end be another thread's
_HAS_SIGNALS = hasattr(signal, "sigtimedwait") and hasattr(os, "posix_spawnp")


class CannotStart(ConfigError):
    """The command cannot be started; `status` is what a shell would return."""

    def __init__(self, message: str, status: int):
        super().__init__(message)
        self.status = status


@contextmanager
def signals_held() -> Iterator[None]:
    """Hold back signals during the child's life, for `run`. Threads that are started inside the
    block never get them. A thread that existed before (some libraries start one at import) may,
    so each signal also has a handler, which notes it for `run`."""
    if not _HAS_SIGNALS:
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _signals(_WAITED_FOR))
    handlers = {
        number: signal.signal(number, lambda number, _: _noted.append(number))
        for number in _signals((*_PASSED_ON, "SIGTSTP"))
        if signal.getsignal(number) is not signal.SIG_IGN  # as `nohup` wants it, also in the child
    }
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler if handler is not None else signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


_noted: deque[int] = deque()  # signals that another thread has got, for the next look of `run`


def run(command: Sequence[str], environment: Texts) -> int:
    """The exit status of `command`; 128 + n when signal n ended it, as a shell says it. To be
    called inside `signals_held`. Raises CannotStart: there is no such command, or it cannot be
    executed."""
    try:
        if _HAS_SIGNALS:
            mask = signal.pthread_sigmask(signal.SIG_BLOCK, ())
            child = os.posix_spawnp(
                command[0],
                list(command),
                dict(environment),
                setsigmask=mask - _signals(_WAITED_FOR),
                setsigdef=_signals(_IGNORED_BY_PYTHON),
            )
            code = _wait_for(child)
        else:
            code = _run_simply(command, environment)
    except FileNotFoundError as exc:
        raise CannotStart(f"{command[0]}: command not found", NOT_FOUND) from exc
    except OSError as exc:
        reason = exc.strerror or str(exc)
        raise CannotStart(f"{command[0]}: cannot be started: {reason}", NOT_EXECUTABLE) from exc
    if code >= 0:
        return code
    return 128 - code


def _run_simply(command: Sequence[str], environment: Texts) -> int:
    """Run without waiting for signals (macOS, Windows): Ctrl-C is the child's alone."""
    signal.signal(signal.SIGINT, lambda *_: None)
    with Popen(command, env=environment) as process:  # noqa: S603 - the user's own
        signal.signal(signal.SIGTERM, lambda number, _: process.send_signal(number))
        return process.wait()


def _wait_for(child: int) -> int:
    """Wait until the child has ended; returns its exit code, negative for a signal."""
    interactive = any(os.isatty(stream) for stream in (0, 1, 2))
    while True:
        ended, status = os.waitpid(child, os.WNOHANG | os.WUNTRACED)
        if ended and os.WIFSTOPPED(status):
            if interactive:  # the shell waits for this process to stop, too
                os.kill(os.getpid(), signal.SIGSTOP)
        elif ended:
            return os.waitstatus_to_exitcode(status)
        info = signal.sigtimedwait(_signals(_WAITED_FOR), _LOOK_S)
        # From the terminal the child has got it already: it is in the same process group.
        if info is not None and info.si_code <= 0:
            _pass_on(child, info.si_signo)
        while _noted:
            number = _noted.popleft()
            if not (interactive and number in _signals(("SIGINT", "SIGQUIT"))):
                _pass_on(child, number)


def _pass_on(child: int, number: int) -> None:
    if number in _signals(_PASSED_ON):
        with suppress(ProcessLookupError):
            os.kill(child, number)


def _signals(names: Sequence[str]) -> set[int]:
    return {int(getattr(signal, name)) for name in names if hasattr(signal, name)}
