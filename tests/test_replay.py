"""Recorded runs through the core, offline."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from contextlib import redirect_stderr, redirect_stdout
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from msgspec import to_builtins

from gateway.core.decision_settings import Policy
from gateway.core.guidance_settings import Gates
from gateway.core.pattern import Query, Tier
from gateway.core.steer import Found
from gateway.errors import ConfigError
from gateway.offline.playback import LookUps, ReplayPolicy, play
from gateway.offline.recordings import (
    Recording,
    RunLabel,
    parse_recording,
    read_lines,
    recording_files,
)
from gateway.offline.replay import Work, load_policy, policy_from_dict, run_replay
from gateway.steering.runs_of_transcript import ConversationFold
from gateway.steering.transcript.steps import extract
from lab.__main__ import main as lab_command
from lab.comparison import Comparison, run_comparison
from lab.prices import prices_of
from lab.replay_page import write_page

REPLAYS = Path(__file__).parent / "replays"
SAMPLE = REPLAYS / "sample.jsonl.gz"
EXPECTED = REPLAYS / "expected.json"
GOLDEN_RUNS = 24
JUDGED = {
    "difficulty": {"scorer": "ledger"},
    "monitors": {"suite": "robust"},
    "conversations": {"run_boundary": "never"},
}


def judged() -> ReplayPolicy:
    """The calibrated scorer and the robust suite over whole conversations."""
    return policy_from_dict(JUDGED)


def sample(count: int) -> list[Recording]:
    """The first recordings of the sample."""
    lines = list(read_lines([SAMPLE]))[:count]
    return [parse_recording(text, f"{file.name}:{number}") for file, number, text in lines]


def a_run(
    run_id: str = "r1", *, success: bool | None = True, source: str = "own"
) -> dict[str, Any]:
    """A small transcript: three calls, then an answer."""
    messages: list[dict[str, Any]] = [{"role": "user", "content": "count the files"}]
    for i in range(3):
        function = {"name": "bash", "arguments": json.dumps({"command": f"ls d{i}"})}
        call = {"id": f"c{i}", "type": "function", "function": function}
        messages.append({"role": "assistant", "content": f"step {i}", "tool_calls": [call]})
        messages.append({"role": "tool", "tool_call_id": f"c{i}", "content": f"file_{i}"})
    messages.append({"role": "assistant", "content": "There are three."})
    return {"id": run_id, "source": source, "model": "m", "success": success, "messages": messages}


def write(path: Path, *records: object) -> Path:
    """A JSONL file of these records."""
    path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    return path


def replay(*files: Path, **options: Any) -> tuple[int, str, str]:
    """The command's exit status and what it wrote to stdout and stderr."""
    out, err = io.StringIO(), io.StringIO()
    options.setdefault("jobs", 1)
    with redirect_stdout(out), redirect_stderr(err):
        status = run_replay(list(files), **options)
    return status, out.getvalue(), err.getvalue()


def compared(file: Path, *, as_json: bool = False, **work: Any) -> str:
    """What the laboratory prints of a replay under two policies."""
    out = io.StringIO()
    comparison = Comparison(lines=as_json, **work)
    assert run_comparison([file], comparison, out=out, err=io.StringIO()) == 0
    return out.getvalue()


def test_json_has_one_object_per_run_with_its_steps(tmp_path: Path) -> None:
    """Each line holds a run's id and, per step, score, state, readings and decisions."""
    file = write(tmp_path / "a.jsonl", a_run("one"), a_run("two", success=False))
    status, out, _ = replay(file, as_json=True, policy=judged())
    runs = [json.loads(line) for line in out.splitlines()]
    assert status == 0
    assert [run["id"] for run in runs] == ["one", "two"]
    steps = runs[0]["steps"]
    assert [step["index"] for step in steps] == [0, 1, 2, 3]
    for step in steps:
        assert 0.0 <= step["difficulty"] <= 1.0
        assert step["state"] in {"FAST", "NORMAL", "SLOW", "SKIP"}
        assert len(step["scores"]) == 6
        assert step["composite"] >= 0.0
        assert step["fired"] == []
        assert step["failure_type"] is None


