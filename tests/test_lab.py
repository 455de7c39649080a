"""The laboratory: its figures, and its fit by scikit-learn."""

from __future__ import annotations

import io
import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gateway.steering.scoring.risk import WorkloadPrior, risk_of
from gateway.steering.transcript.message_kinds import KINDS, kinds_from_json
from lab import heldout
from lab.__main__ import main
from lab.at_risk import Watched, chosen, curve_of, lasting_of, watched_runs
from lab.calibrate import read_labelled
from lab.difficulty import state_changes, step_correlation, trouble_auroc
from lab.evaluation import auroc
from lab.fitting import alarmed, fit_with_figures
from lab.heldout import figures, fit_words, permuted, splits
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
from lab.risk import calibration_errors, matched_auroc
from lab.routing import (
    escalation_value,
    fast_safety,
    learned_escalations,
    left_at,
    model_pairs,
    restart_value,
)
from lab.weights import LabelledRun, fit
from tests.test_calibrate import SAMPLE, reading

SAID = Path(__file__).parents[1] / "lab" / "said.jsonl.gz"


def test_scikit_learn_fits_what_the_gateway_fits() -> None:
    """Weights of both solvers agree to five digits; figures are added to what is written."""
    runs, problems = read_labelled([SAMPLE], io.StringIO())
    assert not problems
    ours = fit(runs, words=fit_words).calibration
    theirs = fit_with_figures(runs).calibration
    assert theirs.weights == pytest.approx(ours.weights, rel=1e-5, abs=1e-9)
    assert theirs.risk.weights == pytest.approx(ours.risk.weights, rel=1e-5)
    assert theirs.bias == pytest.approx(ours.bias, rel=1e-5)
    assert theirs.precision == ours.precision
    added = theirs.provenance["held_out"].keys() - ours.provenance["held_out"].keys()
    assert added == {"difficulty", "risk"}


