"""The parts of risk that are read beside its features: words, and what people correct."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from collections.abc import Sequence

import orjson
import pytest
from msgspec.structs import replace

from gateway.steering.evidence.observation import RunObserver
from gateway.steering.fold import ConversationFold, RunFold, RunRisk
from gateway.steering.fsm import FSMState
from gateway.steering.policy import Policy
from gateway.steering.scoring.calibration import (
    Peaks,
    PeopleWeights,
    WordWeights,
    calibration_from_json,
    shipped_calibration,
    shipped_words,
    words_from_json,
)
from gateway.steering.scoring.risk import LASTING_STEPS, RiskModel, RunWords, risk_of
from gateway.steering.scoring.scorer import DifficultySettings
from gateway.steering.transcript.steps import Action, Step
from lab.risk import words_to_json
from lab.weights import calibration_to_json
from tests.test_replay import sample

WORDS = WordWeights(works={"let": 4, "look": -1}, talks={"can": 2}, unit=0.5)
LOW = Peaks(largest=(-99.0,))
EDIT = '{"command": "str_replace", "path": "/src/a.py", "old_str": "%d", "new_str": "%d"}'


def said(thought: str, *actions: Action, prompted: bool = False) -> Step:
    """A step with this thought."""
    return Step(index=0, thought=thought, actions=actions, prompted=prompted)


def edit(number: int) -> Action:
    """An edit that brings something new."""
    arguments = EDIT % (number, number + 1)
    return Action(name="str_replace_editor", arguments=arguments, observation="edited")


def evidence(steps: Sequence[Step], model: RiskModel) -> list[float]:
    """The evidence after each step."""
    observer, found = RunObserver(), []
    for step in steps:
        model.push(observer.observe(step))
        found.append(model.log_odds)
    return found


def recorded() -> list[Step]:
    """The steps of the longest recording of the sample."""
    fold = ConversationFold(Policy(run_boundary="never"))
    longest = max(sample(20), key=lambda each: len(each.messages or ()))
    fold.extend(longest.messages or ())
    return [outcome.step for outcome in fold.current.outcomes]


def test_words_count_in_their_kind_of_run_and_the_newest_most() -> None:
    """Each different word of a thought once, by a root of their number, as a moving mean."""
    words, nothing = RunWords(WORDS), frozenset[str]()
    first = words.push(frozenset({"let", "me", "look"}), works=True)
    assert first == pytest.approx(0.5 * 3 / math.sqrt(3 + 10))
    assert words.push(nothing, works=True) == pytest.approx(first / 2)
    assert RunWords(WORDS).push(frozenset({"let", "me"}), works=False) == 0.0
    means = [words.push(nothing, works=True) for _ in range(5)]
    assert means[:3] == pytest.approx([first / 3, first / 4, first / 5])
    assert means[-1] == pytest.approx(first / 5 * 0.8**2)


def test_a_prefix_is_read_as_when_nothing_had_followed() -> None:
    """The risk of the first steps of a run does not depend on later ones."""
    steps = recorded()
    assert len(steps) > LASTING_STEPS
    whole = evidence(steps, RiskModel(shipped_calibration()))
    for end in range(1, len(steps)):
        assert evidence(steps[:end], RiskModel(shipped_calibration())) == whole[:end]


def test_live_and_replayed_runs_have_the_same_risk() -> None:
    """However many messages arrive at once."""
    messages = list(max(sample(20), key=lambda each: len(each.messages or ())).messages or ())
    whole, live = ConversationFold(Policy()), ConversationFold(Policy())
    expected = {(each.run, each.index): each.risk for each in whole.extend(messages)}
    found: dict[tuple[int, int], RunRisk] = {}
    for end in range(1, len(messages) + 1):
        # A late result gives its step again.
        found |= {(each.run, each.index): each.risk for each in live.extend(messages[:end])}
    assert len(found) > LASTING_STEPS
    assert found == expected


_PROBE = """
from tests.steering.test_risk_parts import evidence, recorded
from gateway.steering.scoring.calibration import shipped_calibration
from gateway.steering.scoring.risk import RiskModel
from lab.weights import calibration_to_json
print(evidence(recorded(), RiskModel(shipped_calibration())))
"""


def test_every_process_reads_the_same() -> None:
    """Sets of words have another order in each process; sums do not follow it."""
    found = {
        subprocess.run(
            [sys.executable, "-c", _PROBE],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(found) == 1


def test_early_evidence_counts_less() -> None:
    """Half of it after `early` steps; 0 takes nothing off."""
    shipped = shipped_calibration()
    whole, less = (
        evidence([said("let me look")] * 4, RiskModel(replace(shipped, risk=risk)))
        for risk in (replace(shipped.risk, early=0.0), replace(shipped.risk, early=4.0))
    )
    assert less == pytest.approx([own * n / (n + 4) for n, own in enumerate(whole, 1)])


def test_a_led_run_is_judged_by_what_people_correct() -> None:
    """From the message in the middle of the work on, and from the first step of a later run; edits
    raise it, a question to the person lowers it, and no benchmark's alarm is raised."""
    people = PeopleWeights(average=0.5, edits=1.0, asks=-2.0)
    shipped = shipped_calibration()
    own = replace(shipped, risk=replace(shipped.risk, people=people, works_alarm=LOW))
    steps = [said("", edit(n), prompted=n == 4) for n in range(6)]
    model = RiskModel(own)
    found = evidence(steps[:4], model)
    assert model.likely
    assert model.lasting == min(found[-LASTING_STEPS:])
    assert found[:4] == evidence(steps[:4], RiskModel(replace(own, risk=shipped.risk)))
    led = RiskModel(own)
    assert evidence(steps, led)[4:] == pytest.approx([math.log(6) - 0.5, math.log(7) - 0.5])
    alone = RiskModel(replace(own, risk=replace(own.risk, people=None)))
    assert evidence(steps, alone)[-1] == led.evidence
    assert not led.likely
    assert led.lasting == -math.inf
    asks = [said("I can do that. Which of the two do you want?")]
    assert evidence(asks, RiskModel(own, led=True)) == [-2.5]


