"""What a request does to its conversation: retry, continue, fork, compaction, side request, new."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.steering.conversation import (
    Awaits,
    HeadRef,
    MatchKind,
    child_id,
    conversation_id,
    match,
)
from gateway.wire.heads import chain_digests
from tests.steering.identity_shell import (
    TENANT,
    Shell,
    answers,
    calls,
    result,
    says,
)

NEW, CONTINUE, RETRY = MatchKind.NEW, MatchKind.CONTINUE, MatchKind.RETRY
FORK, COMPACTION, SIDE = MatchKind.FORK, MatchKind.COMPACTION, MatchKind.SIDE

TASK = says("Fix the bug")
FIRST = [TASK]
SECOND = [TASK, calls("ls"), result("a.py")]
THIRD = [*SECOND, calls("cat a.py"), result("pass")]
ID = {"x-conversation-id": "job-7"}
OWN = conversation_id(TENANT, "job-7")
AGAIN = {"x-stainless-retry-count": "1"}


def a_shell(**how: Any) -> Shell:
    """A conversation with two requests served, its last reply a call that is not answered yet."""
    shell = Shell()
    shell.turn(FIRST, calls("ls"), **how)
    shell.turn(SECOND, calls("cat a.py"), **how)
    return shell


# Continue.


@pytest.mark.parametrize("headers", [{}, ID])
def test_an_extended_history_continues(headers: dict[str, str]) -> None:
    """A history that goes on from the latest reply stays in its conversation."""
    shell = Shell()
    opened = shell.turn(FIRST, calls("ls"), headers=headers)
    second = shell.turn(SECOND, calls("cat a.py"), headers=headers)
    third = shell.turn(THIRD, answers("Done"), headers=headers)
    later = shell.turn([*THIRD, answers("Done"), says("Thanks")], answers("!"), headers=headers)
    assert [call.kind for call in (opened, second, third, later)] == [
        NEW,
        CONTINUE,
        CONTINUE,
        CONTINUE,
    ]
    assert {call.conversation for call in (second, third, later)} == {opened.conversation}
    assert (second.match.position, third.match.position) == (2, 4)


def test_a_rewritten_reply_continues() -> None:
    """A client that turns calls into text still extends the request it sent before."""
    shell = a_shell()
    rendered = [
        *SECOND,
        {"role": "assistant", "content": [{"type": "text", "text": "Calling tools: [cat]"}]},
        says("Observation: pass"),
    ]
    assert shell.begin(rendered).match.position == len(SECOND)
    assert shell.begin(rendered).kind is RETRY


def test_missed_steps_continue() -> None:
    """Requests that went past the gateway do not break a conversation."""
    shell = a_shell()
    unseen = [*THIRD, calls("x"), result("y"), calls("z"), result("w")]
    assert shell.begin(unseen).kind is CONTINUE


def test_a_final_call_without_tools_continues() -> None:
    """A request without tools that extends the history (a forced last answer) is the next one."""
    for headers in ({}, ID):
        shell = a_shell(headers=headers)
        assert shell.begin(THIRD, tools=None, headers=headers).kind is CONTINUE


def test_a_reply_may_be_continued_itself() -> None:
    """A request that ends in the reply given (no user message between) goes on from it."""
    shell = Shell()
    opened = shell.turn(FIRST, answers("Part one"))
    more = shell.turn([TASK, answers("Part one")], answers("Part two"))
    both = shell.begin([TASK, answers("Part one"), answers("Part two"), says("And?")])
    assert [more.kind, both.kind] == [CONTINUE, CONTINUE]
    assert both.conversation == opened.conversation


# Retry.


@pytest.mark.parametrize("headers", [{}, ID])
@pytest.mark.parametrize(
    "change",
    [
        {},
        {"model": "another"},
        {"messages": [{"role": "system", "content": "It is Tuesday"}, *SECOND]},
    ],
    ids=["same body", "another model", "another system text"],
)
def test_the_same_head_again_is_a_retry(headers: dict[str, str], change: dict[str, Any]) -> None:
    """The same history sent again advances nothing, whatever else changed."""
    shell = a_shell(headers=headers)
    before = dict(shell.branches)
    again = shell.begin(**{"messages": SECOND, **change}, headers=headers)
    assert again.kind is RETRY
    assert shell.branches == before
    assert again.match.position == again.request.heads.state.count


def test_a_late_retry_is_still_one() -> None:
    """A client that says it retries means the old call, though the conversation went on."""
    shell = a_shell()
    late = shell.begin(FIRST, headers=AGAIN)
    assert late.kind is RETRY
    assert shell.begin(THIRD).conversation == late.conversation


def test_a_failed_call_may_be_sent_again_or_otherwise() -> None:
    """After a failed call the same body is a retry, and a changed last message continues."""
    shell = a_shell()
    call = shell.begin(THIRD)
    shell.fail(call)
    again = shell.begin(THIRD)
    assert (again.kind, again.conversation) == (RETRY, call.conversation)
    shorter = [*THIRD[:-1], result("[cut]")]
    changed = shell.begin(shorter)
    assert (changed.kind, changed.conversation) == (CONTINUE, call.conversation)


# Fork.


def test_two_requests_extending_one_head_fork() -> None:
    """The second of two different continuations becomes a child; each then goes its own way."""
    shell = a_shell()
    first = shell.turn(THIRD, answers("Done"))
    other = [*SECOND, calls("cat a.py"), result("fail")]
    second = shell.turn(other, calls("x"))
    assert (first.kind, second.kind) == (CONTINUE, FORK)
    assert second.match.parent == first.conversation
    assert second.match.position == 4
    assert second.conversation != first.conversation
    on = shell.begin([*other, calls("x"), result("y")])
    assert (on.kind, on.conversation) == (CONTINUE, second.conversation)
    back = shell.begin([*THIRD, answers("Done"), says("More")])
    assert (back.kind, back.conversation) == (CONTINUE, first.conversation)


def test_a_fork_is_retried_in_its_child() -> None:
    """The forking request sent again is a retry of the child."""
    shell = a_shell()
    shell.turn(THIRD, answers("Done"))
    fork = shell.begin([*SECOND, calls("cat a.py"), result("fail")])
    again = shell.begin([*SECOND, calls("cat a.py"), result("fail")])
    assert (again.kind, again.conversation) == (RETRY, fork.conversation)


def test_both_on_their_way_fork() -> None:
    """Two continuations at the same time are told apart before either is answered."""
    shell = Shell()
    shell.turn(FIRST, calls("ls"))
    one = shell.begin([TASK, calls("ls"), result("1")])
    two = shell.begin([TASK, calls("ls"), result("2")])
    assert (one.kind, two.kind) == (CONTINUE, FORK)


def test_a_request_beside_one_on_its_way_forks() -> None:
    """A request that extends another before that is answered cannot be its next one."""
    shell = Shell()
    shell.begin(FIRST)
    assert shell.begin([TASK, says("Be quick")]).kind is FORK


def test_an_old_request_sent_anew_forks() -> None:
    """An older history, without a word on retries, is a second try from there."""
    shell = a_shell()
    shell.turn(THIRD, answers("Done"))
    fork = shell.begin(SECOND)
    assert fork.kind is FORK
    assert fork.match.position == len(SECOND)


def test_an_old_opening_sent_anew_is_new() -> None:
    """The opening of a conversation that went on opens another one; both then keep apart."""
    shell = a_shell()
    first = shell.begin(THIRD)
    second = shell.turn(FIRST, calls("ls"))
    assert second.kind is NEW
    assert second.conversation != first.conversation
    same_way = shell.begin(SECOND)
    assert (same_way.kind, same_way.conversation) == (CONTINUE, second.conversation)


def test_a_rerun_is_not_a_retry_of_the_finished_run() -> None:
    """A run that repeats a finished one to the letter keeps its own conversation to the end."""
    shell = Shell()
    steps = [(FIRST, calls("ls")), (SECOND, calls("cat a.py")), (THIRD, answers("Done"))]
    runs = [{shell.turn(history, reply).conversation for history, reply in steps} for _ in "ab"]
    assert [len(run) for run in runs] == [1, 1]
    assert runs[0] != runs[1]


def test_an_edit_does_not_take_over_a_run_with_the_same_opening() -> None:
    """A change in one conversation is its fork, though another stands at their common opening."""
    shell = a_shell()
    edited = shell.branches[next(iter(shell.branches))].conversation_id
    other = shell.turn(FIRST, calls("pwd"))
    assert other.kind is NEW
    fork = shell.begin([TASK, calls("ls"), result("nothing")])
    assert (fork.kind, fork.match.parent) == (FORK, edited)
    on = shell.begin([TASK, calls("pwd"), result("/")])
    assert (on.kind, on.conversation) == (CONTINUE, other.conversation)


# New.


def test_unknown_histories_are_new() -> None:
    """Without an id, a history that nobody stored a head of opens a conversation."""
    shell = a_shell()
    for history in ([says("Another task")], [says("A summary of what was done"), *SECOND[1:]], []):
        call = shell.begin(history)
        assert (call.kind, call.match.position) == (NEW, 0)


def test_only_system_messages_are_always_new() -> None:
    """Requests without any history have nothing in common."""
    shell = Shell()
    system = [{"role": "system", "content": "s"}]
    first, second = shell.turn(system, answers("Hi")), shell.turn(system, answers("Hello"))
    assert (first.kind, second.kind) == (NEW, NEW)
    on = shell.begin([*system, answers("Hello"), says("Help")])
    assert (on.kind, on.conversation) == (CONTINUE, second.conversation)


def test_a_title_request_without_an_id_stays_alone() -> None:
    """A request for a title from the opening alone does not become the conversation."""
    shell = Shell()
    title = shell.turn(FIRST, answers("Bug"), tools=None)
    opened = shell.turn(FIRST, calls("ls"))
    on = shell.begin(SECOND)
    assert (title.kind, opened.kind, on.kind) == (NEW, NEW, CONTINUE)
    assert on.conversation == opened.conversation != title.conversation


# Ids from the client.


def test_an_id_names_the_conversation() -> None:
    """The same history under another id, or under none, is another conversation."""
    shell = a_shell(headers=ID)
    assert set(shell.branches) == {OWN}
    other = shell.begin(THIRD, headers={"x-conversation-id": "job-8"})
    assert (other.kind, other.conversation) == (NEW, conversation_id(TENANT, "job-8"))


@pytest.mark.parametrize(
    "history",
    [
        [says("Summary: ls was run"), calls("cat a.py"), result("pass")],
        [TASK, says("[3 messages dropped]"), calls("cat a.py"), result("pass")],
        [says("Summary"), calls("something else"), result("x")],
        [says("Fix the bug\n<context>"), *SECOND[1:], calls("cat a.py"), result("pass")],
    ],
    ids=["summary and tail", "opening kept", "all rewritten", "first message grown"],
)
def test_a_rewritten_history_is_a_compaction(history: list[Any]) -> None:
    """Under its id, an agent that shortens or rewrites its history keeps its conversation."""
    shell = a_shell(headers=ID)
    call = shell.turn(history, calls("ls"), headers=ID)
    assert (call.kind, call.conversation) == (COMPACTION, OWN)
    on = shell.begin([*history, calls("ls"), result("a.py")], headers=ID)
    assert (on.kind, on.conversation) == (CONTINUE, OWN)


def test_a_summary_after_a_final_answer_is_a_compaction() -> None:
    """An agent that asks for its own summary and goes on from it alone keeps its conversation."""
    shell = a_shell(headers=ID)
    shell.turn([*THIRD, says("Summarise")], answers("We looked at a.py"), headers=ID)
    call = shell.begin([says("Continue: we looked at a.py")], headers=ID)
    assert (call.kind, call.conversation) == (COMPACTION, OWN)


def test_a_summary_that_keeps_the_opening_is_a_compaction() -> None:
    """The same when the user's messages are kept before the summary."""
    shell = a_shell(headers=ID)
    shell.turn([*THIRD, says("Summarise")], answers("We looked at a.py"), headers=ID)
    call = shell.begin([TASK, says("Summary: we looked at a.py")], headers=ID)
    assert (call.kind, call.conversation, call.match.position) == (COMPACTION, OWN, 1)


