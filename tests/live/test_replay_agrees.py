"""The live gateway and `gateway replay` make the same decisions under each policy."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import httpx
import orjson
import pytest
from msgspec.structs import replace

from gateway.backends import open_stores
from gateway.conversations.observe import opening_prompts
from gateway.core.pattern import Pattern, Trust
from gateway.features.learning.context import project_of
from gateway.library import starter_patterns
from gateway.offline.playback import ReplayPolicy, play, recorded_calls
from gateway.offline.recordings import Recording, parse_recording, steps_of
from gateway.offline.replay import policy_from_dict
from gateway.steering.guidance.codec import to_line
from lab.library_answers import library_look_ups
from steering_gateway_testing import AppServer, ReceivedRequest, ScriptedUpstream
from steering_gateway_testing.patience import DEADLINE_MS
from steering_gateway_testing.recorded_agents import Run, calls_of, read_runs
from steering_gateway_testing.values import Reply, ToolCall, Usage
from tests.examples import by_day
from tests.features.learning.runs import SourceRun, lessons_of

Start = Callable[..., AppServer]
SAMPLE = Path(__file__).parents[1] / "replays/sample.jsonl.gz"
DEVELOPMENT_RUNS = Path(__file__).parents[3] / "shared/data/trajectories-dev.jsonl.gz"
RUNS = slice(2, 6)
"""By number of calls: the longest but for two, which have four times as many."""
_SENT = ("role", "content", "tool_calls", "tool_call_id", "name")
_WHICH = "x-test-reply"
REQUESTED = "recorded"

ROUTES = {"FAST": "small", "NORMAL": "middle", "SLOW": "large", "SKIP": "largest"}
STEERING: dict[str, Any] = {"deadline_ms": DEADLINE_MS}
REFERENCE = {"difficulty": {"scorer": "heuristic"}, "monitors": {"suite": "reference"}}

# What each policy changes in the shipped settings.
POLICIES: Mapping[str, Mapping[str, Any]] = {
    "as shipped": {"model_routing": ROUTES},
    "every action": {
        "steering": STEERING,
        "control": {"on_trouble": "hand_over"},
        "model_routing": ROUTES,
    },
    "dwell on FAST": {
        "steering": STEERING,
        "routing": {"min_dwell_steps": 6},
        "model_routing": {"FAST": "small"},
        "fsm": {"fast_window": 2},
    },
    "dwell on all": {
        **REFERENCE,
        "steering": STEERING,
        "routing": {"min_dwell_steps": 3},
        "model_routing": ROUTES,
        "fsm": {"fast_window": 2, "slow_window": 2, "skip_window": 4},
    },
    "token budget": {
        "steering": {**STEERING, "token_budget": 20_000, "budget_action": "wrap_up"},
        "model_routing": ROUTES,
    },
    "small blocks": {
        **REFERENCE,
        "steering": STEERING,
        "injection": {"max_block_chars": 1000, "max_field_chars": 200},
        "etraces": {"e2_when": "always", "e2_per_type": 3, "e1_per_run": 3, "e2_gate": 0.0},
    },
    "refused models": {"steering": STEERING, "model_routing": ROUTES},
    "caps and cooldowns": {
        "steering": STEERING,
        "injection": {
            "monitor_cap": 2,
            "cooldown_steps": {"NORMAL": 1, "SLOW": 4},
            "lifetime": "call",
            "placement": "tail",
            "monitor_composite": 0.1,
        },
        "routing": {"min_dwell_steps": 1},
        "model_routing_by_model": {REQUESTED: {"SLOW": "large"}},
    },
    "lessons": {
        "steering": STEERING,
        # Nothing is learned meanwhile: the replay knows the lessons that there were before.
        "learning": {"trials": "on", "interval_s": 3600, "per_run": 3},
    },
    "one run, own monitors": {
        "conversations": {"run_boundary": "never"},
        "monitors": {"profile": "qa"},
        "steering": STEERING,
        "etraces": {"e1_composite": 0.0, "e1_lookback_steps": 5, "e2_when": "always"},
        "model_routing": {"NORMAL": "middle", "SLOW": "large"},
    },
}
# Capabilities that two of the routed models lack, for one of the policies.
LIMITS = {"small": {"supports_function_calling": False}, "large": {"max_input_tokens": 4000}}


def deployments(url: str, limits: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The routed models, each served by the scripted provider."""
    return [
        {
            "model_name": name,
            "litellm_params": {"model": f"openai/{name}", "api_base": url, "api_key": "k"},
            "model_info": limits.get(name, {}),
        }
        for name in (REQUESTED, *ROUTES.values())
    ]


