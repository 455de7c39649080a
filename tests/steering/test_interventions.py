"""Acts of a person, found in any messages, and by nothing that only looks like one."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.step import Action, Step
from gateway.steering.transcript.interventions import (
    KINDS,
    WORDINGS,
    AfterAnswer,
    answer_interventions,
    said_in,
    step_interventions,
)

ROOT = Path(__file__).parents[2]
TEXTS = st.text(max_size=40) | st.sampled_from(
    [*(f"{row.begins}{row.has} The user said:\n no" for row in WORDINGS), "that is wrong", "<a>"]
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | TEXTS,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8) | st.just("text"), inner)
    ),
    max_leaves=8,
)
MESSAGES = st.lists(
    JSON | st.fixed_dictionaries({"role": st.sampled_from(["user", "tool"]), "content": JSON}),
    max_size=5,
)
ACTIONS = st.builds(Action, name=TEXTS, arguments=TEXTS, observation=TEXTS)


@given(MESSAGES, st.booleans(), st.booleans())
def test_any_messages_are_read(messages: list[Any], cut: bool, dropped: bool) -> None:
    """Whatever a client sends, its acts have a known kind, and no read raises."""
    answer = AfterAnswer(said=said_in(messages), cut=cut, dropped=dropped)
    found = answer_interventions(answer, of_reply=True)
    assert {act.kind for act in found} <= {kind.name for kind in KINDS}
    assert all(act.of_reply for act in found)


@given(st.builds(Step, index=st.integers(), actions=st.lists(ACTIONS).map(tuple)))
def test_any_step_is_read(step: Step) -> None:
    """Each act is there once."""
    found = step_interventions(step)
    assert len(set(found)) == len(found)
    assert {act.kind for act in found} <= {"interrupt", "reject", "undo"}


@pytest.mark.parametrize(
    ("result", "kinds"),
    [
        ("The user made the following updates to your content:\n\n@@ -1 +1 @@", ["undo"]),
        ("Successfully modified file: a.py. User modified the `new_string` content", ["undo"]),
        ("File has been modified since read, either by the user or by a linter.", []),
        ("x" * 9000 + "The user modified your proposed changes", []),
        ("I read: [Request interrupted by user]", []),
        ("Request cancelled.", ["interrupt"]),
        ("exec command rejected by user", ["reject"]),
        ("[Operation Cancelled] Reason: User denied execution.", ["reject"]),
        ("[Operation Cancelled] Tool call aborted by user.", ["interrupt"]),
    ],
)
def test_results_show_what_a_person_did(result: str, kinds: list[str]) -> None:
    """In a client's own words, and only what these say for certain."""
    found = step_interventions(Step(index=0, actions=(Action(name="t", observation=result),)))
    assert [act.kind for act in found] == kinds


def test_a_kind_is_one_row(tmp_path: Path) -> None:
    """A new kind, in a copy of the package: its row is enough for the filter of API and command."""
    shutil.copytree(ROOT / "gateway", tmp_path / "gateway")
    module = tmp_path / "gateway/steering/transcript/interventions.py"
    new = 'Kind("praise", "praised", in_answer=lambda answer: [answer.words])'
    text = module.read_text(encoding="utf-8")
    assert text.count(")\nKIND_LABELS") == 1
    row = f"    {new},\n)\nKIND_LABELS"
    module.write_text(text.replace(")\nKIND_LABELS", row), encoding="utf-8")
    script = (
        "from gateway.api.params import RunFilters as F\n"
        "from gateway.steering.transcript.interventions import *\n"
        "print(F(intervention='praise').intervention, "
        "[a.kind for a in answer_interventions(AfterAnswer(said=('thanks',)), of_reply=True)])"
    )
    shown = subprocess.run(
        [sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert shown.stdout.strip() == "praise ['praise']"