def test_a_context_overflow_is_a_compaction() -> None:
    """A summary alone after a failed call is how clients answer a context that is too long."""
    shell = a_shell(headers=ID)
    shell.fail(shell.begin(THIRD, headers=ID))
    assert shell.begin([says("Summary")], headers=ID).kind is COMPACTION


def test_a_new_list_of_tasks_keeps_the_conversation() -> None:
    """After a final answer, a new list under the same id is the next run of the conversation."""
    shell = Shell()
    shell.turn(FIRST, answers("Done"), headers=ID)
    for history in ([says("Next task")], FIRST):
        call = shell.turn(history, answers("Done"), headers=ID)
        assert (call.kind, call.conversation) == (COMPACTION, OWN)


def test_a_second_agent_under_one_id_gets_a_child() -> None:
    """While an agent is at work, another opening under its id is another agent."""
    shell = Shell()
    main = shell.turn(FIRST, calls("ls"), headers=ID)
    helper = shell.turn([says("Search the web")], calls("find"), headers=ID)
    assert (helper.kind, helper.match.parent, helper.match.position) == (FORK, OWN, 0)
    third = shell.begin([says("Read the docs")], headers=ID)
    assert third.kind is FORK
    on = shell.begin([says("Search the web"), calls("find"), result("x")], headers=ID)
    back = shell.begin(SECOND, headers=ID)
    assert (on.kind, on.conversation) == (CONTINUE, helper.conversation)
    assert (back.kind, back.conversation) == (CONTINUE, main.conversation)
    assert third.conversation not in (main.conversation, helper.conversation)


