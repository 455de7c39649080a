"""The slow part of a hook: the config file, and the session's log in the core.

Imported when the config file changed, or a log is to be read: it loads the settings."""

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from subprocess import DEVNULL, Popen
from urllib.parse import urlsplit

from gateway.config import Settings, load_settings
from gateway.config.own_address import is_loopback_name
from gateway.core.fold import StepOutcome
from gateway.core.guidance_settings import Gates
from gateway.core.guidance_text import frame
from gateway.core.monitors.alarms import Alarm
from gateway.errors import ConfigError
from gateway.features.client_hooks.settings import ClientHookSettings
from gateway.features.history.find import identify
from gateway.features.history.reading import recording_of
from gateway.offline.playback import LookUps, ReplayedCalls, ReplayPolicy, play_messages
from gateway.process.running_gateways import running_gateways
from gateway.values import FieldDict, Fields

BEFORE_A_CALL = "PreToolUse"  # name of the event
_BASE = "ANTHROPIC_BASE_URL"  # `gateway wrap` sets it for every command
_NOTHING_FOUND = LookUps(look_up=lambda queries: {}, gates=Gates(e1=1.0, e2=1.0))


def read_list(config: str, known: Fields | None) -> Fields:
    """The list of a config file; one that is refused leaves the list that was known. Raises
    ConfigError: it is refused, and none is known."""
    try:
        own = load_settings(config, upstreams=False).of(ClientHookSettings)
    except ConfigError:
        if known is None:
            raise
        return known
    return {"ask": own.ask, "deny": own.deny, "share": own.share}


def look(event: str, config: str, path: Path, *, since: int) -> tuple[FieldDict, int]:
    """Read a session's log. Returns the answer to an event about the steps after `since`, and the
    newest step. Raises: any error."""
    said = []
    settings = Settings()
    try:
        if config:
            settings = load_settings(config, upstreams=False)
    except ConfigError as exc:
        said.append(f"the list that was read last holds: {exc}")
    running = [_server(each.url) for each in running_gateways()]
    if _server(os.environ.get(_BASE, "")) in running:
        return _told(said), since  # the gateway that the calls go through says all the rest
    found = identify(path)
    session = next(found.sessions(found.open()))
    if event == BEFORE_A_CALL:  # as the request was: the answer has no results yet
        del session.messages[session.calls[-1].position :]
    recording = recording_of(session)
    policy = ReplayPolicy(rules=settings.rules())
    calls = ReplayedCalls(policy, recording, _NOTHING_FOUND)
    outcomes, decisions = play_messages(recording, policy.rules.policy, calls)
    said += [alarm.sentence for alarm in beginnings(outcomes, since)]
    answer = _told(said)
    if event != BEFORE_A_CALL:
        if running:
            _keep(config, path)
    elif settings.steering.mode == "on":
        texts = [item.text for each in decisions[since + 1 :] for item in each.decided.items]
        if texts and outcomes[max(outcomes)].readings.alarms:
            context = {"hookEventName": event, "additionalContext": frame(texts)}
            answer["hookSpecificOutput"] = context
    return answer, max(outcomes, default=-1)


def _told(said: Sequence[str]) -> FieldDict:
    if said:
        return {"systemMessage": f"gateway: {'; '.join(said)}"}
    return {}


def _server(url: str) -> tuple[bool | str, int | None]:
    """The machine of an address (True: this one) and the port: an address has many spellings."""
    parts = urlsplit(url)
    name = parts.hostname or ""
    return is_loopback_name(name) or name, parts.port


def beginnings(outcomes: Mapping[int, StepOutcome], since: int) -> Sequence[Alarm]:
    """The alarms that began after step `since`: those that the step before did not have."""
    begun = []
    before: set[str] = set()
    for index, outcome in sorted(outcomes.items()):
        alarms = outcome.readings.alarms
        begun += [each for each in alarms if index > since and each.entry not in before]
        before = {alarm.entry for alarm in alarms}
    return begun


def _keep(config: str, path: Path) -> None:
    """Keep the session in the store of the gateway that runs, without waiting for it."""
    Popen(  # noqa: S603 - this program
        [sys.executable, "-m", "gateway", "history", str(path), "--keep"],
        env=os.environ | {"GATEWAY_CONFIG": config},
        stdin=DEVNULL,
        stdout=DEVNULL,
        stderr=DEVNULL,
        start_new_session=True,
    )
