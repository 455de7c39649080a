"""How tool calls are read."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.steering.evidence.commands import read_call


def call(name: str, **arguments: object):
    """The call as read, from keyword arguments."""
    return read_call(name, json.dumps(arguments))


@pytest.mark.parametrize(
    ("command", "operation"),
    [
        ("cd /repo && python -m pytest tests", "$python"),
        ("FOO=1 ./gradlew test", "$gradlew"),
        ("grep -rn x src | head -5", "$grep"),
        ("timeout 30 sudo npm test", "$npm"),
        ("# just a comment", "$sh"),
        ("", "$sh"),
        ("/", "$"),
    ],
)
def test_a_shell_call_is_named_by_its_program(command: str, operation: str) -> None:
    """One shell tool is many operations: what counts is the program, past `cd` and wrappers."""
    assert call("bash", command=command).operation == operation


def test_a_subcommand_belongs_to_the_operation() -> None:
    """An editor tool with several commands is several operations."""
    assert call("str_replace_editor", command="view", path="/a").operation == (
        "str_replace_editor.view"
    )


@pytest.mark.parametrize("runs", ["command", "exec", "env A=1", "sudo", "time", "nohup"])
def test_the_program_behind_a_builtin_is_what_runs(runs: str) -> None:
    """`command fd` runs `fd`, while `command -v fd` only asks where it is."""
    assert call("bash", command=f"{runs} fd -e log").operation == "$fd"
    for asks in ("command -v fd", "cd src && command -V fd"):
        assert call("bash", command=asks).operation == "$command"
        assert call("bash", command=asks).effect.looks_up


def test_key_order_and_spacing_do_not_make_another_call() -> None:
    """Clients re-serialise arguments; the call stays the same."""
    one = read_call("search", '{"query": "a  b", "n": 1}')
    two = read_call("search", '{"n":1,"query":"a b"}')
    assert one.canonical == two.canonical


@pytest.mark.parametrize(
    "command",
    ["echo x > a.txt", "sed -i s/a/b/ f", "git checkout .", "rm -rf build", "pip install x"],
)
def test_commands_that_change_files(command: str) -> None:
    """Writing, deleting, installing and checking out change the world."""
    assert call("bash", command=command).effect.changes


@pytest.mark.parametrize(
    "command", ["cat a.txt", "grep -n error src", "ls 2>/dev/null", "python x.py 2>&1"]
)
def test_commands_that_change_nothing(command: str) -> None:
    """Reading and redirecting errors change nothing."""
    assert not call("bash", command=command).effect.changes


def test_the_same_test_is_recognised_behind_plumbing() -> None:
    """`cd`, redirections and `| tail` do not make another test run."""
    one = call("bash", command="cd /repo && pytest tests/test_a.py 2>&1 | tail -20")
    two = call("bash", command="pytest tests/test_a.py")
    assert one.program == two.program == "pytest tests/test_a.py"


def test_reading_commands_run_no_program() -> None:
    """A reader is no test, whatever the file is called."""
    assert call("bash", command="cat tests/test_a.py").program is None


EDITS = [
    ("str_replace_editor", {"command": "str_replace", "path": "/a.py", "old_str": "x",
                            "new_str": "y"}),
    ("edit_file", {"file_path": "/a.py", "old_string": "x", "new_string": "y"}),
    ("apply_patch", {"input": "*** Begin Patch\n*** Update File: /a.py\n@@\n-x\n+y\n*** End"}),
    ("edit", {"path": "/a.py", "edits": [{"old_text": "x", "new_text": "y"}]}),
]  # fmt: skip


@pytest.mark.parametrize(("name", "arguments"), EDITS)
def test_edits_of_every_editor_are_compared_alike(name: str, arguments: dict) -> None:
    """Path, old and new text are found in each editor's own form."""
    (edit,) = call(name, **arguments).edits
    assert edit.path == "/a.py"
    assert (edit.old, edit.new) == (hash("x"), hash("y"))


def test_a_line_edit_is_kept_apart_by_its_place() -> None:
    """Without an old text the lines say which part of the file is meant."""
    one = call("edit", path="a", lines="5:5", text="x").edits[0]
    two = call("edit", path="a", lines="9:9", text="x").edits[0]
    assert one.path != two.path


def test_viewing_is_no_edit() -> None:
    """An editor's view command changes nothing."""
    assert call("str_replace_editor", command="view", path="/a.py").edits == ()


def test_a_patch_may_touch_several_files() -> None:
    """One edit per file of a patch, with nothing but the patch as arguments."""
    patch = "--- a/x.py\n+++ b/x.py\n-1\n+2\n--- a/y.py\n+++ b/y.py\n-3\n+4\n"
    assert [edit.path for edit in read_call("apply_patch", patch).edits] == ["x.py", "y.py"]


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=8,
)


@given(st.sampled_from(["bash", "edit", "run_tests", "x", ""]), json_values)
def test_any_arguments_are_read(name: str, value: object) -> None:
    """Arguments of any JSON type are read without an exception."""
    read_call(name, json.dumps(value))


@given(st.sampled_from(["bash", "apply_patch", "search"]), st.text(max_size=300))
def test_any_text_is_read_as_arguments(name: str, text: str) -> None:
    """Arguments that are no JSON are read without an exception."""
    read_call(name, text)