def test_another_role_under_one_id_gets_a_child() -> None:
    """An agent with other tools is not the agent whose id it uses, even when that one is idle."""
    shell = a_shell(headers=ID)
    shell.turn(THIRD, answers("Done"), headers=ID)
    tools = [{"type": "function", "function": {"name": "search"}}]
    call = shell.begin([says("Find"), calls("x"), result("y")], headers=ID, tools=tools)
    assert (call.kind, call.match.parent) == (FORK, OWN)


def test_the_same_opening_while_at_work_gets_a_child() -> None:
    """Agents with one opening under one id are one until they differ, then child and parent."""
    shell = Shell()
    shell.turn(FIRST, calls("ls"), headers=ID)
    assert shell.turn(FIRST, calls("pwd"), headers=ID).kind is RETRY
    one = shell.turn(SECOND, calls("cat a.py"), headers=ID)
    two = shell.turn([TASK, calls("pwd"), result("/")], calls("x"), headers=ID)
    late = shell.begin(FIRST, headers=ID)
    assert [one.kind, two.kind, late.kind] == [CONTINUE, FORK, FORK]
    assert len({one.conversation, two.conversation, late.conversation}) == 3


def test_children_of_children_stay_in_the_family() -> None:
    """A fork of a fork is still matched under the id."""
    shell = a_shell(headers=ID)
    shell.turn(THIRD, calls("x"), headers=ID)
    fork = shell.turn([*THIRD[:-1], result("fail")], calls("y"), headers=ID)
    shell.turn([*THIRD[:-1], result("fail"), calls("y"), result("1")], calls("z"), headers=ID)
    grandchild = shell.begin([*THIRD[:-1], result("fail"), calls("y"), result("2")], headers=ID)
    assert (grandchild.kind, grandchild.match.parent) == (FORK, fork.conversation)
    assert shell.begin([*THIRD, calls("x"), result("1")], headers=ID).conversation == OWN


