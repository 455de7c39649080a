"""Steps from chat messages with real calls, and from plain records."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.decision_settings import Policy
from gateway.core.guidance_text import frame
from gateway.core.step import Action, Step
from gateway.steering.runs_of_transcript import ConversationFold
from gateway.steering.transcript.steps import extract, steps_from_records
from tests.steering.builders import Message, assistant, call, system, tool, user


def only(*messages: Any) -> Step:
    (step,) = extract([user(), *messages])
    return step


def test_one_step_is_one_assistant_message_with_its_answers() -> None:
    """System and user messages are not steps; the index counts from 0."""
    steps = extract(
        [
            system(),
            user(),
            assistant("I look.", call("ls", '{"path": "."}')),
            tool("a.py"),
            assistant("Done."),
        ]
    )
    assert steps == (
        Step(
            index=0,
            thought="I look.",
            actions=(Action(name="ls", arguments='{"path": "."}', observation="a.py"),),
        ),
        Step(index=1, thought="Done."),
    )
    assert [not step.actions for step in steps] == [False, True]


def test_parallel_calls_are_all_kept_and_matched_by_id() -> None:
    """Answers in another order still find their calls."""
    step = only(
        assistant(None, call("a", id="1"), call("b", id="2"), call("c", id="3")),
        tool("for b", "2"),
        tool("for c", "3"),
        tool("for a", "1"),
    )
    assert [(a.name, a.observation) for a in step.actions] == [
        ("a", "for a"),
        ("b", "for b"),
        ("c", "for c"),
    ]


@pytest.mark.parametrize(
    ("call_ids", "answer_ids"),
    [
        ((None, None), (None, None)),
        (("x", "x"), ("x", "x")),
        (("x", "y"), (None, None)),
        (("x", "y"), ("p", "q")),
        (("x", "y"), ("p", "x")),
        (("", 5), ("", 5)),
    ],
)
def test_without_usable_ids_the_order_decides(
    call_ids: tuple[Any, Any], answer_ids: tuple[Any, Any]
) -> None:
    """With missing, doubled or unknown ids, answers go to the open calls in order."""
    step = only(
        assistant(None, *[call(f"t{i}", id=id) for i, id in enumerate(call_ids)]),
        *[tool(f"r{i}", id) for i, id in enumerate(answer_ids)],
    )
    swapped = answer_ids[1] == call_ids[0] != call_ids[1]
    assert [a.observation for a in step.actions] == (["r1", "r0"] if swapped else ["r0", "r1"])


def test_an_unanswered_call_has_an_empty_observation() -> None:
    """A call at the end of a run is an action too."""
    assert only(assistant(None, call("submit"))).actions == (Action(name="submit", arguments="{}"),)


def test_surplus_answers_are_left_out() -> None:
    """A result sent twice does not add a call."""
    step = only(assistant(None, call("a")), tool("one"), tool("again"))
    assert [a.observation for a in step.actions] == ["one"]


def test_a_late_answer_still_belongs_to_its_call() -> None:
    """A user message between call and result does not separate them."""
    step = only(assistant(None, call("a")), user("hurry"), tool("late"))
    assert step.actions[0].observation == "late"


def test_legacy_functions_are_calls() -> None:
    """`function_call` with a message of role `function` as the answer."""
    step = only(
        assistant(None, function_call={"name": "f", "arguments": '{"x": 1}'}),
        {"role": "function", "name": "f", "content": "2"},
    )
    assert step.actions == (Action(name="f", arguments='{"x": 1}', observation="2"),)


def test_custom_tools_are_calls() -> None:
    """A custom tool has text input instead of arguments."""
    custom = {"id": "c1", "type": "custom", "custom": {"name": "patch", "input": "*** Begin"}}
    assert only(assistant(None, custom)).actions[0] == Action(name="patch", arguments="*** Begin")


def test_anthropic_parts_are_calls_and_results() -> None:
    """tool_use and tool_result parts inside content are read, thinking is reasoning."""
    step = only(
        assistant(
            [
                {"type": "thinking", "thinking": "hm", "signature": "s"},
                {"type": "text", "text": "I look."},
                {"type": "tool_use", "id": "t1", "name": "ls", "input": {"path": "é"}},
            ]
        ),
        user(
            [
                {
                    "type": "tool_result",
                    "tool_use_id": "t1",
                    "is_error": True,
                    "content": [{"type": "text", "text": "no "}, "such", {"type": "image"}, 5],
                },
                {"type": "text", "text": "go on"},
            ]
        ),
    )
    assert (step.thought, step.reasoning) == ("I look.", "hm")
    assert step.actions == (
        Action(name="ls", arguments='{"path": "é"}', observation="no such", is_error=True),
    )


def test_only_the_protocol_flags_an_error() -> None:
    """`is_error` comes from an explicit flag, never from the words of a result."""
    calls = assistant(None, call("a", id="1"), call("b", id="2"))
    step = only(calls, tool("Traceback: error", "1"), tool("fine", "2", is_error=True))
    assert [a.is_error for a in step.actions] == [False, True]
    assert not only(assistant(None, call()), tool("x", is_error="yes")).actions[0].is_error


@pytest.mark.parametrize(
    ("content", "thought"),
    [
        ("  text \n", "text"),
        ([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}], "ab"),
        ([{"type": "output_text", "text": "a"}, {"text": "b"}, "c"], "abc"),
        ([{"type": "refusal", "refusal": "no"}], "no"),
        ([{"type": "image_url"}, {"type": "text", "text": 5}, None, 7, []], ""),
        (None, ""),
        ("", ""),
        (42, "42"),
        (1.5, "1.5"),
        (True, ""),
        ({"type": "text", "text": "alone"}, "alone"),
    ],
)
def test_content_in_every_form(content: Any, thought: str) -> None:
    """Text parts are joined, white space at the ends is cut, unknown parts are left out."""
    assert only(assistant(content)).thought == thought


def test_a_refusal_is_a_thought() -> None:
    """It replaces the missing text."""
    assert only(assistant(None, refusal="I cannot.")).thought == "I cannot."
    assert only(assistant("text", refusal=None)).thought == "text"


@pytest.mark.parametrize(
    "message",
    [
        assistant("x", reasoning_content="why"),
        assistant("x", reasoning="why"),
        assistant("x", reasoning_content=None, reasoning="why"),
        assistant([{"type": "reasoning", "text": "why"}, "x"]),
    ],
)
def test_reasoning_is_kept_next_to_the_thought(message: Message) -> None:
    """From `reasoning_content`, `reasoning`, or parts of the content."""
    assert (only(message).thought, only(message).reasoning) == ("x", "why")


def test_our_own_guidance_is_never_part_of_a_step() -> None:
    """A frame that comes back in a reply, a result or a user message is left out."""
    ours = frame(["Try something else."])
    step = only(
        assistant(f"I look.\n\n{ours}", call()), user(ours), tool(f"a.py\n{ours}"), system(ours)
    )
    assert (step.thought, step.actions[0].observation) == ("I look.", "a.py")
    fold = ConversationFold(Policy())
    fold.extend([user(), assistant("Done."), user(ours)])
    assert len(fold.runs) == 1, "a message with guidance alone is not a user message"


@pytest.mark.parametrize(
    ("arguments", "text"),
    [('{"a":1}', '{"a":1}'), ({"a": 1}, '{"a": 1}'), (None, ""), (5, "5"), ({"a": {1}}, "")],
)
def test_arguments_are_kept_as_sent(arguments: Any, text: str) -> None:
    """Text as it is; an object becomes JSON, what cannot be serialised is left empty."""
    assert only(assistant(None, call("f", arguments))).actions[0].arguments == text


def test_one_reply_sent_as_two_messages_is_one_step() -> None:
    """Calls without text, directly after a message without calls, belong to that message."""
    steps = extract([user(), assistant("I look."), assistant("", call("ls")), tool("a.py")])
    assert steps == (
        Step(
            index=0,
            thought="I look.",
            actions=(Action(name="ls", arguments="{}", observation="a.py"),),
        ),
    )


@pytest.mark.parametrize(
    "between_or_second",
    [
        [assistant("Me too.", call("ls"))],
        [assistant("Me too.")],
        [assistant("", call("ls"), reasoning="why")],
        [user("go on"), assistant("", call("ls"))],
        [None, assistant("", call("ls"))],
    ],
)
def test_other_neighbouring_replies_stay_two_steps(between_or_second: list[Any]) -> None:
    """A second text, or anything in between, makes it another reply."""
    assert len(extract([user(), assistant("I look."), *between_or_second])) == 2


def test_two_calls_in_a_row_stay_two_steps() -> None:
    """Histories whose results were dropped keep their steps."""
    assert len(extract([user(), assistant(None, call("a")), assistant(None, call("b"))])) == 2


@pytest.mark.parametrize("calls", [[None], ["x"], [{}], [{"function": 5}], {"function": {}}, [[]]])
def test_a_call_that_cannot_be_read_keeps_its_place(calls: Any) -> None:
    """Its result is still an action, without a name."""
    step = only({"role": "assistant", "content": None, "tool_calls": calls}, tool("r"))
    assert step.actions == (Action(name="", observation="r"),)


@pytest.mark.parametrize("calls", ["x", 5, True, [], {}, None])
def test_calls_of_a_wrong_type_are_none(calls: Any) -> None:
    """A result that follows is an action by itself."""
    bare = {"role": "assistant", "content": "text", "tool_calls": calls}
    assert only(bare).actions == ()
    assert only(bare, tool("r", name="ls")).actions == (Action(name="ls", observation="r"),)


def test_results_without_a_step_are_ignored() -> None:
    """Before the first assistant message, and after the user's reply to a final answer."""
    assert extract([tool("r"), user([{"type": "tool_result", "content": "r"}])]) == ()
    step = only(assistant("Done."), user("thanks"), tool("r"))
    assert step.actions == ()
    part = user([{"type": "tool_result", "content": "r"}])
    assert only(assistant("Done."), user("thanks"), part).actions == ()