def scripted(runs: Sequence[Run], recordings: Mapping[str, Recording]) -> Callable[..., Reply]:
    """A provider that replies as recorded, with the token usage that the replay estimates."""
    messages = {(run["id"], i): m for run in runs for i, m in enumerate(run["messages"])}
    bills = {
        (run["id"], index): call.tokens
        for run in runs
        for index, call in zip(
            calls_of(run["messages"]), recorded_calls(recordings[run["id"]]), strict=True
        )
    }

    def reply(request: ReceivedRequest) -> Reply:
        run_id, _, index = str(request.header(_WHICH)).rpartition("|")
        message, (sent, received) = messages[run_id, int(index)], bills[run_id, int(index)]
        calls = tuple(
            ToolCall(c["function"]["name"], c["function"]["arguments"], id=c["id"])
            for c in message.get("tool_calls") or []
        )
        usage = Usage(prompt_tokens=sent, completion_tokens=received)
        return Reply(message.get("content") or "", tool_calls=calls, usage=usage)

    return reply


async def live_decisions(url: str, run: Run, recording: Recording) -> list[tuple[str, ...]]:
    """Step, state, model and guidance of each call, as the gateway's headers give them."""
    found = []
    messages = [{k: m[k] for k in _SENT if k in m} for m in run["messages"]]
    async with httpx.AsyncClient(timeout=120) as client:
        for index in calls_of(messages):
            body = {"model": REQUESTED, "messages": messages[:index], **recording.request}
            headers = {
                _WHICH: f"{run['id']}|{index}",
                "content-type": "application/json",
                # Several sample runs have the same opening; an id keeps them apart.
                "x-conversation-id": run["id"],
                "x-gateway-experiment-unit": run["id"],
            }
            answer = await client.post(
                f"{url}/v1/chat/completions", content=orjson.dumps(body), headers=headers
            )
            assert answer.status_code == 200
            given = answer.headers.get("x-gateway-guidance", "").split(",")
            labels = [label for label in given if label and not label.startswith("e3:")]
            step, state = answer.headers["x-gateway-step"], answer.headers["x-gateway-state"]
            found.append((step, state, answer.headers["x-gateway-model"], *labels))
    return found


def replayed_decisions(
    recordings: Sequence[Recording], policy: ReplayPolicy, patterns: str
) -> dict[str, list[tuple[str, ...]]]:
    """The same of each recording's calls, from the replay; a first call has no step before it."""
    with library_look_ups(patterns, policy) as look_ups:
        played = [play(recording, policy, look_ups) for recording in recordings]
    return {
        one["id"]: [
            (*place, step["model"], *(_label(item) for item in step.get("guidance", ())))
            for place, step in zip(_places(one["steps"]), one["steps"], strict=True)
        ]
        for one in played
    }


def _places(steps: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, str]]:
    """Scored steps of the run so far, and its state, after each step; a final answer ends a run."""
    run, scored = 0, 0
    for step in steps:
        if not step["scored"]:
            yield "0", "INIT"
            continue
        scored = scored + 1 if step["run"] == run else 1
        run = step["run"]
        yield str(scored), step["state"]


def _label(item: Mapping[str, Any]) -> str:
    source = item["source"]
    if source == "skip":
        return "skip:directive"
    about = item.get("failure_type") or item.get("pattern_id")
    return f"{source}:{about}" if about else source


async def disagreements(
    server: AppServer,
    runs: Sequence[Run],
    recordings: Mapping[str, Recording],
    policy: ReplayPolicy,
    patterns: str,
) -> tuple[list[str], int]:
    """Each call on which live and replay decide differently, and how many were compared."""
    found: list[str] = []
    compared = 0
    replays = await asyncio.to_thread(
        replayed_decisions, list(recordings.values()), policy, patterns
    )
    for run in runs:
        live = await live_decisions(server.url, run, recordings[run["id"]])
        replayed = replays[run["id"]]
        # The replay has one decision after each step; no call follows the end of a recording.
        for number, (after, call) in enumerate(zip(replayed, live[1:], strict=False)):
            compared += 1
            if call[1] == "END":
                # The answer ended the run, and says so instead of the state it was decided in.
                call = (call[0], after[1], *call[2:])
            # A step that calls nothing is scored when the next message is known: the call in
            # between is decided without it, and only its decision can be compared.
            pending = call[0] != after[0]
            if after[2:] != call[2:] or (after != call and not pending):
                found.append(f"{run['id']} after step {number}: replay {after}, live {call}")
    return found, compared


