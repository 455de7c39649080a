"""`gateway demo`: what it shows is true, complete, and the same each time."""

from __future__ import annotations

import contextlib
import io
import json
import re
from pathlib import Path

import pytest

from gateway.cli import main
from gateway.core.guidance_text import FRAME_CLOSE, FRAME_OPEN
from gateway.features.demo.model import SCRIPT, ScriptedModel

MOST_LINES = 40


@pytest.fixture(scope="module")
def played() -> tuple[bool, str]:
    """Whether the command succeeded, and what it showed; played once."""
    shown = io.StringIO()
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(shown):
        patch.setenv("COLUMNS", "200")
        succeeded = main(["demo"]) == 0
    return succeeded, shown.getvalue()


def test_it_tells_one_story(played: tuple[bool, str]) -> None:
    """Alone the agent gives up. Steered, the alarm names what repeats and how often, the text names
    the failure, the next act does what the text says, and the test passes."""
    succeeded, shown = played
    assert succeeded
    assert "the model is scripted" in shown
    assert "docs/evidence.md" in shown
    alone, _, steered = shown.partition("The same agent, steered")
    assert "gave up" in alone
    assert not re.search("^  (alarm|text)", alone, re.MULTILINE)
    story = [
        r"alarm `run_tests` failed in the same way, 3 tries, steps 4 to 8\n",
        r"text +A failure of this kind has come 3 times in this run, the newest:\s+"
        r'"AssertionError: 2320 != 2380"\.[^(]+print it where it is produced\.\n',
        r" 9  edit pricing\.py +I print the value where it is produced\.\n",
        r"10  run tests +tax: 0\.16",
        r"11  read LAW\.md",
        r"12  edit rates\.py",
        r"14  run tests +OK\n",
    ]
    found = [re.search(part, steered) for part in story]
    assert all(found), steered
    places = [match.start() for match in found if match]
    assert places == sorted(places)


def test_it_fits_on_a_screen(played: tuple[bool, str]) -> None:
    """At most 40 lines of 80 columns; each call is in one of them, none is left out."""
    _, shown = played
    assert len(shown.splitlines()) <= MOST_LINES
    assert max(map(len, shown.splitlines())) <= 80
    spans = re.findall(r"^ +(\d+)(?:-(\d+))?  \S", shown, re.MULTILINE)
    numbers = [n for first, last in spans for n in range(int(first), int(last or first) + 1)]
    second = numbers.index(1, 1)
    assert numbers == [*range(1, second + 1), *range(1, len(numbers) - second + 1)]


def test_the_end_says_what_it_all_came_to(played: tuple[bool, str]) -> None:
    """Both runs side by side: result, calls, tokens, cost; the steered one has less of each."""
    _, shown = played
    assert re.search(r"result +gave up +repaired", shown)
    for row in ("model calls", "tokens", r"cost, as gpt-4o"):
        found = re.search(rf"^{row} +\$?([\d.,]+) +\$?([\d.,]+)$", shown, re.MULTILINE)
        assert found, row
        alone, steered = (float(figure.replace(",", "")) for figure in found.groups())
        assert steered < alone


def acts(model: ScriptedModel, texts: list[str], calls: int) -> list[str]:
    """What the model calls, in so many answers to a request that holds the texts as guidance."""
    frames = [f"{FRAME_OPEN}\n{text}\n{FRAME_CLOSE}" for text in texts]
    messages = [{"role": "system", "content": frame} for frame in frames]
    body = json.dumps({"model": "m", "messages": messages}).encode()
    answers = [model.completion(body)["choices"][0]["message"] for _ in range(calls)]
    return [json.dumps(answer.get("tool_calls", "end")[0]) for answer in answers]


@pytest.mark.parametrize(
    "texts",
    [[], ["Read the whole error before the next call."], ["Try something else."] * 5],
    ids=["no text", "a rule", "many texts"],
)
def test_without_the_text_the_act_does_not_come(texts: list[str]) -> None:
    """Whatever else the model is told, and however often: it goes on as before."""
    done = acts(ScriptedModel(), texts, 50)
    assert not [act for act in done if "rates.py" in act or "LAW.md" in act or "print" in act]
    assert "end" not in done


def test_the_act_comes_with_the_text_at_once() -> None:
    """The next call after the text is the first that does what it says."""
    model = ScriptedModel()
    acts(model, [], 8)
    [act] = acts(model, [f"The same failure again. Then {SCRIPT.listens}."], 1)
    assert "print('tax:'" in act


def test_it_fills_the_dashboard(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`--keep` records its runs where the config says, and refuses a store that ends with it."""
    config = tmp_path / "config.yaml"
    monkeypatch.setattr("gateway.features.demo.show.run_demo", lambda database: bool(database))
    config.write_text("storage: {path: kept.db}")
    assert main(["demo", "--keep", "--config", str(config)]) == 0
    assert "kept.db" in capsys.readouterr().out
    config.write_text('storage: {path: ":memory:"}')
    assert main(["demo", "--keep", "--config", str(config)]) == 2
