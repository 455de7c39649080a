"""`python -m bench.prompt_cache RUNS`: what guidance costs of the provider's prompt cache.

Replays recorded runs call by call, with the monitors, the state machine, the starter patterns and
the built-in embedder, once for each way of placing guidance. Two cache models, over tokens of
`cl100k_base`. A provider's is exact to the block: of each request the longest prefix that any
earlier request of the conversation had is cached, in whole blocks of 128 tokens. A local server's
(llama.cpp's slot) is exact to the token, and has the newest request only.

Arms: `none` sends the client's messages; `reference` rebuilds a block at the end of the system
message on each call; `system`, `tail` and `auto` are the gateway's placements on a target that
takes late system messages; `auto, local` is `auto` on one that does not, as most local servers.
`+ kept` keeps what was injected when the user's next request starts a new run of the conversation,
instead of dropping what is not in front.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from bench import recorded
from gateway.backends import open_stores
from gateway.config.storage import IN_MEMORY, StorageSettings
from gateway.core.acting import ActionSignal
from gateway.core.decision_settings import Policy
from gateway.core.edits import apply
from gateway.core.fsm import FSMState
from gateway.core.guidance_choice import decide
from gateway.core.guidance_plan import note, plan
from gateway.core.guidance_settings import EtraceSettings, Gates, InjectionSettings
from gateway.core.guidance_state import GuidanceState, Moment
from gateway.core.pattern import PatternMatch, Query, Tier
from gateway.core.placement import GuidanceTarget, place
from gateway.embedding import EmbeddingSettings, open_embedder
from gateway.library import PatternLibrary
from gateway.steering.guidance.situation import READER

BLOCK_TOKENS = 128
"""Source: OpenAI's guide to prompt caching; the issue that asked for this bench."""

LATE = GuidanceTarget(late_system=True)
LOCAL = GuidanceTarget()
MODEL = "gpt-4o"
ETRACES = EtraceSettings()

Count = Callable[[str], tuple[int, ...]]
Message = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Arm:
    """One way of placing guidance; `injection` None sends what the client sent."""

    injection: InjectionSettings | None = None
    target: GuidanceTarget = LATE
    kept: bool = False


ARMS: Mapping[str, Arm] = {
    "none": Arm(),
    "reference": Arm(injection=InjectionSettings(placement="system", lifetime="call")),
    "system": Arm(injection=InjectionSettings(placement="system")),
    "tail": Arm(injection=InjectionSettings(placement="tail")),
    "auto": Arm(injection=InjectionSettings()),
    "auto, local": Arm(injection=InjectionSettings(), target=LOCAL),
    "tail + kept": Arm(injection=InjectionSettings(placement="tail"), kept=True),
    "auto + kept": Arm(injection=InjectionSettings(), kept=True),
    "local + kept": Arm(injection=InjectionSettings(), target=LOCAL, kept=True),
}


@dataclass(slots=True)
class Tally:
    """Sums over calls."""

    calls: int = 0
    tokens: int = 0
    cached: int = 0
    slot: int = 0  # tokens that a local server has from the request before
    injected: int = 0
    text: int = 0  # tokens of the injected texts, each counted once
    steered: int = 0

    def add(self, other: Tally) -> None:
        """Sum up."""
        for name in self.__slots__:
            setattr(self, name, getattr(self, name) + getattr(other, name))

    @property
    def share(self) -> float:
        """Cached share of the input tokens, in [0, 1]."""
        return self.cached / self.tokens if self.tokens else 0.0


@dataclass(slots=True)
class PrefixCache:
    """The requests one conversation has sent, as tokens per message."""

    encode: Count
    sent: list[list[tuple[int, ...]]] = field(default_factory=list)

    def send(self, messages: Sequence[Message]) -> tuple[int, int, int]:
        """Tokens of the request, and how many of them a provider and a local server have cached."""
        encoded = [self.encode(json.dumps(message, ensure_ascii=False)) for message in messages]
        common = max((_common(encoded, earlier) for earlier in self.sent), default=0)
        slot = _common(encoded, self.sent[-1]) if self.sent else 0
        self.sent.append(encoded)
        return sum(map(len, encoded)), common // BLOCK_TOKENS * BLOCK_TOKENS, slot


def _common(one: Sequence[tuple[int, ...]], other: Sequence[tuple[int, ...]]) -> int:
    length = 0
    for left, right in zip(one, other, strict=False):
        if left is right or left == right:
            length += len(left)
            continue
        for a, b in zip(left, right, strict=False):
            if a != b:
                return length
            length += 1
        return length
    return length


def tokenizer() -> Count:
    """Encode texts, each once; the vocabulary is the one that LiteLLM ships."""
    spec = find_spec("litellm")
    if spec is None or spec.origin is None:
        raise SystemExit("litellm is not installed")
    folder = Path(spec.origin).parent / "litellm_core_utils" / "tokenizers"
    os.environ.setdefault("TIKTOKEN_CACHE_DIR", str(folder))
    import tiktoken

    encoding = tiktoken.get_encoding("cl100k_base")
    known: dict[str, tuple[int, ...]] = {}

    def encode(text: str) -> tuple[int, ...]:
        if text not in known:
            known[text] = tuple(encoding.encode_ordinary(text))
        return known[text]

    return encode


