"""The pages of *How it works*: short, in sentences that are read once, without measured figures;
their numbers are those of the code, and their samples what agents read."""

from __future__ import annotations

import json
import re

import pytest

from gateway.config import Settings
from gateway.core import guidance_plan
from gateway.core.decision_settings import RUN_BOUNDARIES
from gateway.core.fsm import FSMSettings
from gateway.core.guidance_settings import COOLDOWN_STEPS, EtraceSettings, InjectionSettings
from gateway.core.guidance_text import ADVISORY, frame
from gateway.core.monitors.settings import MonitorSettings
from gateway.core.monitors.table import ALARMING, MONITORS
from gateway.core.routing import RoutingSettings
from gateway.core.scoring import difficulty
from gateway.embedding.similarity_thresholds import CALIBRATED, UNCALIBRATED
from gateway.embedding.static import StaticEmbedder
from gateway.features.learning import gate, life_cycle, verdicts
from gateway.library.memory import MOST_BYTES
from gateway.offline.playback import ReplayedCalls, ReplayPolicy, play_messages
from gateway.offline.recordings import recording_of
from gateway.steering import learned_routing
from gateway.steering.guidance.lessons import MOST_RULES
from gateway.steering.guidance.situation import QUOTE_CHARS
from gateway.stores.learning import KINDS
from tests.docs.test_pages import DOCS

NAMES = (
    "steering.md", "conversation.md", "learning.md", "reader.md", "outcomes.md", "routing.md",
    "etraces.md", "unharmed.md",
)  # fmt: skip
PAGES = {name: (DOCS / name).read_text() for name in NAMES}
MOST_WORDS = 8_500
LONG = 30
MOST_LONG = 0.03


def sentences(text: str) -> list[str]:
    """The sentences of a page: of its paragraphs, lists and cells, without code and pictures."""
    text = re.sub(r"^```.*?^```|^    .*?$|^#.*?$", "", text, flags=re.MULTILINE | re.DOTALL)
    text = re.sub(r"!\[[^]]*\]\([^)]*\)", "", text)
    text = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", text)
    text = re.sub(r"`[^`]*`", "Code", text)
    parts = re.split(r"\n\s*\n|^\s*(?:\*|\d+\.) | \| |^\||\|$", text, flags=re.MULTILINE)
    found = [each for part in parts for each in re.split(r"(?<=[.!?])[*)]*\s+(?=\W?[A-Z])", part)]
    return [each for each in found if len(each.split()) > 2]


def test_the_book_is_short() -> None:
    """Eight thousand five hundred words, tables and commands counted."""
    assert sum(len(text.split()) for text in PAGES.values()) <= MOST_WORDS


def test_a_sentence_is_counted_by_its_words() -> None:
    """One in a list, one in a cell; a link counts with its words, code as one."""
    text = "# A\n\n* `a b` is [c d](e f). Then\n  g.\n\n| one | two three four |\n| --- | --- |\n"
    assert [len(each.split()) for each in sentences(text)] == [4, 3]


@pytest.mark.parametrize("name", NAMES)
def test_sentences_are_read_once(name: str) -> None:
    """At most 3 % of them have more than thirty words."""
    found = sentences(PAGES[name])
    long = [each for each in found if len(each.split()) > LONG]
    assert len(long) <= MOST_LONG * len(found), long


@pytest.mark.parametrize("name", NAMES)
def test_what_was_measured_stands_in_the_evidence(name: str) -> None:
    """No share in percent, and no interval, is on a page that says how it works."""
    assert not re.findall(r"\d ?%|\[\d[\d.]*, \d[\d.]*\]", PAGES[name].replace("[0, 1]", ""))


def numbers(values: tuple[float, ...]) -> str:
    return ", ".join(f"{value:.2f}".removeprefix("0") for value in values)


def test_the_table_of_difficulty_is_that_of_the_code() -> None:
    """Each situation with the value that the scorer gives."""
    page = PAGES["steering.md"]
    rows = dict(re.findall(r"^\| (.+?) \| ([.\d][^|]*?) \|$", page, re.MULTILINE))
    assert [rows[key] for key in rows if key.startswith("the first, second")] == [
        numbers(difficulty.FAILURES[:5])
    ]
    assert [rows[key] for key in rows if key.startswith("a call that brings")] == [
        numbers(difficulty.REPETITIONS[1:5])
    ]
    assert rows["waiting for something"] == numbers((difficulty.WAITING,))
    after = numbers((difficulty.RECOVERED, difficulty.RECOVERED_TWICE))
    assert rows["the first and the second success after a repeated failure"] == after
    work = numbers((difficulty.WORKS_ON, difficulty.WORKS_ON_LONG))
    assert rows["other work while a failure is open: after two, after more"] == work
    quiet = f"{numbers((difficulty.MESSAGE,))}; {numbers((difficulty.EMPTY,))}"
    assert rows["a message without a call; an empty result"] == quiet
    assert rows["neither a failure nor a repetition"] == numbers((difficulty.NEWS,))


def test_the_states_have_the_thresholds_of_the_code() -> None:
    """Windows in words, thresholds in digits."""
    page = PAGES["steering.md"]
    known = FSMSettings()
    assert (known.fast_window, known.slow_window, known.skip_window) == (6, 5, 35)
    assert f"six steps in a row below {known.fast_threshold}" in page
    assert f"five steps in a row above {known.slow_threshold}" in page
    assert f"thirty-five steps in a row above {known.skip_threshold}" in page
    assert f"by a margin of {known.hysteresis_margin}" in page
    assert f"fires at {MonitorSettings().fire_threshold}" in page
    settings = Settings().steering
    assert f"needs more than {settings.deadline_ms:.0f} ms" in page
    assert f"waits for more than {settings.max_wait_ms / 1000:.0f} s" in page