_SCALARS = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=6))
_JSON = st.recursive(
    _SCALARS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(
            st.sampled_from(["type", "text", "id", "name", "function", "arguments", "content"]),
            inner,
            max_size=4,
        ),
    ),
    max_leaves=12,
)
_ROLES = st.sampled_from(["assistant", "tool", "user", "system", "function", "developer", "?"])
_KEYS = (
    *("content", "tool_calls", "function_call", "tool_call_id"),
    *("reasoning", "refusal", "is_error"),
)
_GARBAGE = st.one_of(
    _JSON,
    st.fixed_dictionaries({"role": st.one_of(_ROLES, _JSON)}, optional=dict.fromkeys(_KEYS, _JSON)),
)


@given(st.lists(_GARBAGE, max_size=8))
def test_garbage_never_raises(messages: list[Any]) -> None:
    """Whatever the messages are, there are at most as many steps as assistant messages."""
    replies = [m for m in messages if isinstance(m, dict) and m.get("role") == "assistant"]
    steps = extract(messages)
    assert len(steps) <= len(replies)
    assert [step.index for step in steps] == list(range(len(steps)))
    for boundary in ("final_answer", "never"):
        ConversationFold(Policy(run_boundary=boundary)).extend(messages)


@given(at=st.integers(0, 9), garbage=_GARBAGE)
def test_one_malformed_message_loses_no_other_step(at: int, garbage: Any) -> None:
    """The other assistant messages of a run are still one step each."""
    run: list[Any] = [user()]
    for number in range(3):
        run += [assistant(f"thought {number}", call(id=f"c{number}")), tool("r", f"c{number}")]
    run += [assistant("one"), user("two"), assistant("three")]
    run[at] = garbage
    rest = sum(
        1 for m in run if m is not garbage and isinstance(m, dict) and m["role"] == "assistant"
    )
    assert rest <= len(extract(run)) <= rest + 1


