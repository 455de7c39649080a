"""`gateway demo`: what it shows is true, complete, and the same each time."""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path

import pytest

from gateway.cli import main


@pytest.fixture(scope="module")
def played() -> tuple[bool, str]:
    """Whether the command succeeded, and what it showed; played once."""
    shown = io.StringIO()
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(shown):
        patch.setenv("COLUMNS", "200")
        succeeded = main(["demo"]) == 0
    return succeeded, shown.getvalue()


def test_the_demo_shows_what_steering_is_worth(played: tuple[bool, str]) -> None:
    """`gateway demo` needs no key and no network; the agent alone gives up, with guidance it
    recovers and repairs the repository."""
    succeeded, shown = played
    assert succeeded
    assert "steering gateway" in shown
    assert "The model is scripted" in shown
    assert "docs/evidence.md" in shown
    alone, _, steered = shown.partition("The same agent, steered")
    assert "gave up" in alone
    assert "guidance:" not in alone
    assert "guidance:" in steered
    assert "done: " in steered


def test_every_step_has_its_line(played: tuple[bool, str]) -> None:
    """One line per call with its state, difficulty and model; trouble comes and goes."""
    _, shown = played
    lines = re.findall(r"^ +(\d+)  (INIT|FAST|NORMAL|SLOW|SKIP|END) +(.*)$", shown, re.MULTILINE)
    numbers = [int(number) for number, _, _ in lines]
    second = numbers.index(1, 1)
    assert numbers == [*range(1, second + 1), *range(1, len(numbers) - second + 1)]
    states = {state for _, state, _ in lines[second:]}
    assert {"INIT", "NORMAL", "SLOW", "END"} <= states
    assert max(map(len, shown.splitlines())) <= 80
    for _, state, rest in lines:
        assert "gpt-4" in rest
        assert state == "INIT" or re.search(r"\d\.\d\d", rest)


def test_the_end_says_what_it_all_came_to(played: tuple[bool, str]) -> None:
    """Both runs side by side: result, calls, tokens, cost; and what changed the run."""
    _, shown = played
    assert "(none)" not in shown
    for row in ("result", "model calls", "tokens", "cost at list prices"):
        assert re.search(rf"\b{row}\b", shown), row


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