def sample(file: Path, part: slice) -> tuple[list[Run], dict[str, Recording]]:
    """A part of the runs, most calls first, and the same as recordings of one requested model."""
    runs: list[Run] = [{**run, "model": REQUESTED} for run in read_runs(file)]
    runs.sort(key=lambda run: len(calls_of(run["messages"])), reverse=True)
    chosen = runs[part]
    return chosen, {run["id"]: parse_recording(orjson.dumps(run).decode(), "-") for run in chosen}


def taught(recordings: Mapping[str, Recording]) -> list[Pattern]:
    """A lesson in trial, approved by an operator, for each failure of the recordings."""
    found: dict[str, Pattern] = {}
    for recording in recordings.values():
        run = SourceRun(
            id=recording.label.id,
            tenant="default",
            conversation="",
            task="",
            steps=steps_of(recording),
            at=0.0,
            project=project_of(opening_prompts({}, recording.messages or (), 0)),
        )
        found |= {each.pattern_id: each for each in lessons_of(run)}
    return [approved(pattern) for pattern in found.values()]


def approved(pattern: Pattern) -> Pattern:
    assert pattern.lesson is not None
    return replace(pattern, lesson=replace(pattern.lesson, trust=Trust.OPERATOR))


async def store(server: AppServer, lessons: Sequence[Pattern]) -> None:
    """Put lessons into the gateway's database."""
    stores = await open_stores(server.app.runtime.settings.storage)
    await stores.learning.learn([(lesson, ()) for lesson in lessons])
    await stores.close()


async def drawn(server: AppServer, lessons: Sequence[Pattern]) -> set[bool]:
    """Whether lessons were given, and held back, in the runs of the gateway."""
    stores = await open_stores(server.app.runtime.settings.storage)
    made = [await stores.learning.decisions("default", each.pattern_id) for each in lessons]
    await stores.close()
    return {decision.decision.given for decisions in made for decision in decisions}


async def _compare(
    name: str,
    gateway_server: Start,
    upstream: ScriptedUpstream,
    tmp_path: Path,
    *,
    file: Path = SAMPLE,
    part: slice = slice(None),
) -> tuple[list[str], int]:
    runs, recordings = sample(file, part)
    upstream.default = scripted(runs, recordings)
    limits = LIMITS if name == "refused models" else {}
    config = {
        "steering": {"deadline_ms": DEADLINE_MS},
        **POLICIES[name],
        "model_list": deployments(f"{upstream.url}/v1", limits),
    }
    server = await asyncio.to_thread(gateway_server, config)
    policy = policy_from_dict(config)
    patterns, lessons = "starter", list[Pattern]()
    if name == "lessons":
        lessons = taught(recordings)
        await store(server, lessons)
        known = tmp_path / "patterns.jsonl"
        known.write_text("\n".join(map(to_line, (*starter_patterns(), *lessons))))
        patterns = str(known)
    result = await disagreements(server, runs, recordings, policy, patterns)
    assert name != "lessons" or True in await drawn(server, lessons)
    return result


@pytest.mark.parametrize(
    "name", [*by_day([name for name in POLICIES if name != "lessons"], 5), "lessons"]
)
async def test_live_and_replay_agree(
    name: str, gateway_server: Start, upstream: ScriptedUpstream, tmp_path: Path
) -> None:
    """State, model and guidance of every call are those that the replay gives."""
    found, compared = await _compare(name, gateway_server, upstream, tmp_path, part=RUNS)
    assert compared > 60
    assert found == []


@pytest.mark.nightly
@pytest.mark.parametrize("name", POLICIES)
async def test_live_and_replay_agree_on_the_whole_sample(
    name: str, gateway_server: Start, upstream: ScriptedUpstream, tmp_path: Path
) -> None:
    """The same over every run of the sample."""
    found, _ = await _compare(name, gateway_server, upstream, tmp_path)
    assert found == []


@pytest.mark.nightly
@pytest.mark.skipif(not DEVELOPMENT_RUNS.exists(), reason="the development runs are not here")
@pytest.mark.parametrize("name", POLICIES)
async def test_live_and_replay_agree_on_all_development_runs(
    name: str, gateway_server: Start, upstream: ScriptedUpstream, tmp_path: Path
) -> None:
    """The same over every recorded run."""
    upstream.requests = deque(maxlen=0)  # gigabytes, and nobody asks for them
    found, compared = await _compare(
        name, gateway_server, upstream, tmp_path, file=DEVELOPMENT_RUNS
    )
    print(f"{name}: {len(found)} of {compared} decisions differ")
    assert found == []
