"""Calls that agents write as text."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.step import Action, Step
from gateway.steering.transcript.steps import extract
from tests.steering.builders import Message, assistant, call, system, tool, user

ONE_BLOCK = system(
    "Your response must contain exactly ONE bash code block with ONE command.\n\n"
    "```bash\nyour_command_here\n```"
)
RETURNED = "<returncode>0</returncode>\n<output>\na.py\n</output>"


def actions(*messages: Message) -> tuple[Action, ...]:
    (step,) = extract([user(), *messages])
    return step.actions


class TestReAct:
    """`Action:`, `Action Input:`, `Observation:`."""

    def test_the_next_user_message_is_the_observation(self) -> None:
        """Its label is removed, and the thought is the text before the action."""
        reply = 'I need it.\nThought: look it up\nAction: search\nAction Input: {"q": "x"}'
        (step,) = extract([user(), assistant(reply), user("Observation: found\nit")])
        assert step == Step(
            index=0,
            thought="I need it.\nlook it up",
            actions=(Action(name="search", arguments='{"q": "x"}', observation="found\nit"),),
        )

    def test_an_observation_in_the_same_message_is_taken(self) -> None:
        """Some clients append the result to the reply; the next reply follows directly."""
        reply = "Thought: go\nAction: ls\nAction Input: .\nObservation: a.py\nb.py"
        steps = extract([user(), assistant(reply), assistant("Final Answer: done")])
        assert steps[0].actions == (Action(name="ls", arguments=".", observation="a.py\nb.py"),)
        assert not steps[1].actions

    def test_several_actions_in_one_message_are_all_kept(self) -> None:
        """A scratchpad sent as one message contains many."""
        reply = (
            "Thought: a\nAction: ls\nAction Input: .\nObservation: x\n"
            "Thought: b\nAction 2: cat\nAction Input 2: x\nObservation:"
        )
        (step,) = extract([user(), assistant(reply), user("Observation: text")])
        assert [(a.name, a.observation) for a in step.actions] == [("ls", "x"), ("cat", "text")]
        assert step.thought == "a\nb"

    def test_a_real_observation_replaces_an_imagined_one(self) -> None:
        """A model that runs past its stop word invents results."""
        reply = "Action: ls\nAction Input: .\nObservation: made up"
        assert actions(assistant(reply), user("Observation: real"))[0].observation == "real"
        assert actions(assistant(reply), user("thanks"))[0].observation == "made up"

    def test_bold_labels_and_code_marks_are_understood(self) -> None:
        """Models decorate the labels."""
        reply = "**Thought:** go\n**Action:** `ls`\n**Action Input:** ."
        assert actions(assistant(reply)) == (Action(name="ls", arguments="."),)

    def test_the_bracket_form(self) -> None:
        """`Action: search[x]`, with or without a result after it."""
        assert actions(assistant("Action 1: Search[Colorado [river]]")) == (
            Action(name="Search", arguments="Colorado [river]"),
        )
        reply = "Action 1: Search[x]\nObservation 1: found"
        assert actions(assistant(reply))[0].observation == "found"

    def test_the_json_form(self) -> None:
        """An object with `action` and `action_input`, fenced or not."""
        blob = '{"action": "search", "action_input": {"q": 1}}'
        expected = (Action(name="search", arguments='{"q": 1}'),)
        assert actions(assistant(f"Action: {blob}")) == expected
        assert actions(assistant(f"Thought: x\nAction:\n```json\n{blob}\n```")) == expected

    @pytest.mark.parametrize(
        "reply",
        [
            'Action:\n```\n{"action": "Final Answer", "action_input": "42"}\n```',
            "Thought: I know.\nFinal Answer: 42",
            "Action: none",
            "Action: {broken",
            "Action: {}",
            "Action: {x}",
            "The Action: you asked for",
            "Action items follow.",
            "Action Input: alone",
        ],
    )
    def test_texts_that_are_not_calls(self, reply: str) -> None:
        """A final answer, and texts that only contain the words."""
        assert actions(assistant(reply), user("ok")) == ()


class TestListedCalls:
    """Calls a client wrote down as "Calling tools:" with their results as user text."""

    LISTED = (
        "Thought: weather\nCalling tools:\n[{'id': 'call_1', 'type': 'function', 'function': "
        "{'name': 'weather', 'arguments': {'city': \"L'Aquila\"}}}]"
    )

    def test_a_list_in_python_form(self) -> None:
        """Objects become JSON again; the label of the result is removed."""
        (step,) = extract([user(), assistant(self.LISTED), user("Observation:\nsunny")])
        assert step == Step(
            index=0,
            thought="weather",
            actions=(
                Action(name="weather", arguments='{"city": "L\'Aquila"}', observation="sunny"),
            ),
        )

    def test_content_as_parts(self) -> None:
        """The form in which clients send it."""
        parts = [{"type": "text", "text": self.LISTED}]
        answer = [{"type": "text", "text": "Call id: call_1\nObservation:\nsunny"}]
        assert actions(assistant(parts), user(answer))[0].observation == "sunny"

    def test_an_error_comes_without_the_call_id(self) -> None:
        """The id names a call that is already matched."""
        answer = user("Call id: call_1\nError:\nno such city")
        (action,) = actions(assistant(self.LISTED), answer)
        assert (action.observation, action.is_error) == ("Error:\nno such city", False)

    def test_code_before_the_calls_is_not_part_of_the_thought(self) -> None:
        """A code agent's program is in the reply and in the list of calls."""
        reply = (
            "Thought: add\n<code>\nprint(1 + 1)\n</code>\nCalling tools:\n[{'id': 'call_2', 'type':"
            " 'function', 'function': {'name': 'python_interpreter', 'arguments': 'print(1 + 1)'}}]"
        )
        (step,) = extract([user(), assistant(reply), user("Observation:\nExecution logs:\n2")])
        assert (step.thought, step.actions) == (
            "add",
            (
                Action(
                    name="python_interpreter",
                    arguments="print(1 + 1)",
                    observation="Execution logs:\n2",
                ),
            ),
        )

    def test_a_list_in_json_form_and_plain_entries(self) -> None:
        """Entries without a `function` object are read as they are; others are left out."""
        reply = 'Calling tools: [{"name": "a", "arguments": "x"}, {"name": "b"}, 5]'
        found = actions(assistant(reply), user("both"))
        assert found == (Action(name="a", arguments="x", observation="both"), Action(name="b"))

    def test_a_broken_list_still_gives_the_names(self) -> None:
        """Cut lists lose their arguments, not the calls."""
        reply = "Calling tools:\n[{'name': 'a', 'arguments': {'x': 1, {'name': 'b'"
        assert [a.name for a in actions(assistant(reply))] == ["a", "b"]

    @pytest.mark.parametrize("reply", ["Calling tools: []", "Calling tools: [x", "Calling tools:"])
    def test_an_empty_list_is_no_call(self, reply: str) -> None:
        """The message is a step, without an action."""
        assert actions(assistant(reply)) == ()

    def test_an_error_reported_in_text_does_not_end_the_run(self) -> None:
        """In a conversation of written calls, a message that begins with Error is the harness."""
        steps = extract(
            [
                user(),
                assistant(self.LISTED),
                user("Observation:\nsunny"),
                assistant("no call"),
                user("Error:\nNo call found. Now let's retry."),
                assistant(self.LISTED),
            ]
        )
        assert [not step.actions for step in steps] == [False, True, False]