# Side requests.


@pytest.mark.parametrize(
    "history",
    [
        [says("Write a title for: Fix the bug")],
        SECOND,
        FIRST,
        [says("Summarise"), *SECOND],
    ],
    ids=["title", "same history", "opening", "summary"],
)
def test_side_requests_touch_no_state(history: list[Any]) -> None:
    """Without tools, and not the next one, a request under the id is beside the conversation."""
    shell = a_shell(headers=ID)
    branches, refs = dict(shell.branches), json.dumps(list(map(str, shell.refs.items())))
    side = shell.turn(history, answers("A title"), headers=ID, tools=None)
    assert (side.kind, side.conversation) == (SIDE, OWN)
    assert shell.branches == branches
    assert json.dumps(list(map(str, shell.refs.items()))) == refs
    assert shell.begin(THIRD, headers=ID).kind is CONTINUE


def test_a_title_asked_beside_the_opening_is_a_side_request() -> None:
    """A title request that quotes the opening while that is on its way does not extend it."""
    shell = Shell()
    opened = shell.begin(FIRST, headers=ID)
    title = shell.begin([TASK, says("Write a title")], headers=ID, tools=[])
    assert title.kind is SIDE
    shell.finish(opened, calls("ls"))
    assert shell.begin(SECOND, headers=ID).kind is CONTINUE


@pytest.mark.parametrize("title", [FIRST, [says("Write a title for: Fix the bug")]])
def test_a_title_asked_first_leaves_the_id(title: list[Any]) -> None:
    """A title request that arrives before its conversation does not keep the id for itself."""
    shell = Shell()
    early = shell.begin(title, headers=ID, tools=None)
    opened = shell.begin(FIRST, headers=ID)
    shell.finish(early, answers("Bug"))
    shell.finish(opened, calls("ls"))
    on = shell.begin(SECOND, headers=ID)
    assert [early.kind, opened.kind, on.kind] == [NEW, NEW, CONTINUE]
    assert {early.conversation, opened.conversation, on.conversation} == {OWN}