def test_evidence_puts_the_reference_beside_the_shipped_model(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """One command prints AUROC and alarms of both, on any labelled recordings."""
    assert main(["evidence", "--jobs", "1", str(SAMPLE)]) == 0
    out = capsys.readouterr().out
    assert "calibrated + robust" in out
    assert "reference" in out
    assert "alarm: a monitor fired, SLOW was reached, or the run is likely to fail" in out


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


def test_difficulty_figures_tell_a_clock_from_a_measure() -> None:
    """The step number has a rank correlation of 1; a score that sees trouble ahead has not."""
    troubles = tuple([0.0] * 10 + [1.0] * 6 + [0.0] * 14)
    clock = reading([n / 30 for n in range(30)], failed=False, troubles=troubles)
    measure = reading(
        [float(sum(troubles[n + 1 : n + 6]) > 1) for n in range(30)],
        failed=False,
        troubles=troubles,
    )
    assert step_correlation([clock])[0] == pytest.approx(1.0)
    assert trouble_auroc([measure]) == (1.0, 1.0)
    assert trouble_auroc([clock]) == trouble_auroc([measure], by_step=True)
    assert trouble_auroc([clock])[1] < 0.5
    assert step_correlation([measure])[0] < 0
    assert math.isnan(step_correlation([])[0])


def test_a_step_counter_gains_nothing_at_equal_length() -> None:
    """Pairs are compared where the shorter run ends; failed runs may well be the longer ones."""
    long = reading([0.5] * 9, failed=True, risks=tuple(n / 10 for n in range(1, 10)))
    short = reading([0.5] * 4, failed=False, risks=tuple(n / 10 for n in range(1, 5)))
    assert matched_auroc([long, short]) == (0.5, 1)
    assert auroc([long, short], "end", rounds=5).value == 1.0
    told = reading([0.5] * 4, failed=True, risks=(0.6, 0.7, 0.8, 0.9))
    assert matched_auroc([told, short]) == (1.0, 1)


def test_a_learned_prior_calibrates_what_a_flat_one_cannot() -> None:
    """Of a workload whose runs nearly all fail, the risk approaches one as outcomes come in."""
    runs = [
        reading([0.5] * 5, failed=number % 10 > 0, model="weak", risks=(0.5,) * 5)
        for number in range(100)
    ]
    flat, learned = calibration_errors(runs)["end"]
    assert flat == pytest.approx(0.4)
    assert learned < 0.1
    assert risk_of(0.0) == 0.5
    assert risk_of(0.0, WorkloadPrior(solved=8, failed=0)) == pytest.approx(0.1)
    assert 0.0 < risk_of(-1000.0) < risk_of(1000.0) < 1.0


def test_a_restart_at_the_right_runs_beats_chance() -> None:
    """The cheap model fails in half of the scenarios; a signal on exactly these is worth most."""

    def pairs(shown: Any) -> list[Any]:
        runs = []
        for number in range(20):
            fails = number % 2 == 0
            first = {"SLOW": 3} if shown(fails, number) else {}
            scenario = f"g{number}"
            runs.append(
                reading([0.5] * 5, failed=fails, group=scenario, model="cheap", first=first)
            )
            easy = {} if fails else {"FAST": 5}
            runs.append(
                reading([0.5] * 5, failed=False, group=scenario, model="strong", first=easy)
            )
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
        runs.append(reading([0.5] * 5, failed=fails, group=scenario, model="cheap", first=first))
        runs.append(reading([0.5] * 5, failed=False, group=scenario, model="strong"))
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
                run = reading([0.5], failed=failed, model=model, first={"SLOW": 0}, risks=(0.9,))
                label = replace(run.label, source=source, group=f"g{number}")
                runs.append(replace(run, label=label, states=("SLOW",)))
    pairs = list(model_pairs(runs))
    found: dict[str, set[float | None]] = {}
    for pair, left in zip(pairs, learned_escalations(pairs), strict=True):
        found.setdefault(pair.cheap.label.source, set()).add(left)
    assert found == {"helps": {1.0}, "same": {None}}


def test_entries_and_exits_are_counted_by_state() -> None:
    """The commonest first step of a state, its share, and the runs that leave it."""
    states = [("NORMAL", "FAST", "NORMAL"), ("NORMAL", "FAST"), ("FAST",)]
    runs = [reading([0.1] * len(each), failed=False, states=each) for each in states]
    found = state_changes(runs)
    assert found["FAST"] == {
        "runs": 3,
        "left": 1,
        "commonest_step": 2,
        "commonest_share": pytest.approx(0.667),
    }
    assert found["SLOW"]["commonest_share"] is None


def test_kinds_of_messages_are_known_in_sessions_that_were_not_seen() -> None:
    """The shipped sample of labelled messages, fitted on four fifths of its sessions at a time."""
    rows = read_rows([SAID])
    assert len(rows) == 299
    chances = held_out(rows, "group", strength=0.3)
    assert auroc_of_kinds(rows, chances) > 0.8
    assert precision_at_half(rows, chances) > 0.7
    assert len(confusion(rows, chances)) == 2 + len(KINDS)


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


def test_held_out_folds_find_what_is_there_and_nothing_in_noise() -> None:
    """Words that failed runs alone say rank held-out runs; permuted outcomes do not."""
    runs, _ = read_labelled([SAMPLE], io.StringIO())
    kept = [run for run in runs if not run.works][:80]
    marked = [
        replace(run, steps=replace(run.steps, words=[mark(run)] * len(run.steps.words)))
        for run in kept
    ]
    found = heldout.held_out(marked, splits(marked)["groups"])["words"]
    assert auroc(found, "end", rounds=1).value > 0.9
    noise = permuted(marked)
    assert sorted(run.label.failed for run in noise) == sorted(run.label.failed for run in marked)
    lost = heldout.held_out(noise, splits(noise)["groups"])["words"]
    assert auroc(lost, "end", rounds=1).value < 0.7
    assert figures({"marked": found}).row_count == 22


def mark(run: LabelledRun) -> frozenset[str]:
    """Words that tell the outcome, in every source."""
    return frozenset({"this", "went", "wrong" if run.label.failed else "well", "again"})


def test_real_sessions_are_judged_by_what_people_say_next(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A session with a bad escape is read; edits before `fix` rank above none before `go`."""
    sessions, said = tmp_path / "sessions.jsonl", tmp_path / "said.jsonl"
    edit = json.dumps({"command": "create", "path": "/a.py", "file_text": "x = 1"})
    call = {"id": "c", "type": "function", "function": {"name": "create", "arguments": edit}}
    rows, labels = [], []
    for number in range(80):
        calls = {"tool_calls": [call]} if number % 2 else {}
        messages = [
            {"role": "user", "content": "Please mend the parser of the second file."},
            {"role": "assistant", "content": "Which of the two?", **calls},
            *([{"role": "tool", "tool_call_id": "c", "content": "created"}] if calls else []),
            {"role": "user", "content": "The next one, please."},
        ]
        rows.append({"id": f"s{number}", "who": f"dev{number // 2 % 2}", "messages": messages})
        kind = "fix" if number % 2 else "go"
        at = len(messages) - 1
        labels.append({"session": f"s{number}", "at": at, "kind": "message", "category": kind})
    text = "\n".join(map(json.dumps, rows)).replace("second file", r"second \file")
    sessions.write_text(text)
    said.write_text("\n".join(map(json.dumps, labels)))
    assert main(["people", str(sessions), str(said)]) == 0
    out = capsys.readouterr().out
    assert "80 runs, 40 corrected" in out
    assert "1.000" in next(line for line in out.splitlines() if "edits" in line)
    said.write_text("")
    assert main(["people", str(sessions), str(said)]) == 2


def test_a_level_is_reached_by_three_risky_steps() -> None:
    """The least of the newest three counts, and the tokens of the calls before are spent."""
    runs, _ = read_labelled([SAMPLE], io.StringIO())
    lasting = lasting_of((0.9, 0.7, 0.8, 0.65, 0.9))
    assert lasting == (0.0, 0.0, 0.7, 0.65, 0.65)
    one = Watched(runs[0], lasting, (0, 10, 20, 30, 40))
    assert (one.first(0.65), one.first(0.7), one.first(0.75)) == (3, 3, None)
    row = {each.level: each for each in curve_of([one]).rows}[0.7]
    assert (row.runs, row.failed) == (1, int(runs[0].label.failed))
    assert (row.steps_ahead, row.tokens_ahead) == (2 / 5, 70 / 100)
    assert chosen([Watched(run, lasting, one.tokens) for run in runs]).row_count == 8


@pytest.mark.slow
def test_runs_are_watched_by_models_of_others() -> None:
    """Each run once, for other scenarios and for other sources, with a risk for each step."""
    runs, _ = read_labelled([SAMPLE], io.StringIO())
    found = watched_runs([SAMPLE])
    assert found.keys() == {"scenarios", "sources"}
    for own in found.values():
        assert sorted(each.run.digest for each in own) == sorted(run.digest for run in runs)
        assert all(len(each.lasting) == len(each.tokens) for each in own)


def test_realised_rates_are_of_runs_that_did_not_set_the_level() -> None:
    """Solved runs that set it below those that are judged break the promise; alike ones keep it."""
    runs, _ = read_labelled([SAMPLE], io.StringIO())
    long = [run for run in runs if len(run.steps.totals) > 3]
    solved = [run for run in long if not run.label.failed]
    failed = next(run for run in long if run.label.failed)

    def reads(shift: float) -> list[Any]:
        own = [solved[n % len(solved)] for n in range(400)]
        return [(run, np.full(len(run.steps.totals), n / 400 + shift)) for n, run in enumerate(own)]

    judged = [*reads(0.0), (failed, np.full(len(failed.steps.totals), 9.0))]
    kept, recall = alarmed(reads(0.0), judged, 0.1)
    assert 0.0 < kept <= 0.1
    assert recall == 1.0
    assert alarmed(reads(-0.5), judged, 0.1)[0] > 0.3
    assert alarmed(reads(0.0)[:20], judged, 0.1) == [0.0, 0.0]
