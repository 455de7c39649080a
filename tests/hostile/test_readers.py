"""What reads a tool call or a message costs linear time, whatever is in it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from gateway.core.decision_settings import Policy
from gateway.steering.runs_of_transcript import ConversationFold
from gateway.text.secrets import find_secrets
from steering_gateway_testing.growth import exceeds_linear

SIZES = [4096, 16384, 65536]
UNITS = (
    "sed -i 's/a/",
    "sed -i 's#a#b#' f; ",
    "<<<<<<< SEARCH\n",
    "<<<<<<< SEARCH\na\n=======\n",
    "<",
    "cat <<E\n",
    "cat > f <<'E1'\n",
    "<<a>",
    "tee ",
    "```\n```sh\n",
    "[STEERING GUIDANCE]\n",
    "Action: x\nAction Input: ",
    "Calling tools: [",
    "*** Update File: a\n-",
    " ",
    "\n",
    "\\",
    "a",
    "a=",
    "{",
    "<code>",
)
SECRETIVE = (
    *("token=", "secret;secret=", "api_key: ", "sk-", "eyJa.", "://a:", "Bearer ", "curl -u "),
    *("-----BEGIN PRIVATE KEY-----", "password='", "pwd:", "ghp_" + "a" * 30, "--password "),
)


def call_of(name: str, arguments: str) -> Callable[[], object]:
    function = {"name": name, "arguments": arguments}
    call = {"id": "c1", "type": "function", "function": function}
    return fold_of({"role": "assistant", "content": None, "tool_calls": [call]})


def fold_of(reply: dict[str, Any]) -> Callable[[], object]:
    messages = [
        {"role": "system", "content": "Reply with exactly one ```bash block."},
        {"role": "user", "content": "Do it."},
        reply,
        {"role": "user", "content": "<output>ok</output>"},
        {"role": "assistant", "content": "Done."},
    ]
    return lambda: ConversationFold(Policy()).extend(messages)


READERS: dict[str, Callable[[str], Callable[[], object]]] = {
    "command": lambda text: call_of("bash", text),
    "patch": lambda text: call_of("apply_patch", text),
    "reply": lambda text: fold_of({"role": "assistant", "content": text}),
    "secrets": lambda text: lambda: find_secrets(text),
}


@pytest.mark.parametrize("kind", READERS)
def test_a_step_is_read_in_linear_time(kind: str) -> None:
    """Commands, patches and replies that repeat one unit cost linear time, and so do all texts in
    which secrets are looked for."""
    slow = {}
    for unit in (*UNITS, *SECRETIVE) if kind == "secrets" else UNITS:
        longest = unit * (SIZES[-1] // len(unit) + 1)

        def text(size: int, longest: str = longest) -> str:
            return longest[:size]

        if reason := exceeds_linear(READERS[kind], text, SIZES):
            slow[unit] = reason
    assert not slow