def test_a_conversation_without_tools_has_no_side_requests() -> None:
    """Where nothing has tools, requests without them are the conversation."""
    shell = Shell()
    shell.turn(FIRST, answers("How?"), headers=ID, tools=None)
    on = shell.begin([TASK, answers("How?"), says("So")], headers=ID, tools=None)
    assert on.kind is CONTINUE


# Weak ids.


def test_a_shared_cache_key_does_not_mix_conversations() -> None:
    """Under one prompt cache key each opening is its own branch; a proven compaction is one."""
    shell = Shell()
    key = {"prompt_cache_key": "my-app"}
    first = shell.turn(FIRST, answers("Done"), **key)
    other = shell.turn([says("Hi")], answers("Hello"), **key)
    chat = shell.turn([says("No tools here")], answers("Fine"), tools=None, **key)
    tools = shell.turn([says("Tools again")], calls("ls"), **key)
    rewritten = shell.begin([says("Summary"), calls("nothing"), result("x")], **key)
    assert [c.kind for c in (first, other, chat, tools, rewritten)] == [NEW, FORK, FORK, FORK, FORK]
    on = shell.begin([says("Hi"), answers("Hello"), says("Go")], **key)
    assert (on.kind, on.conversation) == (CONTINUE, other.conversation)
    proven = shell.begin([says("Summary"), calls("ls"), result("x")], **key)
    assert (proven.kind, proven.conversation) == (COMPACTION, tools.conversation)


# The pure function by itself.


def test_heads_of_unknown_branches_are_passed_over() -> None:
    """A stored head whose branch is not among the candidates does not count."""
    shell = a_shell()
    call = shell.begin(THIRD)
    assert match(call.request, shell.refs, {}).kind is NEW
    assert match(call.request, shell.refs, {}, conversation_id=OWN).kind is NEW


def test_a_resumed_request_matches_alike() -> None:
    """Heads read from a saved state on give the same verdict as those of the whole history."""
    shell = a_shell()
    served = chain_digests(SECOND, TENANT)
    whole = shell.begin(THIRD).request
    shell = a_shell()
    resumed = chain_digests(THIRD, TENANT, resume=served.state)
    assert resumed.full == whole.heads.full
    known = {head: shell.refs.get(head, ()) for _, head in resumed.candidates()}
    for heads in (resumed, whole.heads):
        request = type(whole)(heads=heads, signature=whole.signature, has_tools=True)
        verdict = match(request, known, shell.branches)
        assert (verdict.kind, verdict.position) == (CONTINUE, 4)


def test_branches_follow_replies_to_the_latest_request_only() -> None:
    """A reply to, or a failure of, a request that was overtaken changes nothing."""
    shell = Shell()
    old = shell.turn(FIRST, calls("ls")).request.heads.full
    call = shell.begin(SECOND)
    branch = shell.branches[call.conversation]
    assert branch.answered(old, b"x", final=True) is branch
    assert branch.failed(old) is branch
    assert branch.awaits is Awaits.MODEL
    assert branch.failed(branch.served_head).awaits is Awaits.ANYTHING
    assert branch.answered(branch.served_head, b"x", final=False).awaits is Awaits.TOOLS
    assert not branch.holds(HeadRef(conversation_id="another", served=branch.served_head))


def test_a_taken_child_id_is_passed_over() -> None:
    """Two forks with the same request from the same parent, long apart, are two children."""
    shell = Shell()
    shell.turn(FIRST, calls("ls"), headers=ID)
    helper = [says("Search")]
    first = shell.turn(helper, calls("find"), headers=ID)
    shell.turn([*helper, calls("find"), result("x")], answers("Found"), headers=ID)
    again = shell.begin(helper, headers=ID)
    assert again.kind is FORK
    assert first.conversation == child_id(OWN, first.request.heads.full)
    assert again.conversation not in (first.conversation, OWN)


def test_a_prompt_alone_can_be_retried() -> None:
    """An agent that speaks first sends no message of its own; its id tells whose retry it is."""
    shell = Shell()
    system = {"role": "system", "content": "Greet the user."}
    opened = shell.turn([system], answers("Hello"), headers=ID)
    again = shell.turn([system], answers("Hello"), headers=ID)
    assert (opened.kind, again.kind) == (NEW, RETRY)
    history = [system, answers("Hello"), says("Book a flight")]
    assert shell.begin(history, headers=ID).kind is CONTINUE
