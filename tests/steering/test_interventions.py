"""Acts of a person, found in any messages, and by nothing that only looks like one."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.steering.transcript.interventions import (
    KINDS,
    WORDINGS,
    Answer,
    Intervention,
    answer_interventions,
    said_in,
    step_interventions,
)
from gateway.steering.transcript.steps import Action, Step

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
ARGUMENTS = st.fixed_dictionaries(
    {}, optional=dict.fromkeys(("file_path", "old_string", "new_string", "offset"), JSON)
).map(json.dumps)
ACTIONS = st.builds(
    Action,
    name=st.sampled_from(["Read", "Edit", ""]) | TEXTS,
    arguments=ARGUMENTS | TEXTS,
    observation=st.just("updated") | TEXTS,
)
STEPS = st.lists(
    st.builds(
        Step, index=st.integers(), actions=st.lists(ACTIONS).map(tuple), prompted=st.booleans()
    ),
    max_size=4,
)


@given(MESSAGES, st.booleans(), st.booleans(), st.text(max_size=40))
def test_any_messages_are_read(messages: list[Any], cut: bool, dropped: bool, before: str) -> None:
    """Whatever a client sends, its acts have a known kind, and no read raises."""
    answer = Answer(before=before, said=said_in(messages), cut=cut, dropped=dropped)
    found = answer_interventions(answer, of_reply=True)
    assert {act.kind for act in found} <= {kind.name for kind in KINDS}
    assert all(act.of_reply for act in found)


@given(STEPS)
def test_any_steps_are_read(steps: list[Step]) -> None:
    """Each act is about one of the steps."""
    for step in steps:
        for _, about in step_interventions(step, lambda: steps):
            assert about in [each.index for each in steps]


def edit(**changes: Any) -> Action:
    """An edit that was made."""
    arguments = {"file_path": "/a.py", "old_string": "return add(a, b)", "new_string": "return 1"}
    done = "The file /a.py has been updated."
    return Action(
        **({"name": "Edit", "arguments": json.dumps(arguments), "observation": done} | changes)
    )


def look(text: str = "def f():\n    return add(a, b)", **more: Any) -> Action:
    return Action(
        name="Read", arguments=json.dumps({"file_path": "/a.py", **more}), observation=text
    )


@pytest.mark.parametrize(
    ("edited", "between", "seen", "prompted"),
    [
        (edit(), (), look(), False),  # nobody has said anything since
        (edit(), (Action(name="Bash", arguments="{}"),), look(), True),  # it may have done that
        (edit(), (), look("def f():\n    return 1"), True),
        (edit(), (), look("def f():\n    return add(a, b)\n    return 1"), True),
        (edit(), (), look(offset=10), True),  # a part of the file
        (edit(observation="String to replace not found in file."), (), look(), True),
        (edit(is_error=True), (), look(), True),
    ],
)
def test_what_may_have_another_cause_is_no_undone_edit(
    edited: Action, between: tuple[Action, ...], seen: Action, prompted: bool
) -> None:
    """Only what the wire shows for certain."""
    earlier = [Step(index=0, actions=(edited,)), Step(index=1, actions=between)]
    newest = Step(index=2, actions=(seen,), prompted=prompted)
    assert step_interventions(newest, lambda: earlier) == []
    sure = [Step(index=0, actions=(edit(),)), Step(index=1)]
    found = step_interventions(Step(index=2, actions=(look(),), prompted=True), lambda: sure)
    assert found == [(Intervention(kind="undo"), 0)]


def test_a_kind_is_one_row(tmp_path: Path) -> None:
    """A new kind, in a copy of the package: its row is enough for the filter of API and command."""
    shutil.copytree(ROOT / "gateway", tmp_path / "gateway")
    module = tmp_path / "gateway/steering/transcript/interventions.py"
    new = 'Kind("praise", "praised", in_answer=lambda answer: answer.words or None)'
    text = module.read_text(encoding="utf-8")
    assert text.count(")\nKIND_LABELS") == 1
    row = f"    {new},\n)\nKIND_LABELS"
    module.write_text(text.replace(")\nKIND_LABELS", row), encoding="utf-8")
    script = (
        "from gateway.api.params import RunFilters as F\n"
        "from gateway.steering.transcript.interventions import *\n"
        "print(F(intervention='praise').intervention, "
        "[a.kind for a in answer_interventions(Answer(said=('thanks',)), of_reply=True)])"
    )
    shown = subprocess.run(
        [sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert shown.stdout.strip() == "praise ['praise']"
