"""The laboratory and its figures."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gateway.offline.recordings import RunLabel
from gateway.steering.transcript.message_kinds import KINDS, kinds_from_json
from lab.__main__ import main
from lab.evaluation import RunReading
from lab.kinds import auroc as auroc_of_kinds
from lab.kinds import (
    confusion,
    fit_kinds,
    folds,
    held_out,
    kinds_to_json,
    precision_at_half,
    read_rows,
)
from lab.routing import (
    escalation_value,
    fast_safety,
    learned_escalations,
    left_at,
    model_pairs,
    restart_value,
)

SAMPLE = Path(__file__).parent / "replays" / "sample.jsonl.gz"
SAID = Path(__file__).parents[1] / "lab" / "said.jsonl.gz"


def reading(
    *,
    failed: bool,
    steps: int = 5,
    group: str = "g",
    model: str = "m",
    first: dict[str, int] | None = None,
    states: tuple[str, ...] = (),
) -> RunReading:
    """One run's reading."""
    label = RunLabel(id="r", source="s", model=model, group=group, success=not failed)
    return RunReading(label=label, steps=steps, first=first or {}, states=states)


@pytest.mark.slow
def test_evidence_puts_the_reference_beside_the_shipped_model(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """One command prints the alarms of both suites, on any labelled recordings."""
    assert main(["evidence", "--jobs", "1", str(SAMPLE)]) == 0
    out = capsys.readouterr().out
    assert "robust" in out
    assert "reference" in out
    assert "alarm: a monitor fired, or SLOW was reached" in out


def test_what_has_no_outcome_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Files without a run, and runs without an outcome, are named."""
    file = tmp_path / "runs.jsonl"
    file.write_text("\n")
    assert main(["evidence", "--jobs", "1", str(file)]) == 2
    assert "runs.jsonl: no recorded run" in capsys.readouterr().err
    file.write_text(json.dumps({"messages": [{"role": "assistant", "content": "x"}]}))
    assert main(["evidence", "--jobs", "1", str(file)]) == 2
    assert "no run with an outcome" in capsys.readouterr().err


def test_what_runs_teach_is_counted(capsys: pytest.CaptureFixture[str]) -> None:
    """The precision of outcomes, as text and as JSON."""
    assert main(["learning", "--json", str(SAMPLE)]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["runs"] == 132
    assert main(["learning", str(SAMPLE)]) == 0
    assert capsys.readouterr().out.startswith(f"132 runs, {found['steps']} steps\n")


def test_a_restart_at_the_right_runs_beats_chance() -> None:
    """The cheap model fails in half of the scenarios; a signal on exactly these is worth most."""

    def pairs(shown: Any) -> list[Any]:
        runs = []
        for number in range(20):
            fails = number % 2 == 0
            first = {"SLOW": 3} if shown(fails, number) else {}
            scenario = f"g{number}"
            runs.append(reading(failed=fails, group=scenario, model="cheap", first=first))
            easy = {} if fails else {"FAST": 5}
            runs.append(reading(failed=False, group=scenario, model="strong", first=easy))
        return list(model_pairs(runs))

    told = pairs(lambda fails, _: fails)
    assert len(told) == 20
    assert restart_value(told, "SLOW").value == pytest.approx(25.0)
    assert restart_value(told, "SLOW").low > 0
    assert restart_value(pairs(lambda _, number: number < 10), "SLOW").value == pytest.approx(0.0)
    assert fast_safety(told) == (1.0, 0.0, 10)
    assert math.isnan(restart_value([], "SLOW").value)


def test_taking_over_is_worth_what_is_left_of_the_run() -> None:
    """The earlier the stronger model takes over, the more; at the last step nothing is left."""
    runs = []
    for number in range(20):
        fails, scenario = number % 2 == 0, f"g{number}"
        first = {"SLOW": 4 if number % 4 else 0} if fails else {}
        runs.append(reading(failed=fails, group=scenario, model="cheap", first=first))
        runs.append(reading(failed=False, group=scenario, model="strong"))
    pairs = list(model_pairs(runs))
    left = [left_at(pair, "SLOW") for pair in pairs]
    assert set(left) == {None, 0.8, 0.0}
    # Acting gains .25 * .8; chance, at any step of as many runs, .5 * .4 * .5.
    assert escalation_value(pairs, left, take_over=True).value == pytest.approx(10.0)
    early = [None if each is None else 1.0 for each in left]
    assert escalation_value(pairs, early, take_over=True).value == pytest.approx(40.0)
    assert escalation_value(pairs, left).pairs == 10


def test_the_learned_policy_escalates_where_other_scenarios_say_that_it_helps() -> None:
    """Where the stronger model solved the other scenarios, the run begins on it; where both fail
    alike, trouble moves nothing."""
    runs = []
    for number in range(40):
        for source, strong_fails in (("helps", False), ("same", number > 0)):
            for model, failed in (("cheap", True), ("strong", strong_fails)):
                run = reading(failed=failed, steps=1, model=model, first={"SLOW": 0})
                label = replace(run.label, source=source, group=f"g{number}")
                runs.append(replace(run, label=label, states=("SLOW",)))
    pairs = list(model_pairs(runs))
    found: dict[str, set[float | None]] = {}
    for pair, left in zip(pairs, learned_escalations(pairs), strict=True):
        found.setdefault(pair.cheap.label.source, set()).add(left)
    assert found == {"helps": {1.0}, "same": {None}}


@pytest.mark.slow
def test_kinds_of_messages_are_known_in_sessions_that_were_not_seen() -> None:
    """The shipped sample of labelled messages, fitted on four fifths of its sessions at a time."""
    rows = read_rows([SAID])
    assert len(rows) == 299
    chances = held_out(rows, "group", strength=0.3)
    assert auroc_of_kinds(rows, chances) > 0.8
    assert precision_at_half(rows, chances) > 0.7
    assert len(confusion(rows, chances)) == 2 + len(KINDS)


@pytest.mark.slow
def test_a_model_of_kinds_reads_what_was_written() -> None:
    """The file of a fit gives the model of the fit, and the same bytes each time."""
    rows = read_rows([SAID])[:120]
    model = fit_kinds(rows, 0.3)
    text = kinds_to_json(model, {"messages": len(rows)})
    read = kinds_from_json(text)
    assert read.bias == pytest.approx(model.bias)
    assert read.weights.keys() == model.weights.keys()
    assert kinds_to_json(read, {"messages": len(rows)}) == text
    assert kinds_to_json(fit_kinds(rows, 0.3), {"messages": len(rows)}) == text


def test_no_session_is_on_both_sides() -> None:
    """Sessions that share a long message are one group, and a group is judged whole."""
    rows = read_rows([SAID])
    keys = [row.group for row in rows]
    judged = []
    for fitted, rest in folds(keys, 5, seed=1):
        assert not {keys[i] for i in fitted} & {keys[i] for i in rest}
        judged += rest
    assert sorted(judged) == list(range(len(rows)))


def test_messages_without_labels_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A file of something else is named by what it lacks."""
    file = tmp_path / "said.jsonl"
    file.write_text('{"said": "yes"}\n')
    assert main(["kinds", str(file)]) == 2
    assert "no labelled message" in capsys.readouterr().err
