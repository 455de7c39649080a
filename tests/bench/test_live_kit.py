"""The live kit: a dry run whole, with its folder and report, and the arithmetic of its figures."""

from __future__ import annotations

import json
import random
import re
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from bench.live import figures, plan, report, results
from bench.live.__main__ import main
from bench.live.plan import Plan, Refused, Trial
from bench.live.results import Done, Results, Spent

KEY = "made-up-key-without-any-known-form"
TASKS = ("renamed-option", "slow-build", "drawn", "look-around")
NOTHING = Spent(input_tokens=900, output_tokens=100, usd=0.5, guidance=0, switched=0, stopped=0)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dry run of four tasks in two arms, three times each."""
    made = tmp_path_factory.mktemp("live") / "out"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OPENAI_API_KEY", KEY)
        words = ["run", "--dry", "--seed", "3", "--tasks", ",".join(TASKS), "--out", str(made)]
        assert main(words) == 0
    return made


@pytest.mark.slow
def test_the_arms_differ_where_guidance_decides(folder: Path) -> None:
    """One task is solved with guidance only, one without it only, one by a draw."""
    found = results.read(folder)
    solved = {
        (arm, task.rpartition("/")[2]): sum(d.success for d in found.of(arm, task))
        for arm in ("off", "on")
        for task in found.tasks
    }
    assert solved["off", "renamed-option"] == solved["on", "slow-build"] == 0
    assert solved["on", "renamed-option"] == solved["off", "slow-build"] == 3
    assert solved["on", "look-around"] == solved["off", "look-around"] == 3
    assert not found.few
    assert [d.trial for d in found.done] == list(found.plan.trials)
    assert sum(d.spent.guidance for d in found.of("off")) == 0
    assert all(d.spent.guidance for d in found.of("on", "tiny/renamed-option"))
    assert all(d.spent.usd and d.spent.input_tokens and d.solved is not None for d in found.done)


@pytest.mark.slow
def test_the_scripted_runs_are_the_same_for_a_seed(folder: Path) -> None:
    """The draw, and with it the verdicts, and the tokens follow from seed and name."""
    drawn = {d.trial.id: d.solved for d in results.read(folder).done if "drawn" in d.trial.id}
    assert {False, True} == set(drawn.values())
    assert list(drawn.values()) == [True, True, True, True, False, False]
    [tokens] = {d.spent.input_tokens for d in results.read(folder).of("off", "tiny/slow-build")}
    assert tokens == 10_000


@pytest.mark.slow
def test_no_key_is_in_the_folder(folder: Path) -> None:
    """Neither as it is nor in the databases, although an agent printed its environment; what
    stood there can be seen to have been masked."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert [path for path in files if KEY.encode() in path.read_bytes()] == []
    masked = [path for path in files if b"*" * len(KEY) in path.read_bytes()]
    assert {"gateway.db", "messages.json"} <= {path.name for path in masked}


@pytest.mark.slow
def test_the_folder_has_what_a_repetition_needs(folder: Path) -> None:
    """Configs, versions, prices, order, and the commands of the official harness's form."""
    assert "mode: 'on'" in (folder / "arms/on/config.yaml").read_text()
    [call] = map(json.loads, (folder / "calls.jsonl").read_text().splitlines())
    assert {"gateway", "harness", "python", "dataset"} <= set(call["versions"])
    assert json.loads((folder / "prices.json").read_text())["usd_per_token"]["input"] > 0
    record = json.loads(next((folder / "records").glob("*.json")).read_text())
    assert re.search(r"run -t tiny/\S+@sha256:\S+ -a scripted -m ", " ".join(record["command"]))
    assert (folder / "arms/off/runs-1.jsonl").stat().st_size