Answers = Callable[[Query], Sequence[PatternMatch]]


def steer(
    state: GuidanceState, call: recorded.Call, arm: Arm, gates: Gates, answers: Answers
) -> tuple[list[Any], GuidanceState, list[str]]:
    """The messages that leave, the bookkeeping, and the blocks that are new."""
    if arm.injection is None:
        return list(call.messages), state, []
    for outcome in call.new:
        if outcome.run == call.request:
            state = note(state, outcome.index, outcome.readings)
    latest = call.latest
    moment = Moment(
        step=latest.index if latest else None,
        signal=ActionSignal(
            state=latest.state if latest else FSMState.INIT,
            readings=latest.readings if latest else None,
        ),
        reader=READER,
        recent=[outcome.step for outcome in call.recent],
        model=MODEL,
        observed=latest.observed if latest else None,
        tools=call.tools,
    )
    planned = plan(state, moment, ETRACES, arm.injection, gates)
    found: dict[Tier, Sequence[PatternMatch]] = {
        query.tier: answers(query) for query in planned.queries
    }
    decided = decide(state, planned, found, arm.injection)
    placed = place(call.messages, decided, target=arm.target, settings=arm.injection)
    new = (*placed.added, placed.directive) if placed.directive else placed.added
    return apply(call.messages, placed.edits), placed.state, [block.text for block in new]


def replay(
    calls: Sequence[recorded.Call], arm: Arm, gates: Gates, answers: Answers, encode: Count
) -> Tally:
    """One conversation under one arm."""
    tally, cache, state, request = Tally(), PrefixCache(encode), GuidanceState(), 0
    for call in calls:
        if call.request != request:
            request = call.request
            kept = state.injections if arm.kept else ()
            state = state.next_run()
            if arm.kept:
                state = replace(state, injections=kept, e3_done=True)
        messages, state, texts = steer(state, call, arm, gates, answers)
        tokens, cached, slot = cache.send(messages)
        tally.add(
            Tally(
                calls=1,
                tokens=tokens,
                cached=cached,
                slot=slot,
                injected=len(texts),
                text=sum([len(encode(text)) for text in texts]),
                steered=messages != list(call.messages),
            )
        )
    return tally


def measure(runs: Sequence[recorded.Run]) -> dict[str, dict[str, Tally]]:
    """Tallies by source and arm."""
    loop = asyncio.new_event_loop()
    encode = tokenizer()

    async def library() -> PatternLibrary:
        embedder = await open_embedder(EmbeddingSettings())
        stores = await open_stores(StorageSettings(path=IN_MEMORY), vectors=True)
        return await PatternLibrary(stores.patterns, embedder, ETRACES).prepare()

    patterns = loop.run_until_complete(library())

    def answers(query: Query) -> Sequence[PatternMatch]:
        return loop.run_until_complete(patterns.look_up(query, ""))

    tallies: dict[str, dict[str, Tally]] = defaultdict(lambda: defaultdict(Tally))
    for run in runs:
        calls = list(recorded.calls(run, Policy()))
        for name, arm in ARMS.items():
            tally = replay(calls, arm, patterns.gates, answers, encode)
            tallies[run["source"]][name].add(tally)
            tallies["all"][name].add(tally)
    loop.close()
    return tallies


def report(tallies: Mapping[str, Mapping[str, Tally]]) -> None:
    """Print cached shares per source and arm, and what was injected over all."""
    print("A provider's cache:")
    table(tallies, lambda tally: tally.share)
    print("\nA local server's:")
    table(tallies, lambda tally: tally.slot / tally.tokens)
    print()
    base = tallies["all"]["none"]
    for name, tally in tallies["all"].items():
        added = tally.tokens / base.tokens - 1
        paid = tally.tokens - tally.cached - tally.text
        read = tally.tokens - tally.slot - tally.text
        print(
            f"{name}: {tally.injected} blocks injected, {tally.steered} of {tally.calls} requests "
            f"changed, {100 * added:+.1f} % input tokens; uncached ones less the texts: "
            f"{100 * (paid / (base.tokens - base.cached) - 1):+.1f} % at a provider, "
            f"{100 * (read / (base.tokens - base.slot) - 1):+.1f} % at a local server"
        )


def table(tallies: Mapping[str, Mapping[str, Tally]], share: Callable[[Tally], float]) -> None:
    """Print a share per source and arm."""
    print("| source | calls | " + " | ".join(ARMS) + " |")
    print("| --- " * (len(ARMS) + 2) + "|")
    for source in sorted(tallies, key=lambda name: (name == "all", name)):
        row = tallies[source]
        cells = " | ".join(f"{100 * share(row[name]):.1f} %" for name in ARMS)
        print(f"| {source} | {row['none'].calls} | {cells} |")


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("runs", type=Path, help="recorded runs, JSONL, may be gzipped")
    parser.add_argument("--limit", type=int, help="only every n-th run, for a quick look")
    arguments = parser.parse_args()
    runs = recorded.read(arguments.runs)
    report(measure(runs[:: arguments.limit or 1]))


if __name__ == "__main__":
    main()