def test_the_second_run_of_a_conversation_is_led() -> None:
    """The fold says so; a dialogue in its first run is not led, whoever writes."""
    people = PeopleWeights(edits=1.0)
    shipped = shipped_calibration()
    own = replace(shipped, risk=replace(shipped.risk, people=people))
    fold = ConversationFold(Policy(difficulty=DifficultySettings(calibration=own)))
    call = {"id": "a", "type": "function", "function": {"name": "edit", "arguments": EDIT % (1, 2)}}
    turn = [
        {"role": "user", "content": "Mend the parser, please, it drops the last line."},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "a", "content": "edited"},
        {"role": "assistant", "content": "Done."},
    ]
    first, second = fold.extend([*turn, *turn[:-1], {"role": "assistant", "content": "So."}])[:2]
    assert (first.run, second.run) == (0, 1)
    assert second.risk.lasting < 1e-9
    assert first.risk.probability == pytest.approx(risk_of(first.risk.evidence))
    assert second.risk.probability == pytest.approx(risk_of(math.log(2)))


def test_an_easy_dialogue_is_not_fast_and_no_clock() -> None:
    """Words that return, in thoughts and results, count once a file is read; before, the score of
    quiet steps is flat, and the state NORMAL."""
    look = Action(name="get_order", arguments='{"id": 1}', observation="a b c d e f g h")
    talk, work = RunFold(Policy()), RunFold(Policy())
    read = Action(name="bash", arguments='{"command": "cat a.py"}', observation="x = 1")
    work.push(said("", read))
    texts = [f"Let me see what order {'and '.join('abcdefghijkl'[:n])} has." for n in range(12)]
    for number, text in enumerate(texts):
        action = replace(look, arguments=f'{{"id": {number}}}', observation=f"order n{number} ok")
        talk.push(said(text, action))
        work.push(said(text, action))
    assert {each.state for each in talk.outcomes} == {FSMState.NORMAL}
    assert {round(score, 9) for score in talk.history} == {0.22}
    assert len(set(work.history)) > 3


def test_files_are_read_back_as_they_were_written() -> None:
    """Words, and a calibration with all parts of risk; one without them reads none."""
    assert words_from_json(words_to_json(WORDS, {})) == WORDS
    shipped = shipped_calibration()
    assert calibration_from_json(calibration_to_json(shipped)) == shipped
    data = orjson.loads(calibration_to_json(shipped))
    for name in ("words", "early", "people"):
        del data["risk"][name]
    data["weights"] |= {"retells.recent": 0.1, "stale.window": 0.3}  # signals of before
    old = calibration_from_json(orjson.dumps(data))
    assert (old.risk.words, old.risk.early, old.risk.people) == (0.0, 0.0, None)
    assert old.weights == shipped.weights


def test_what_is_wrong_in_a_file_is_named() -> None:
    """Format, missing keys, weights that are no numbers."""
    for text, problem in (
        ("[", "words file: not JSON"),
        ("[]", "words file: expected format 1"),
        ('{"format": 1, "unit": 1}', "works: an object is missing"),
        ('{"format": 1, "unit": 1, "works": {"a": "x"}, "talks": {}}', "works.a"),
    ):
        with pytest.raises(ValueError, match=problem):
            words_from_json(text)
    data = orjson.loads(calibration_to_json(shipped_calibration()))
    with pytest.raises(ValueError, match=r"risk.early"):
        calibration_from_json(orjson.dumps({**data, "risk": {**data["risk"], "early": -1}}))
    with pytest.raises(ValueError, match=r"people.edits"):
        calibration_from_json(
            orjson.dumps({**data, "risk": {**data["risk"], "people": {"edits": None}}})
        )


def test_the_words_that_ship_are_few_and_small() -> None:
    """At most 300 of each kind, of 127 units, and less than 10 kB of them."""
    words = shipped_words()
    for own in (words.works, words.talks):
        assert 200 < len(own) <= 300
        assert max(map(abs, own.values())) <= 127
        assert all(word and word == word.lower() and word.split() == [word] for word in own)
    assert len(words_to_json(words, {})) < 10_000


def test_a_long_thought_costs_no_more_words() -> None:
    """Only its ends are read."""
    thought = "let me look " * 40
    long = f"{thought}{'x ' * 100_000}{thought}"
    model = RiskModel(shipped_calibration())
    evidence([said(long)], model)
    assert math.isfinite(model.log_odds)


def test_a_run_of_its_own_gives_what_the_conversation_gives() -> None:
    """`RunFold` and `ConversationFold` read the same steps alike."""
    steps = recorded()
    fold = RunFold(Policy(run_boundary="never"))
    found = [fold.push(step).risk.evidence for step in steps]
    assert found == evidence(steps, RiskModel(shipped_calibration()))