class TestBlocks:
    """A block of code that the next user message answers."""

    REPLY = "THOUGHT: look around\n\n```bash\nls -a\n```"
    STEP = Step(
        index=0,
        thought="look around",
        actions=(Action(name="bash", arguments="ls -a", observation=RETURNED),),
    )

    def test_an_answer_that_is_program_output_makes_it_a_call(self) -> None:
        """When the prompt does not mention blocks, the answer decides."""
        assert extract([user(), assistant(self.REPLY), user(RETURNED)]) == (self.STEP,)

    @pytest.mark.parametrize("prompt", [ONE_BLOCK, {**ONE_BLOCK, "role": "user"}])
    def test_a_prompt_that_asks_for_blocks_makes_it_a_call(self, prompt: Message) -> None:
        """Then any answer is the result, also one of an unknown form."""
        (step,) = extract([prompt, user(), assistant(self.REPLY), user("a.py")])
        assert step.actions[0].observation == "a.py"

    @pytest.mark.parametrize(
        "answer", ["Thanks, that works!", "Why bash?", "It says: exit code 1", ""]
    )
    def test_a_persons_answer_leaves_it_a_text(self, answer: str) -> None:
        """A chat reply that shows a command is not a call, and keeps its text."""
        (step,) = extract([user(), assistant(self.REPLY), user(answer)])
        assert step == Step(index=0, thought=self.REPLY)

    @pytest.mark.parametrize(
        "answer",
        [
            "<output>x</output>",
            "Observation: x",
            "OUTPUT: x",
            "stdout:\nx",
            "exitcode: 0 (execution succeeded)",
            "Exit code 1",
            "Command output:\nx",
            "Execution result: x",
        ],
    )
    def test_forms_of_program_output(self, answer: str) -> None:
        """The beginnings of answers of known harnesses."""
        assert actions(assistant(self.REPLY), user(answer))

    def test_a_known_protocol_stays(self) -> None:
        """After one block was run, later ones are calls with any answer and without a language."""
        steps = extract(
            [
                user(),
                assistant(self.REPLY),
                user(RETURNED),
                assistant("```\npwd\n```\nor\n```\nls\n```"),
                user("a.py"),
            ]
        )
        assert steps[1].actions == (Action(name="bash", arguments="ls", observation="a.py"),)

    def test_nothing_later_changes_a_reading(self) -> None:
        """A block answered before the protocol was known stays a text."""
        messages = [user(), assistant(self.REPLY), user("hm"), assistant(self.REPLY)]
        first = extract(messages)[0]
        assert first == extract([*messages, user(RETURNED), assistant(self.REPLY)])[0]
        assert first.actions == ()

    def test_blocks_of_other_languages_are_text(self) -> None:
        """Code of another language is not a shell call."""
        assert actions(assistant("```python\nprint(1)\n```"), user(RETURNED)) == ()

    def test_several_shell_blocks_are_one_call(self) -> None:
        """One user message answers them all."""
        (action,) = actions(assistant("```sh\na\n```\nthen\n```bash\nb\n```"), user(RETURNED))
        assert action.arguments == "a\nb"

    @pytest.mark.parametrize(
        ("reply", "name", "code"),
        [
            ("THOUGHT: x\n<mswea_bash_command>ls</mswea_bash_command>", "bash", "ls"),
            ("Thought: x\n<code>\nf()\n</code>", "python_interpreter", "f()"),
            ("x <bash>a</bash> <bash>b</bash> <bash>", "bash", "a\nb"),
        ],
    )
    def test_tagged_blocks(self, reply: str, name: str, code: str) -> None:
        """A tag counts like a fence."""
        (action,) = actions(assistant(reply), user("Observation: ok"))
        assert (action.name, action.arguments) == (name, code)

    def test_a_prompt_that_explains_tags_makes_them_calls(self) -> None:
        """Code agents describe the tag and the observation that follows."""
        prompt = system("Write code in <code> and </code>; you get an Observation: back.")
        (step,) = extract([prompt, assistant("<code>f()</code>")])
        assert step.actions == (Action(name="python_interpreter", arguments="f()"),)

    def test_a_format_complaint_is_no_user_turn(self) -> None:
        """The message without a block is a step of the run, not its end."""
        complaint = "Please always provide EXACTLY ONE action in triple backticks, found 0 actions."
        steps = extract([ONE_BLOCK, user(), assistant("hm"), user(complaint), assistant("ok")])
        assert len(steps) == 2

    @pytest.mark.parametrize(
        "prompt",
        [
            "Answer in exactly one sentence.",
            "Use ```bash fences when you show commands.",
            "Be kind.",
        ],
    )
    def test_ordinary_prompts_do_not_ask_for_blocks(self, prompt: str) -> None:
        """A prompt with a fence, or one asking for one of something else, is not enough."""
        (step,) = extract([system(prompt), user(), assistant(self.REPLY), user("thanks")])
        assert step.actions == ()