def test_every_monitor_has_its_row() -> None:
    """Those that raise alarms are the first."""
    rows = re.findall(r"^\| `(\w+)` \| .+ \|$", PAGES["steering.md"], re.MULTILINE)
    rows = [row for row in rows if row in MONITORS]
    assert sorted(rows) == sorted(MONITORS)
    assert set(rows[: len(ALARMING)]) == set(ALARMING)


def test_the_limits_of_guidance_are_those_of_the_code() -> None:
    """Rules, pauses, gates, the memory, and what the quote is cut at."""
    page = PAGES["etraces.md"]
    etraces = EtraceSettings()
    injection = InjectionSettings()
    assert (etraces.e3_max, injection.monitor_cap, guidance_plan.RECOVERED_STEPS) == (5, 5, 6)
    assert f"five rules and {etraces.e3_max_tokens} tokens" in page
    assert f"composite is above {etraces.e1_composite}" in page
    assert f"composite is {injection.monitor_composite} or more" in page
    assert f"{', '.join(map(str, COOLDOWN_STEPS.values()))} steps in" in page
    gates = CALIBRATED[StaticEmbedder.embedder_id]
    assert f"{gates.e1} (e1) and {gates.e2} (e2), or {gates.e2_untyped}" in page
    assert f"{UNCALIBRATED.e1:.2f} and {UNCALIBRATED.e2:.2f}" in page
    assert f"{MOST_BYTES // 2**20} MiB" in page
    assert f"{MOST_BYTES // (256 * 4):,} patterns" in page
    assert f"cut at {QUOTE_CHARS} characters" in page
    causes = DOCS.parent / "gateway" / "steering" / "guidance" / "causes.json"
    assert f"knows {len(json.loads(causes.read_text())['causes'])} causes" in page


def test_the_limits_of_learning_and_routing_are_those_of_the_code() -> None:
    """What the pages say in numbers or words."""
    page = PAGES["learning.md"]
    assert f"at most {gate.MOST_WORDS} words" in page
    assert f"at most {gate.MOST_CHARS} characters" in page
    assert (MOST_RULES, life_cycle.TRIAL_SHARE, life_cycle.ACTIVE_SHARE) == (5, 0.5, 0.9)
    assert f"{life_cycle.HARM_FROM:.2f}".removeprefix("0") in page
    assert f"in {('no', 'one', 'two')[life_cycle.LEAST_CONVERSATIONS]} conversations" in page
    page = PAGES["routing.md"]
    known = RoutingSettings()
    assert f"regret: {known.regret:.0f} " in page
    assert f"explore: {known.explore} " in page
    assert f"after {learned_routing.HALF_LIFE:.0f} further runs" in page
    assert f"fewer than {learned_routing.TRIAL_RUNS:.0f}" in page
    assert (learned_routing.TRIAL_SHARE, learned_routing.DOUBT_SHARE) == (5, 1.5)
    assert learned_routing.PRIOR_RUNS == 4


def test_verdicts_and_kinds_are_those_of_the_code() -> None:
    """Each source of a derived outcome in its order, each kind of a message, each end of a run."""
    rows = re.findall(r"^\| .+ \| `(\w+)` \| .+ \|$", PAGES["outcomes.md"], re.MULTILINE)
    assert tuple(rows) == tuple(source for source in verdicts.RANKS if "told" not in source)
    for name, share in verdicts.PRECISION.items():
        assert re.search(rf"`{name}` .*\| {re.escape(f'{share:.2f}'[1:])} \|", PAGES["outcomes.md"])
    assert all(f"`{kind}`" in PAGES["reader.md"] for kind in KINDS)
    assert all(f"`{value}`" in PAGES["conversation.md"] for value in RUN_BOUNDARIES)


def texts_given(command: str, result: str, times: int) -> list[str]:
    """The texts that an agent gets whose command fails so many times in the same way."""
    messages: list[dict[str, object]] = [{"role": "user", "content": "Fix the tokenizer."}]
    for number in range(times):
        function = {"name": "bash", "arguments": json.dumps({"command": command})}
        call = {"id": f"call_{number}", "type": "function", "function": function}
        messages.append({"role": "assistant", "content": "", "tool_calls": [call]})
        messages.append({"role": "tool", "tool_call_id": f"call_{number}", "content": result})
    recording = recording_of({"messages": messages}, place="a page")
    policy = ReplayPolicy()
    calls = ReplayedCalls(policy, recording)
    _, decisions = play_messages(recording, policy.rules.policy, calls)
    return [item.text for decision in decisions for item in decision.decided.items]


def test_the_text_of_a_repeated_failure_is_that_of_the_page() -> None:
    """The sample is what an agent reads whose path was wrong three times."""
    [lines] = re.findall(r"(?:^    .+\n)+", PAGES["etraces.md"], re.MULTILINE) or [""]
    sample = " ".join(lines.split())
    said = "cat: src/parser/tokn.py: No such file or directory"
    given = texts_given("cat src/parser/tokn.py", said, times=3)
    assert sample in [" ".join(text.split()) for text in given]


def test_the_frame_is_that_of_the_page() -> None:
    """Its first and last line, and the beginning of what the first block says."""
    [block] = re.findall(r"```\n(.*?)```", PAGES["etraces.md"], re.DOTALL)
    first, preface, *_, last = block.strip().splitlines()
    begun = frame(["<monitor text>"], preface=True).strip().splitlines()
    assert (begun[0], begun[-1]) == (first, last)
    assert ADVISORY.startswith(preface.removesuffix(" ..."))