@pytest.mark.slow
def test_what_is_missing_is_run_and_nothing_is_overwritten(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    """An interrupted trial is kept beside its repetition; a full folder is refused."""
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    copy = tmp_path / "out"
    shutil.copytree(folder, copy)
    trial = next(t for t in Plan.read(copy).trials if "renamed-option-on" in t.id)
    (copy / "records" / f"{trial.id}.json").unlink()
    before = results.read(copy)
    assert before.few == [("tiny/renamed-option", "on", 2)]
    assert any("renamed-option in on (2 of 3)" in n for n in report.values(before)["notes"])
    assert main(["run", "--dry", "--out", str(copy)]) == 2
    assert "--continue" in capsys.readouterr().err
    assert main(["run", "--continue", "--out", str(copy)]) == 0
    assert f"1/1 {trial.id}: solved" in capsys.readouterr().out
    assert (copy / "trials" / f"{trial.id}.interrupted-1").is_dir()
    assert (copy / "arms/on/runs-2.jsonl").exists()
    assert results.read(copy).few == []


@pytest.mark.slow
def test_the_page_loads_nothing_and_draws_no_conclusion(folder: Path, tmp_path: Path) -> None:
    """Of a dry run; every arm and task is on it."""
    assert main(["report", str(folder), "--html", str(tmp_path / "page.html")]) == 0
    text = (tmp_path / "page.html").read_text()
    assert not re.search(r"<script|https?://|url\(", text)
    assert "None is drawn" in text
    assert all(task in text for task in TASKS)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--model", "openai/m", "--agent", "terminus-2", "--k", "2"], "--k 3"),
        (["--dry", "--arms", "off"], "two arms"),
        (["--dry", "--arms", "off,fast"], "fast is no mode"),
        (["--dry", "--tasks", "no-such"], "no-such"),
        (["--dry", "--config", "{key}"], "holds a key"),
        (["--agent", "terminus-2"], "--model"),
    ],
)
def test_what_is_refused(words: list[str], said: str, tmp_path: Path, capsys: Any) -> None:
    """With the reason, before anything is written."""
    config = tmp_path / "config.yaml"
    config.write_text("default_upstream: {api_key: sk-proj-a8Fk2Lm9Qz7Xc4Vb6Nn1Pp3R}\n")
    words = [str(config) if word == "{key}" else word for word in words]
    assert main(["run", *words, "--out", str(tmp_path / "out")]) == 2
    assert said in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_the_list_has_21_tasks_by_its_rule() -> None:
    """Sorted names with a digest each."""
    listed = plan.chosen_tasks(False, [])
    names = [task["name"] for task in listed["tasks"]]
    assert len(set(names)) == 21
    assert names == sorted(names)
    assert all(re.fullmatch(r"sha256:[0-9a-f]{64}", task["ref"]) for task in listed["tasks"])
    with pytest.raises(Refused, match="fix-git"):
        plan.chosen_tasks(False, ["fix-git"])


def test_arms_are_interleaved() -> None:
    """All arms of a task and attempt follow each other; a seed gives one order."""
    tasks = plan.chosen_tasks(True, [])["tasks"]
    trials = plan.ordered(tasks, ["off", "on"], 3, 5)
    assert trials == plan.ordered(tasks, ["off", "on"], 3, 5)
    assert trials != plan.ordered(tasks, ["off", "on"], 3, 6)
    for one, other in zip(trials[::2], trials[1::2], strict=True):
        assert (one.task, one.attempt) == (other.task, other.attempt)
        assert {one.arm, other.arm} == {"off", "on"}
    assert {t.arm for t in trials[::2]} == {"off", "on"}


def made_up(solved: dict[str, list[int]], k: int = 3, **changes: Any) -> Results:
    """Results with so many of k attempts solved per task, in each arm."""
    done, tasks = [], len(next(iter(solved.values())))
    for arm, numbers in solved.items():
        for task, number in enumerate(numbers):
            for n in range(k):
                trial = Trial(id=f"{arm}{task}{n}", arm=arm, task=f"{task:02}", ref="", attempt=n)
                done.append(
                    Done(
                        trial=trial,
                        solved=n < number,
                        error=None,
                        seconds=1.0,
                        spent=NOTHING,
                        agent_version="1",
                    )
                )
    made = Plan(
        model="m",
        agent="a",
        harness=("harbor",),
        options=(),
        dataset={"dataset": "d", "version": "1", "rule": "all", "of": str(tasks)},
        arms=tuple(solved),
        k=k,
        seed=1,
        dry=False,
        upstream="",
        trials=tuple(d.trial for d in done),
    )
    return Results(plan=replace(made, **changes), done=tuple(done), calls=(), prices={"model": "m"})


def conclusion(found: Results) -> str:
    """That about success."""
    return str(report.values(found)["conclusions"][0])