def test_a_final_answer_repeats_the_last_score(tmp_path: Path) -> None:
    """A step that is not scored keeps the reading a watcher has, and says so."""
    file = write(tmp_path / "a.jsonl", a_run())
    policy = policy_from_dict({**JUDGED, "conversations": {"run_boundary": "final_answer"}})
    _, out, _ = replay(file, as_json=True, policy=policy)
    *_, before, last = json.loads(out)["steps"]
    assert (last["scored"], last["state"]) == (False, "END")
    assert last["difficulty"] == before["difficulty"]


def test_replay_is_the_online_fold() -> None:
    """Offline readings equal those of a conversation fed message by message."""
    for recording in sample(6):
        policy = policy_from_dict({**JUDGED, "conversations": {"run_boundary": "final_answer"}})
        steps = play(recording, policy)["steps"]
        fold = ConversationFold(policy.rules.policy)
        online = {}
        assert recording.messages is not None
        for end in range(1, len(recording.messages) + 1):
            for outcome in fold.extend(recording.messages[:end]):
                online[outcome.step.index] = outcome
        scored = [step for step in steps if step["scored"]]
        assert len(scored) == len(online)
        for step in scored:
            outcome = online[step["index"]]
            assert step["state"] == outcome.state.value
            assert step["difficulty"] == round(outcome.difficulty, 6)
            assert step["fired"] == list(outcome.readings.fired)


def test_a_reading_uses_nothing_after_its_step() -> None:
    """Cutting a recording short leaves the readings of what is left as they were."""
    recording = max(sample(40), key=lambda r: len(r.messages or ()))
    assert recording.messages is not None
    whole = play(recording, judged())["steps"]
    ends = [i for i, m in enumerate(recording.messages) if m["role"] == "assistant"][1:]
    for count, end in enumerate(ends, 1):
        part = play(
            Recording(label=RunLabel(id="part"), messages=recording.messages[:end]), judged()
        )["steps"]
        assert [s["difficulty"] for s in part] == [s["difficulty"] for s in whole[:count]]
        assert [s["fired"] for s in part] == [s["fired"] for s in whole[:count]]


