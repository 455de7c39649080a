"""The samples of output in the documents are what is printed."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from steering_gateway_testing import ReceivedRequest, Reply, ScriptedUpstream, ToolCall, Usage
from steering_gateway_testing.processes import environment_of_a_new_user, run

ROOT = Path(__file__).parents[2]

AGENT = """
import json, os, urllib.request
messages = [{"role": "user", "content": "Repair the failing test."}]
tool = {"type": "function", "function": {"name": "bash", "parameters": {"type": "object"}}}
calls = True
while calls:
    body = json.dumps({"model": "gpt-4.1", "messages": messages, "tools": [tool]}).encode()
    asked = urllib.request.Request(os.environ["OPENAI_BASE_URL"] + "/chat/completions", body,
        {"content-type": "application/json", "authorization": "Bearer sk-mine"})
    reply = json.load(urllib.request.urlopen(asked))["choices"][0]["message"]
    messages.append(reply)
    calls = reply.get("tool_calls") or []
    for call in calls:
        messages.append({"role": "tool", "tool_call_id": call["id"],
            "content": "FAILED tests/test_pay.py::test_total - assert 7 == 8"})
"""


def seven_times_the_same(request: ReceivedRequest) -> Reply:
    """A model that runs the failing test seven times and gives up; prompts grow by 1,000 tokens."""
    step = sum(message["role"] == "assistant" for message in request.fields["messages"]) + 1
    if step > 7:
        usage = Usage(prompt_tokens=8000, completion_tokens=100)
        return Reply("The price list is wrong.", usage=usage)
    usage = Usage(prompt_tokens=1000 * step, completion_tokens=100)
    call = ToolCall("bash", {"command": "pytest -q tests/test_pay.py"}, id=f"call_{step}")
    return Reply(tool_calls=(call,), usage=usage)


def samples(document: Path) -> list[str]:
    """The blocks of output."""
    return re.findall(r"^```text\n(.*?)^```", document.read_text(), re.MULTILINE | re.DOTALL)


# Every block of output in README and the book *Use it*: the test that prints it, or why none does.
SHOWN = {
    "docs/quickstart.md": ["test_the_summary_of_wrap_is_what_is_printed"],
    "docs/clients/cline.md": ["an address to type, which nothing prints"],
}
_NO_OUTPUT = {"bash", "json", "python", "toml", "yaml"}


def test_every_sample_is_printed_or_says_why_not() -> None:
    """A new one, with whatever name for its language, has no row yet."""
    use = [ROOT / "docs" / f"{name}.md" for name in ("quickstart", "wrap", "history", "hooks")]
    found = {}
    for page in (ROOT / "README.md", *use, *sorted((ROOT / "docs/clients").glob("*.md"))):
        fences = re.findall(r"^ *```(.*)$", page.read_text(), re.MULTILINE)[::2]
        others = [each for each in fences if each.strip() not in _NO_OUTPUT]
        if others:
            found[str(page.relative_to(ROOT))] = len(others)
    assert found == {name: len(rows) for name, rows in SHOWN.items()}
    named = [row for rows in SHOWN.values() for row in rows if row.startswith("test_")]
    assert set(named) <= globals().keys()


@pytest.mark.slow
def test_the_summary_of_wrap_is_what_is_printed(tmp_path: Path) -> None:
    """The quick start shows it line by line; the run's id alone is another."""
    with ScriptedUpstream(seven_times_the_same) as upstream:
        env = environment_of_a_new_user(tmp_path, upstream.base_url)
        agent = (sys.executable, "-c", AGENT)
        ended = run("wrap", "--", *agent, directory=tmp_path, env=env)
    assert ended.returncode == 0, ended.stderr
    [sample] = samples(ROOT / "docs/quickstart.md")
    printed = ended.stderr.partition("\n")[2]  # the first line has the address
    [run_id] = set(re.findall(r"c-[a-z0-9]{24}\.0", printed))
    [shown_id] = set(re.findall(r"c-[a-z0-9]{24}\.0", sample))
    assert printed.replace(run_id, shown_id) == sample