def test_conclusions_follow_the_interval() -> None:
    """A difference in most tasks is one; one in both directions is not; nor without k."""
    mostly = {"off": [0] * 12 + [3] * 9, "on": [3] * 21}
    assert "on solves more" in conclusion(made_up(mostly))
    assert "on less" in conclusion(made_up({"off": mostly["on"], "on": mostly["off"]}))
    mixed = {"off": [0, 3] * 10, "on": [3, 0] * 10}
    assert "contains 0: nothing can be said" in conclusion(made_up(mixed))
    assert "no interval" in conclusion(made_up({"off": [1] * 20, "on": [1] * 20}))
    assert conclusion(made_up(mostly, dry=True)).startswith("None is drawn")
    few = {arm: [min(1, n) for n in numbers] for arm, numbers in mostly.items()}
    assert conclusion(made_up(few, k=1)).startswith("None is drawn")
    toys = (sys.executable, "-m", "bench.live.local")
    assert conclusion(made_up(mostly, harness=toys)).startswith("None is drawn")


def test_chance_makes_few_conclusions() -> None:
    """Of 300 made-up comparisons of an arm with itself, 21 tasks with 3 attempts each: the
    interval of 95 % holds 0 in nearly as many, and a conclusion is drawn in hardly any."""
    draw, inside, sure = random.Random(8), 0, 0
    for _ in range(300):
        rates = [draw.choice((0.0, 0.2, 0.5, 0.8, 1.0)) for _ in range(21)]
        one, other = ([sum(draw.random() < r for _ in range(3)) / 3 for r in rates] for _ in "ab")
        values = [a - b for a, b in zip(one, other, strict=True)]
        found = figures.resampled(values, compared=4, rounds=800)
        assert found is not None
        assert found.low is not None
        assert found.high is not None
        inside += found.low <= 0 <= found.high
        sure += found.sure
    print(inside, sure)
    assert inside >= 0.9 * 300
    assert sure <= 0.03 * 300


def test_tasks_are_the_unit() -> None:
    """Ten attempts more at each task make no interval narrower; all solved is not certainty."""
    few, many = (made_up({"off": [0] * 10 + [k] * 11, "on": [k] * 21}, k=k) for k in (3, 30))
    of_few, of_many = report.values(few)["arms"][0], report.values(many)["arms"][0]
    assert of_few["estimate"] == of_many["estimate"]
    low, high = of_few["estimate"].low, of_few["estimate"].high
    exact = 1.96 * (0.25 / 21) ** 0.5
    assert (low, high) == pytest.approx((11 / 21 - exact, 11 / 21 + exact), abs=0.05)
    certain = figures.share([1.0] * 21)
    assert certain is not None
    assert certain.low == pytest.approx(0.025 ** (1 / 21))


def test_an_unknown_cost_is_not_nothing() -> None:
    """One run with an unknown price: no mean, no sum, no difference for its task."""
    found = made_up({"off": [1] * 12, "on": [2] * 12})
    unknown = replace(found.done[0], spent=replace(NOTHING, usd=None))
    found = replace(found, done=(unknown, *found.done[1:]))
    shown = report.values(found)
    assert shown["arms"][0]["cost"] == shown["arms"][0]["total"] == "not known"
    assert shown["arms"][0]["known"] == "35 of 36"
    assert [row["tasks"] for row in shown["differences"]] == ["12", "12", "11", "12"]
    priced = {"unpriced_calls": 0, "cost_usd": 0.1, "input_tokens": 1, "output_tokens": 1}
    runs = [
        {"run": {"totals": {**priced, **more}, "stopped": None}, "steps": [], "guidance": []}
        for more in ({}, {"unpriced_calls": 1})
    ]
    assert Spent.of(runs[:1]).usd == 0.1
    assert Spent.of(runs).usd is None
    assert Spent.of([]).usd is None
    silent = replace(found, done=tuple(replace(d, spent=Spent.of([])) for d in found.done))
    assert any("72 runs the gateway recorded no call" in n for n in report.values(silent)["notes"])


def test_a_run_without_a_reward_counts_as_not_solved(capsys: Any) -> None:
    """And is named."""
    found = made_up({"off": [3] * 12, "on": [3] * 12})
    broken = replace(found.done[0], solved=None, error="NonZeroAgentExitCodeError")
    found = replace(found, done=(broken, *found.done[1:]))
    shown = report.values(found)
    assert shown["arms"][0]["solved"] == "35"
    assert shown["errors"] == [{"arm": "off", "error": "NonZeroAgentExitCodeError", "runs": 1}]
    assert not any("recorded no call" in note for note in shown["notes"])
    assert any("1 run without a reward" in note for note in shown["notes"])
    report.print_report(found, Console(width=120))
    assert "without a reward" in capsys.readouterr().out
    assert "NonZeroAgentExitCodeError" in report.page(
        replace(found, prices={"model": "m", "list": "l", "sha256": None, "usd_per_token": None})
    )