def test_deep_nesting_never_raises() -> None:
    """Nesting beyond the recursion limit reads as nothing."""
    deep: Any = []
    for _ in range(100_000):
        deep = [deep]
    step = only(assistant(deep, call("f", deep)), tool(deep))
    assert step == Step(index=0, actions=(Action(name="f"),))


class TestRecords:
    """Plain step records (reference 1.1)."""

    def test_every_key_is_optional(self) -> None:
        """An empty record is a step that says and does nothing."""
        assert steps_from_records([{}]) == (Step(index=0),)

    def test_the_keys(self) -> None:
        """action, action_input, thought, observation, and both names of the error flag."""
        record = {"action": "ls", "action_input": ".", "thought": "t", "observation": "o"}
        action = Action(name="ls", arguments=".", observation="o", is_error=True)
        expected = Step(index=0, thought="t", actions=(action,))
        for flag in ("is_error", "observation_is_error"):
            assert steps_from_records([{**record, flag: True}]) == (expected,)

    @pytest.mark.parametrize(
        ("calls", "name"),
        [
            (["ls", "cat"], "ls"),
            ([{"name": "ls"}], "ls"),
            ([{"function": {"name": "ls"}}], "ls"),
            ([], ""),
            ("ls", ""),
            ([5], ""),
        ],
    )
    def test_the_first_of_tool_calls_replaces_a_missing_action(self, calls: Any, name: str) -> None:
        """Used when `action` is missing or empty."""
        (step,) = steps_from_records([{"action": "", "tool_calls": calls, "observation": "o"}])
        assert step.actions == (Action(name=name, observation="o"),)
        (named,) = steps_from_records([{"action": "rm", "tool_calls": calls}])
        assert named.actions[0].name == "rm"

    def test_texts_of_another_type_are_empty(self) -> None:
        """Only strings count as action_input, thought and observation."""
        (step,) = steps_from_records(
            [{"action": 5, "action_input": {"a": 1}, "thought": 1, "observation": []}]
        )
        assert step == Step(index=0)

    def test_a_value_that_is_not_a_mapping_is_an_empty_step(self) -> None:
        """An invalid record keeps its place in the list."""
        records: list[Any] = [None, {"action": "ls"}]
        assert [step.index for step in steps_from_records(records)] == [0, 1]

    @given(st.lists(_JSON, max_size=5))
    def test_any_record_is_read(self, records: list[Any]) -> None:
        """Never raises, one step per record."""
        assert len(steps_from_records(records)) == len(records)


def test_a_number_too_long_to_serialise_is_left_empty() -> None:
    """The interpreter refuses to convert integers of thousands of digits to text."""
    assert only(assistant(10**5000)).thought == ""


def test_a_reasoning_item_without_parts_is_empty() -> None:
    """Whatever its content is."""
    items: list[Any] = [{"type": "reasoning", "content": True, "summary": 5}, assistant("x")]
    assert extract(items)[0].reasoning == ""
