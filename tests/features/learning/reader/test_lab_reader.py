"""`python -m lab reader`: a model is judged on labelled messages, project by project."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gateway.features.learning.reader.questions import KIND
from lab.__main__ import main
from lab.rules import RULES
from steering_gateway_testing import ReceivedRequest, Reply, ScriptedUpstream

LONG = "Never open draft pull requests. " + "Fix the cart total, it is still wrong. " * 20


def said(session: str, at: int, text: str, category: str, lesson: str = "") -> dict[str, Any]:
    row = {"session": session, "at": at, "kind": "message", "before": "Done.", "said": text[:420]}
    return {**row, "category": category, "lesson": lesson}


def project(folder: Path, name: str, rows: list[dict[str, Any]]) -> str:
    file = folder / f"{name}.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(file)


def model(request: ReceivedRequest) -> Reply:
    """Reads by single words, copies the first sentence as a rule, and once changes it."""
    typed = json.loads(request.messages[1]["content"])["typed"]
    if request.messages[0]["content"] == KIND.instruction:
        words = {"wrong": "fix", "yes": "go", "why": "ask"}
        return Reply(next((kind for word, kind in words.items() if word in typed), "no idea"))
    assert request.messages[0]["content"] == RULES.instruction
    if typed.startswith("Never"):
        return Reply(json.dumps([typed.partition(".")[0] + "."]))
    return Reply('["Always do what was not said."]' if "yes" in typed else "[]")


def test_each_project_has_its_figures(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Over real HTTP; messages are shown whole, answers in no form are counted, and a rule that was
    not typed is none."""
    shop = [
        said("s1", 1, LONG, "fix", "No drafts."),
        said("s1", 3, "yes, go on", "go"),
        said("s1", 5, "that is wrong", "steer"),
        said("s1", 7, "Name it totals.", "design"),
    ]
    messages = [{"role": "assistant", "content": "Done."}] * 8
    messages[1] = {"role": "user", "content": LONG}
    sessions = project(tmp_path, "sessions", [{"id": "s1", "messages": messages}])
    files = [
        project(tmp_path, "shop", shop),
        project(tmp_path, "blog", [said("s2", 1, "why?", "ask")]),
    ]
    with ScriptedUpstream(default=model) as upstream:
        words = ["--model", "small", "--api-base", upstream.base_url, "--sessions", sessions]
        assert main(["reader", *words, *files]) == 0
        typed = [json.loads(r.messages[1]["content"])["typed"] for r in upstream.requests]
        assert {request.json["model"] for request in upstream.requests} == {"small"}
    assert LONG.strip() in typed
    out = capsys.readouterr().out.splitlines()
    assert out[0] == "shop: 4 messages, 1 answers in no form"
    assert out[1].startswith("  kind: right in 0.67 [")
    assert out[2].startswith("  corrects: right 1.00 [")
    assert "found 1.00 [" in out[2]
    assert out[3].startswith("  accepts: right 1.00 [")
    assert out[5] == "  rules: 1 answers in no form, or not typed so"
    assert out[6].startswith("  rules: right 1.00 [")
    assert out[7] == "blog: 1 messages, 0 answers in no form"
    assert "rules: right - of 0, found - of 0" in out[-1]


def test_planted_loops_are_judged(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Against innocent repetitions; a model that sees trouble everywhere is right in half."""

    def transcript(kind: str) -> dict[str, Any]:
        function = {"name": "bash", "arguments": '{"command": "make"}'}
        calls = [{"id": "call_1", "type": "function", "function": function}]
        done = {"role": "tool", "tool_call_id": "call_1", "content": f"{kind}: it failed"}
        return {"kind": kind, "messages": [{"role": "assistant", "tool_calls": calls}, done]}

    loops = project(tmp_path, "sets", [transcript("loop"), transcript("innocent")])
    with ScriptedUpstream(default=Reply("yes")) as upstream:
        words = ["--model", "small", "--api-base", upstream.base_url, "--planted", loops]
        assert main(["reader", *words]) == 0
        texts = [request.messages[1]["content"] for request in upstream.requests]
    assert all("it failed" in text and "make" in text for text in texts)
    out = capsys.readouterr().out.splitlines()
    assert out[0] == "sets: 2 transcripts, 0 in no form"
    assert out[1].startswith("  trouble: right 0.50 [")


def test_a_model_that_is_not_there_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One line with the address; a file without labels is refused by name."""
    shop = project(tmp_path, "shop", [said("s1", 1, "yes", "go")])
    where = ["reader", "--model", "small", "--api-base", "http://127.0.0.1:9"]
    assert main([*where, shop]) == 2
    assert "http://127.0.0.1:9: small" in capsys.readouterr().err
    assert main([*where, project(tmp_path, "empty", [{"said": "x"}])]) == 2
    assert "no labelled message" in capsys.readouterr().err