def test_golden_replays() -> None:
    """States, alarms and last scores of recorded runs stay what they were."""
    found = {}
    for recording in sample(GOLDEN_RUNS):
        played = play(recording, judged())
        found[recording.label.id] = {
            "states": "".join(step["state"][0] for step in played["steps"]),
            "first": played["first"],
            "last": round(played["steps"][-1]["difficulty"], 4),
        }
    if os.environ.get("UPDATE_GOLDEN"):
        EXPECTED.write_text(json.dumps(found, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    assert found == json.loads(EXPECTED.read_text(encoding="utf-8"))


def test_processes_give_the_same_lines_in_the_same_order(tmp_path: Path) -> None:
    """However many processes work, the output is that of one."""
    some = tmp_path / "some.jsonl"
    some.write_text("\n".join([text for _, _, text in read_lines([SAMPLE])][::3]), "utf-8")
    _, alone, _ = replay(some, as_json=True, policy=judged(), jobs=1)
    _, together, _ = replay(some, as_json=True, policy=judged(), jobs=2)
    assert together == alone
    assert len(alone.splitlines()) == 44


def test_files_and_directories_may_be_mixed(tmp_path: Path) -> None:
    """Directories are searched for JSONL, packed or not; other files in them are left alone."""
    nested = tmp_path / "runs" / "deep"
    nested.mkdir(parents=True)
    write(nested / "a.jsonl", a_run("a"))
    with gzip.open(nested / "b.jsonl.gz", "wt", encoding="utf-8") as file:
        file.write(json.dumps(a_run("b")) + "\n")
    (nested / "notes.txt").write_text("no recording", encoding="utf-8")
    single = write(tmp_path / "c.json", a_run("c"))
    _, out, _ = replay(tmp_path / "runs", single, as_json=True)
    assert [json.loads(line)["id"] for line in out.splitlines()] == ["a", "b", "c"]


def test_broken_lines_are_reported_and_the_rest_is_replayed(tmp_path: Path) -> None:
    """What cannot be read is named by file and line; the exit status tells."""
    file = tmp_path / "a.jsonl"
    file.write_text(
        "not json\n\n" + json.dumps(a_run("ok")) + "\n[1]\n" + json.dumps({"id": "empty"}) + "\n",
        encoding="utf-8",
    )
    status, out, err = replay(file, as_json=True)
    assert status == 1
    assert [json.loads(line)["id"] for line in out.splitlines()] == ["ok"]
    assert "a.jsonl:1: not JSON: Expecting value, column 1\n" in err
    assert "a.jsonl:4: expected an object" in err
    assert "a.jsonl:5: neither `messages` nor `steps`" in err


def test_the_log_of_an_agent_is_named_with_the_command_that_reads_it(tmp_path: Path) -> None:
    """In one line, however long it is; what was recorded beside it is replayed."""
    log = tmp_path / "session.jsonl"
    line = {"type": "user", "parentUuid": None, "message": {"role": "user", "content": "go"}}
    log.write_text((json.dumps(line) + "\n") * 50, encoding="utf-8")
    with pytest.raises(ConfigError) as refused:
        replay(log)
    assert str(refused.value) == f"{log}: a session of claude-code: gateway history {log}"
    status, out, err = replay(log, write(tmp_path / "a.jsonl", a_run("a")), as_json=True)
    assert (status, err) == (1, f"gateway: {refused.value}\n")
    assert [json.loads(line)["id"] for line in out.splitlines()] == ["a"]


def test_files_without_a_run_are_refused(tmp_path: Path) -> None:
    """An empty file is said to be one."""
    empty = tmp_path / "empty.jsonl"
    empty.write_text("\n\n", encoding="utf-8")
    for options in ({}, {"as_json": True}):
        with pytest.raises(ConfigError, match=r"empty\.jsonl: no recorded run"):
            replay(empty, **options)


def test_a_page_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    """The path and the reason, instead of a traceback."""
    file = write(tmp_path / "a.jsonl", a_run())
    with pytest.raises(ConfigError, match=r"page\.html: cannot be written: No such file"):
        write_page([file], Work(policy=judged()), tmp_path / "missing" / "page.html")


def test_standard_input_is_a_file(tmp_path: Path) -> None:
    """Runs may be piped in, as `-`; a run without a name is called by its line."""
    run = a_run()
    del run["id"]
    command = [sys.executable, "-m", "gateway", "replay", "--json", "-"]
    done = subprocess.run(
        command, input=json.dumps(run).encode(), capture_output=True, check=True, timeout=120
    )
    assert json.loads(done.stdout)["id"] == "-:1"


def test_a_missing_path_is_refused(tmp_path: Path) -> None:
    """A path that is not there, an empty directory and a broken archive are errors by name."""
    with pytest.raises(ConfigError, match="no such file"):
        recording_files([tmp_path / "nothing.jsonl"])
    with pytest.raises(ConfigError, match=r"no \.jsonl"):
        recording_files([tmp_path])
    broken = tmp_path / "b.jsonl.gz"
    broken.write_bytes(b"no gzip")
    with pytest.raises(ConfigError, match="cannot be read"):
        list(read_lines([broken]))
    with pytest.raises(ConfigError, match="cannot be read: Is a directory"):
        list(read_lines([tmp_path]))


def test_malformed_transcripts_are_replayed_as_far_as_they_go(tmp_path: Path) -> None:
    """Wrong types inside a transcript cost no exception and no other run."""
    odd = {
        "id": "odd",
        "messages": [
            None,
            {"role": "assistant", "content": None},
            {"role": "assistant", "tool_calls": "x"},
            {"role": "tool", "content": 5},
            {"role": "user"},
            7,
        ],
    }
    status, out, _ = replay(
        write(tmp_path / "a.jsonl", odd, {"id": "e", "messages": []}), as_json=True
    )
    assert status == 0
    assert [len(json.loads(line)["steps"]) for line in out.splitlines()] == [2, 0]


def test_the_gateways_own_export_is_replayed(tmp_path: Path) -> None:
    """Exported runs hold steps with their texts; rows without texts have nothing to score."""
    content = {
        "thought": "look",
        "reasoning": "",
        "actions": [{"name": "bash", "arguments": "ls", "observation": "a.txt", "is_error": False}],
    }
    export = {
        "run": {"id": "run-1", "model_requested": "m", "outcome": "failure", "agent": "cli"},
        "steps": [
            {"run_id": "run-1", "step_index": 0, "at": 1.0, "state": "INIT", "content": None},
            {"run_id": "run-1", "step_index": 1, "at": 2.0, "state": "NORMAL", "content": content},
        ],
    }
    records = {"id": "records", "steps": [{"action": "bash", "action_input": "ls", "thought": "x"}]}
    _, out, _ = replay(write(tmp_path / "a.jsonl", export, records), as_json=True)
    first, second = [json.loads(line) for line in out.splitlines()]
    assert (first["id"], first["model"], first["success"]) == ("run-1", "m", False)
    assert len(first["steps"]) == len(second["steps"]) == 1


def test_an_export_reads_as_the_transcript_did(tmp_path: Path) -> None:
    """Pictures and whether the user spoke travel with the export, so no alarm comes of it."""
    messages: list[dict[str, Any]] = [{"role": "user", "content": "go"}]
    for n in range(8):
        function = {"name": "click", "arguments": "{}"}
        call = {"id": f"c{n}", "type": "function", "function": function}
        picture = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{n}"}}
        messages.append({"role": "assistant", "content": "", "tool_calls": [call]})
        messages.append({"role": "tool", "tool_call_id": f"c{n}", "content": [picture]})
        said = "Your booking is changed, can I help you with anything else, or was that it for you?"
        messages.append({"role": "assistant", "content": said})
        messages.append({"role": "user", "content": f"Yes, please change the booking of guest {n}"})
    steps = extract(messages)
    assert any(step.prompted for step in steps)
    rows = [{"state": "NORMAL", "at": 1, "content": to_builtins(step)} for step in steps]
    file = write(
        tmp_path / "a.jsonl",
        {"id": "transcript", "messages": messages},
        {"id": "export", "steps": rows},
    )
    _, out, _ = replay(file, as_json=True, policy=judged())
    transcript, export = [json.loads(line)["steps"] for line in out.splitlines()]
    assert export == transcript


def test_an_export_looks_up_what_the_transcript_did(tmp_path: Path) -> None:
    """The text of several steps is looked up, so all of them are kept."""
    messages = looping()["messages"]
    rows = [
        {"state": "NORMAL", "at": 1, "content": to_builtins(step)} for step in extract(messages)
    ]
    eager = {"etraces": {"e2_when": "always"}}
    policy = policy_from_dict({**JUDGED, **eager})
    asked: list[list[str]] = []
    for record in ({"id": "r", "messages": messages}, {"id": "r", "steps": rows}):
        asked.append([])

        def look_up(queries: Sequence[Query], texts: list[str] = asked[-1]) -> Found:
            texts += [query.text for query in queries if query.tier is Tier.E2]
            return {}

        recording = parse_recording(json.dumps(record), "-")
        play(recording, policy, LookUps(look_up=look_up, gates=Gates(e1=0.0, e2=0.0)))
    transcript, export = asked
    assert transcript
    assert export == transcript


def test_a_judged_export_keeps_its_scores(tmp_path: Path) -> None:
    """What a model scored is taken from the record; what it did not is calibrated."""
    rows = [
        {"state": "NORMAL", "at": n, "difficulty": score, "content": {"thought": f"Look at {n}."}}
        for n, score in enumerate([0.9, 0.9, 0.9, 0.9, 0.9, None])
    ]
    file = write(tmp_path / "a.jsonl", {"run": {"id": "r"}, "steps": rows})
    policies = [policy_from_dict({"difficulty": {"scorer": "ledger"}})]
    judge = {"scorer": "judge", "judge": {"model": "m"}}
    policies.append(policy_from_dict({"difficulty": judge, "steering": {"deadline_ms": 5000}}))
    out = compared(file, as_json=True, policy=policies[0], other=policies[1])
    run = json.loads(out)
    assert [step["difficulty"] for step in run["other"]["steps"][:5]] == [0.9] * 5
    assert run["other"]["steps"][4]["state"] == "SLOW"
    assert run["other"]["steps"][5]["difficulty"] == run["steps"][5]["difficulty"] != 0.9


def test_the_summary_counts_runs_per_source_and_model(tmp_path: Path) -> None:
    """One row per source and model, one for all."""
    file = write(tmp_path / "a.jsonl", a_run("a"), a_run("b", success=False), a_run("c", source=""))
    _, out, _ = replay(file)
    assert "3 runs replayed" in out
    assert "own" in out


def test_two_policies_are_compared_by_what_changes(tmp_path: Path) -> None:
    """States, guidance, models and cost of both, and the runs and steps on which they differ."""
    policy = policy_from_dict(JUDGED)
    other = policy_from_dict({**JUDGED, "model_routing": {"NORMAL": "big", "SLOW": "big"}})
    both: dict[str, Any] = {"policy": policy, "other": other}
    both |= {"prices": prices_of({"prices": {"big": {"input": 5, "output": 15}}})}
    file = write(tmp_path / "a.jsonl", a_run())
    out = compared(file, **both, as_json=True)
    run = json.loads(out)
    assert run["changes"][0] == {"index": 0, "model": ["m", "big"]}
    assert [step["model"] for step in run["other"]["steps"]] == ["big"] * 4
    assert run["other"]["tokens"]["big"]["usd"] > 0
    out = compared(file, **both)
    assert "1 of 1 runs change" in out
    assert "calls to big" in out
    assert "r1: 4 steps, first 0: model m -> big" in out
    assert "USD" in out


def test_after_a_final_answer_a_new_run_begins(tmp_path: Path) -> None:
    """The call that would follow has the requested model, and the tokens of no run before it."""
    config = {
        **JUDGED,
        "conversations": {"run_boundary": "final_answer"},
        "model_routing": {"FAST": "small", "NORMAL": "small"},
        "steering": {"token_budget": 1, "budget_action": "wrap_up"},
    }
    file = write(tmp_path / "a.jsonl", a_run())
    _, out, _ = replay(file, policy=policy_from_dict(config), as_json=True)
    *steps, last = json.loads(out)["steps"]
    assert {step["model"] for step in steps} == {"small"}
    assert all("guidance" in step for step in steps)
    assert (last["model"], last.get("guidance")) == ("m", None)


def test_equal_policies_change_nothing(tmp_path: Path) -> None:
    """A policy compared with itself changes no run."""
    file = write(tmp_path / "a.jsonl", a_run())
    out = compared(file, policy=ReplayPolicy(), other=ReplayPolicy())
    assert "0 of 1 runs change" in out


def test_a_loop_shows_in_guidance_and_signals(tmp_path: Path) -> None:
    """A monitor text is planned once the loop fires, and the first showing is recorded."""
    _, out, _ = replay(write(tmp_path / "a.jsonl", looping()), as_json=True, policy=judged())
    run = json.loads(out)
    fired = run["first"]["streak"]
    assert run["first"]["alarm"] == fired <= 5
    texts = [
        item
        for step in run["steps"]
        for item in step.get("guidance", ())
        if item["source"] == "monitor"
    ]
    assert texts[0]["failure_type"] == "loop"


class _Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))