def test_a_conversation_with_real_calls_is_not_searched_for_written_ones() -> None:
    """Its texts may talk about actions and show commands."""
    steps = extract(
        [
            ONE_BLOCK,
            assistant(None, call("ls")),
            tool("a.py"),
            assistant("Action: ls\nAction Input: ."),
            user("Observation: x"),
            assistant(TestBlocks.REPLY),
            user(RETURNED),
        ]
    )
    assert [len(step.actions) for step in steps] == [1, 0, 0]


def test_real_calls_win_over_written_ones() -> None:
    """In a message with both, only the real calls count."""
    assert [a.name for a in actions(assistant("Action: x\nAction Input: y", call("ls")))] == ["ls"]


_LINES = st.sampled_from(
    [
        *("Thought: x", "Action: ls", "Action Input: .", "Observation: a", "Final Answer: 1"),
        *("```bash", "```", "ls", "Calling tools:", "[{'name': 'a'}]", "<code>", "</code>", ""),
        *("Action: s[x]", 'Action: {"action": "x"}', "[[[[", "Error:", "<returncode>0", "{'a': 1"),
    ]
)
_TEXT = st.lists(_LINES, max_size=8).map("\n".join)


@given(st.lists(st.tuples(st.sampled_from(["user", "assistant"]), _TEXT), max_size=8))
def test_readings_use_nothing_that_comes_later(turns: list[tuple[str, str]]) -> None:
    """Every step but the newest of any prefix is the same in the whole transcript."""
    messages: list[dict[str, Any]] = [{"role": role, "content": text} for role, text in turns]
    whole = extract(messages)
    for end in range(len(messages)):
        closed = extract(messages[:end])[:-1]
        assert whole[: len(closed)] == closed