def test_the_page_is_self_contained_and_escaped(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The page loads nothing, runs nothing, and shows texts of runs as texts."""
    evil = a_run("<script>alert(1)</script>", source="<b>")
    page = tmp_path / "report.html"
    file = write(tmp_path / "a.jsonl", evil, a_run("ok", success=False))
    status = lab_command(["replay", "--patterns", "starter", "--html", str(page), str(file)])
    text = page.read_text(encoding="utf-8")
    parser = _Tags()
    parser.feed(text)
    names = {tag for tag, _ in parser.tags}
    assert status == 0
    assert page.name in capsys.readouterr().out
    assert "script" not in names
    assert {"svg", "path", "table"} <= names
    assert not [
        a for _, a in parser.tags if "src" in a or not (a.get("href") or "#").startswith("#")
    ]
    assert "default-src 'none'" in text
    assert "http://" not in text
    assert "https://" not in text


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        ({"monitor": {}}, "monitor: unknown key"),
        ({"monitors": {"suite": "x"}}, "monitors.*suite"),
        ({"fsm": {"slow_treshold": 1}}, "slow_threshold"),
        ({"model_routing": {"QUICK": "m"}}, "QUICK"),
    ],
)
def test_a_wrong_policy_is_refused_by_its_key(raw: dict[str, Any], message: str) -> None:
    """Unknown keys and refused values are named."""
    with pytest.raises(ConfigError, match=message):
        policy_from_dict(raw)


def test_a_policy_file_is_a_config_file(tmp_path: Path) -> None:
    """The gateway's own config serves as a policy; what does not decide anything is passed over."""
    file = tmp_path / "other.yaml"
    file.write_text(
        "server: {port: 9}\nconversations: {run_boundary: never}\ndifficulty: {scorer: ledger}\n",
        encoding="utf-8",
    )
    policy = load_policy(file).rules.policy
    assert policy.run_boundary == "never"
    assert policy.difficulty.scorer == "ledger"
    assert policy.monitors == Policy().monitors


def test_a_damaged_line_costs_that_line_only(tmp_path: Path) -> None:
    """Bytes that are no UTF-8 are named by file and line; a mark at the beginning is no damage."""
    run = json.dumps({"id": "a", "messages": [{"role": "user", "content": "hi"}]}).encode()
    file = tmp_path / "runs.jsonl"
    file.write_bytes(b"\xef\xbb\xbf" + run + b"\n\xff\xfe\n" + run + b"\n")
    parsed, refused = [], []
    for path, number, line in read_lines([file]):
        try:
            parsed.append(parse_recording(line, f"{path.name}:{number}").label.id)
        except ConfigError as error:
            refused.append(str(error))
    assert parsed == ["a", "a"]
    assert refused == ["runs.jsonl:2: not UTF-8 at character 0"]


def test_a_file_cut_short_is_named_with_the_line(tmp_path: Path) -> None:
    """What could be read of a broken archive is read."""
    file = tmp_path / "runs.jsonl.gz"
    line = json.dumps({"id": "a", "messages": []}) + "\n"
    noise = "".join(hashlib.sha256(str(i).encode()).hexdigest() for i in range(4000))
    file.write_bytes(gzip.compress((line + noise).encode())[:60_000])
    lines = read_lines([file])
    assert next(lines)[1:] == (1, line)
    with pytest.raises(ConfigError, match=r"runs\.jsonl\.gz:2: cannot be read"):
        next(lines)


def looping() -> dict[str, Any]:
    """A run that makes one call eight times."""
    record = a_run()
    record["messages"][1:3] = record["messages"][1:3] * 8
    return record


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        ({"prices": 5}, "prices: expected a mapping"),
        ({"prices": {"m": {"input": 1}}}, "prices.m.output: required"),
    ],
)
def test_a_wrong_price_is_refused_by_its_key(raw: dict[str, Any], message: str) -> None:
    """By the laboratory, which reads them."""
    with pytest.raises(ConfigError, match=message):
        prices_of(raw)
