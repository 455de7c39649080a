"""How a request is matched: retry, continue, fork, compaction, side request, new."""

from __future__ import annotations

import json
from typing import Any

import pytest
from msgspec.structs import replace

from gateway.conversations.apply_reply import note_delivered, note_ended
from gateway.steering.identity import (
    Awaits,
    MatchKind,
    PrefixHashRef,
    child_id,
    conversation_id,
    match,
)
from gateway.wire.prefix_hash import extend, start_state
from tests.conversations.driver import TENANT, Driver, answers, calls, result, says

NEW, CONTINUE, RETRY = MatchKind.NEW, MatchKind.CONTINUE, MatchKind.RETRY
FORK, COMPACTION, SIDE = MatchKind.FORK, MatchKind.COMPACTION, MatchKind.SIDE

TASK = says("Fix the bug")
FIRST = [TASK]
SECOND = [TASK, calls("ls"), result("a.py")]
THIRD = [*SECOND, calls("cat a.py"), result("pass")]
ID = {"x-conversation-id": "job-7"}
OWN = conversation_id(TENANT, "job-7")
AGAIN = {"x-stainless-retry-count": "1"}


def a_driver(**how: Any) -> Driver:
    """A conversation with two requests served, its last reply a call that is not answered yet."""
    driver = Driver()
    driver.turn(FIRST, calls("ls"), **how)
    driver.turn(SECOND, calls("cat a.py"), **how)
    return driver


# Continue.


@pytest.mark.parametrize("headers", [{}, ID])
def test_an_extended_history_continues(headers: dict[str, str]) -> None:
    """A history that continues after the latest reply stays in its conversation."""
    driver = Driver()
    opened = driver.turn(FIRST, calls("ls"), headers=headers)
    second = driver.turn(SECOND, calls("cat a.py"), headers=headers)
    third = driver.turn(THIRD, answers("Done"), headers=headers)
    later = driver.turn([*THIRD, answers("Done"), says("Thanks")], answers("!"), headers=headers)
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
    driver = a_driver()
    rendered = [
        *SECOND,
        {"role": "assistant", "content": [{"type": "text", "text": "Calling tools: [cat]"}]},
        says("Observation: pass"),
    ]
    assert driver.begin(rendered).match.position == len(SECOND)
    assert driver.begin(rendered, headers=AGAIN).kind is RETRY


def test_missed_steps_continue() -> None:
    """Requests that did not go through the gateway do not split a conversation."""
    driver = a_driver()
    unseen = [*THIRD, calls("x"), result("y"), calls("z"), result("w")]
    assert driver.begin(unseen).kind is CONTINUE


def test_a_final_call_without_tools_continues() -> None:
    """A request without tools that extends the history (a forced last answer) is the next one."""
    for headers in ({}, ID):
        driver = a_driver(headers=headers)
        assert driver.begin(THIRD, tools=None, headers=headers).kind is CONTINUE


def test_a_reply_may_be_continued_itself() -> None:
    """A request that ends with the latest reply, without a user message, continues it."""
    driver = Driver()
    opened = driver.turn(FIRST, answers("Part one"))
    more = driver.turn([TASK, answers("Part one")], answers("Part two"))
    both = driver.begin([TASK, answers("Part one"), answers("Part two"), says("And?")])
    assert [more.kind, both.kind] == [CONTINUE, CONTINUE]
    assert both.conversation == opened.conversation


REUSED = "call_gpt4oGivesThisIdAgain00"


def test_reused_call_ids_do_not_give_a_run_away() -> None:
    """A provider gives one id to calls of several customers: each history stays with its own run,
    and one that began elsewhere is new, even if call, id and result are equal."""
    driver = Driver()
    lookup, found = calls("look up the flight", REUSED), result("HAT001", REUSED)
    one, other, third = ([says(f"I am customer {n}.")] for n in range(3))
    homes = [driver.turn(task, lookup).conversation for task in (one, other)]
    later = driver.begin([*other, lookup, found])
    assert (later.kind, later.conversation) == (CONTINUE, homes[1])
    stranger = driver.begin([*third, answers("Your flight?"), says("HAT1"), lookup, found])
    assert (stranger.kind, len({*homes, stranger.conversation})) == (NEW, 3)
    rewritten = {"role": "assistant", "content": "Calling tools: [look up the flight]"}
    first = driver.begin([*one, rewritten, says("Observation: HAT001")])
    assert (first.kind, first.conversation) == (CONTINUE, homes[0])


def test_a_short_history_with_reused_call_ids_belongs_to_the_run_that_waits() -> None:
    """An agent that keeps its newest messages only is still found by the ids of its calls."""
    driver = Driver()
    opened = driver.turn(FIRST, calls("ls", "call_aaaaaaaaaaaaaaaaaaaa"))
    driver.turn(
        [*FIRST, calls("ls", "call_aaaaaaaaaaaaaaaaaaaa"), result("a.py")], calls("x", REUSED)
    )
    cut = [says("Summary"), calls("ls"), result("a.py"), calls("x", REUSED), result("y", REUSED)]
    on = driver.begin(cut)
    assert (on.kind, on.conversation) == (COMPACTION, opened.conversation)


# Retry.


@pytest.mark.parametrize("headers", [AGAIN, ID, {"x-session-id": "s"}])
def test_the_same_history_again_is_a_retry(headers: dict[str, str]) -> None:
    """A request that its client marks as a retry, or sends under its id, changes no state."""
    driver = a_driver(headers={} if headers is AGAIN else headers)
    before = dict(driver.branches)
    again = driver.begin(SECOND, headers=headers)
    assert again.kind is RETRY
    assert driver.branches == before
    assert again.match.position == again.request.hashes.state.count


@pytest.mark.parametrize(
    "change",
    [{"model": "another"}, {"messages": [{"role": "system", "content": "You review"}, *SECOND]}],
    ids=["another model", "another role"],
)
def test_another_agent_with_equal_words_is_no_retry(change: dict[str, Any]) -> None:
    """The same history for another model or by another role is another agent's; an exclusive id
    names one conversation all the same."""
    for headers, kind in (({}, FORK), (AGAIN, FORK), ({"x-session-id": "s"}, FORK), (ID, RETRY)):
        driver = a_driver(headers={} if headers is AGAIN else headers)
        if kind is FORK and headers is AGAIN and "model" not in change:
            continue  # the mark of the SDK is proof, and roles differ by the day
        assert driver.begin(**{"messages": SECOND, **change}, headers=headers).kind is kind


@pytest.mark.parametrize("delivered", [True, False], ids=["one after another", "at a time"])
def test_samples_of_one_prompt_are_runs_of_their_own(delivered: bool) -> None:
    """Equal openings, each answered, open as many conversations, and each continues alone."""
    driver = Driver()
    opened = []
    for _ in range(5):
        opened.append(driver.begin(FIRST))
        if delivered:
            driver.finish(opened[-1], calls(f"ls {len(opened)}"))
    if not delivered:
        for n, call in enumerate(opened, 1):
            driver.finish(call, calls(f"ls {n}"))
    assert [call.kind for call in opened] == [NEW] * 5
    homes = [call.conversation for call in opened]
    assert len(set(homes)) == 5
    for n, home in enumerate(homes, 1):
        on = driver.turn([TASK, calls(f"ls {n}"), result("a.py")], answers("Done"))
        assert (on.kind, on.conversation) == (CONTINUE, home)


@pytest.mark.parametrize("sent", [True, False], ids=["sent later", "cut off later"])
def test_an_answer_under_way_is_not_asked_for_again(sent: bool) -> None:
    """A sample that comes while the answer before it is recorded and sent is a run of its own; what
    was cut off on its way is retried afterwards."""
    driver = Driver()
    first = driver.begin(FIRST)
    decision, applied = driver.answer(first, calls("ls 1"))
    second = driver.begin(FIRST)
    assert second.kind is NEW
    if sent:
        note_delivered(decision, applied)
    note_ended(decision)
    again = driver.begin(FIRST)
    assert (again.kind, again.conversation == first.conversation) == (
        (NEW, False) if sent else (RETRY, True)
    )


def test_equal_samples_keep_as_many_conversations() -> None:
    """Samples with equal answers continue in as many conversations as were opened."""
    driver = Driver()
    homes = {driver.turn(FIRST, calls("ls")).conversation for _ in range(3)}
    on = [driver.turn(SECOND, calls("cat a.py")) for _ in range(3)]
    assert {call.kind for call in on} == {CONTINUE}
    assert {call.conversation for call in on} == homes
    later = [driver.turn(THIRD, answers("Done")) for _ in range(3)]
    assert {call.conversation for call in later} == homes


def test_a_sample_within_a_run_is_a_fork() -> None:
    """A later call repeated after its answer was delivered opens a child at the same place."""
    driver = a_driver()
    sample = driver.begin(SECOND)
    assert (sample.kind, sample.match.position) == (FORK, len(SECOND))
    driver.finish(sample, calls("cat b.py"))
    on = driver.begin([*SECOND, calls("cat b.py"), result("pass")])
    assert (on.kind, on.conversation) == (CONTINUE, sample.conversation)
    back = driver.begin(THIRD)
    assert (back.kind, back.conversation) == (CONTINUE, sample.match.parent)


def test_failed_samples_are_retried_each_in_its_own_run() -> None:
    """Parallel samples whose first attempts all failed are retried one for one."""
    for headers in ({}, AGAIN):
        driver = Driver()
        opened = [driver.begin(FIRST) for _ in range(3)]
        for call in opened:
            driver.fail(call)
        again = [driver.begin(FIRST, headers=headers) for _ in range(3)]
        assert {call.kind for call in again} == {RETRY}
        assert {call.conversation for call in again} == {call.conversation for call in opened}


def test_an_empty_answer_may_be_asked_again() -> None:
    """A reply without text and calls is no answer: the same request is a retry."""
    driver = Driver()
    opened = driver.turn(FIRST, answers(""))
    again = driver.begin(FIRST)
    assert (again.kind, again.conversation) == (RETRY, opened.conversation)


def test_equal_openings_are_told_apart_by_model_role_and_call_ids() -> None:
    """Agents with equal words and equal answers keep their conversations where anything else
    differs: the model, the role, a word late in the system text, or the ids of calls."""
    role = {"role": "system", "content": "You are a careful engineer. " * 20}
    late = {"role": "system", "content": role["content"] + "Your name is Bo, agent 2."}
    agents: list[dict[str, Any]] = [
        {"model": "small"},
        {"model": "large"},
        {"messages": [{"role": "system", "content": "You review"}]},
        {"messages": [role]},
        {"messages": [late]},
        {"tools": [{"type": "function", "function": {"name": "search"}}]},
        {"id": "call_aaaaaaaaaaaaaaaaaaaa"},
        {"id": "call_bbbbbbbbbbbbbbbbbbbb"},
    ]

    def ask(agent: dict[str, Any], turns: int) -> str:
        ids = [f"{agent['id']}_{turn}" if "id" in agent else "call_1" for turn in range(turns + 1)]
        history = [*agent.get("messages", []), TASK]
        for id in ids[:-1]:
            history += [calls("ls", id), result("a.py", id)]
        how = {key: agent[key] for key in ("model", "tools") if key in agent}
        return driver.turn(history, calls("ls", ids[-1]), **how).conversation

    driver = Driver()
    homes = [ask(agent, 0) for agent in agents]
    assert len(set(homes)) == len(agents)
    for turns in range(1, 4):
        assert [ask(agent, turns) for agent in reversed(agents)] == homes[::-1]


def test_a_late_retry_is_a_retry() -> None:
    """A retry header refers to the old call, even when the conversation has continued."""
    driver = a_driver()
    late = driver.begin(FIRST, headers=AGAIN)
    assert late.kind is RETRY
    assert driver.begin(THIRD).conversation == late.conversation


def test_a_failed_call_may_be_sent_again_or_changed() -> None:
    """After a failed call the same body is a retry, and a changed last message continues."""
    driver = a_driver()
    call = driver.begin(THIRD)
    driver.fail(call)
    again = driver.begin(THIRD)
    assert (again.kind, again.conversation) == (RETRY, call.conversation)
    shorter = [*THIRD[:-1], result("[cut]")]
    changed = driver.begin(shorter)
    assert (changed.kind, changed.conversation) == (CONTINUE, call.conversation)


# Fork.


def test_two_different_continuations_fork() -> None:
    """The second of two different continuations becomes a child; each then continues alone."""
    driver = a_driver()
    first = driver.turn(THIRD, answers("Done"))
    other = [*SECOND, calls("cat a.py"), result("fail")]
    second = driver.turn(other, calls("x"))
    assert (first.kind, second.kind) == (CONTINUE, FORK)
    assert second.match.parent == first.conversation
    assert second.match.position == 4
    assert second.conversation != first.conversation
    on = driver.begin([*other, calls("x"), result("y")])
    assert (on.kind, on.conversation) == (CONTINUE, second.conversation)
    back = driver.begin([*THIRD, answers("Done"), says("More")])
    assert (back.kind, back.conversation) == (CONTINUE, first.conversation)


def test_a_fork_is_retried_in_its_child() -> None:
    """The forking request sent again is a retry of the child."""
    driver = a_driver()
    driver.turn(THIRD, answers("Done"))
    fork = driver.begin([*SECOND, calls("cat a.py"), result("fail")])
    driver.fail(fork)
    again = driver.begin([*SECOND, calls("cat a.py"), result("fail")])
    assert (again.kind, again.conversation) == (RETRY, fork.conversation)


def test_two_continuations_in_progress_fork() -> None:
    """Two continuations at the same time are distinguished before either is answered."""
    driver = Driver()
    driver.turn(FIRST, calls("ls"))
    one = driver.begin([TASK, calls("ls"), result("1")])
    two = driver.begin([TASK, calls("ls"), result("2")])
    assert (one.kind, two.kind) == (CONTINUE, FORK)


def test_a_request_in_parallel_to_one_in_progress_forks() -> None:
    """A request that extends an unanswered one without a reply does not continue it."""
    driver = Driver()
    driver.begin(FIRST)
    assert driver.begin([TASK, says("Be quick")]).kind is FORK


def test_an_old_request_sent_again_forks() -> None:
    """An older history without a retry header is a second attempt from that point."""
    driver = a_driver()
    driver.turn(THIRD, answers("Done"))
    fork = driver.begin(SECOND)
    assert fork.kind is FORK
    assert fork.match.position == len(SECOND)


def test_an_old_opening_sent_again_is_new() -> None:
    """The first request of a longer conversation opens another one; both stay separate."""
    driver = a_driver()
    first = driver.begin(THIRD)
    second = driver.turn(FIRST, calls("ls"))
    assert second.kind is NEW
    assert second.conversation != first.conversation
    repeated = driver.begin(SECOND)
    assert (repeated.kind, repeated.conversation) == (CONTINUE, second.conversation)


def test_a_rerun_is_not_a_retry_of_the_finished_run() -> None:
    """A run that repeats a finished one exactly keeps its own conversation to the end."""
    driver = Driver()
    steps = [(FIRST, calls("ls")), (SECOND, calls("cat a.py")), (THIRD, answers("Done"))]
    runs = [{driver.turn(history, reply).conversation for history, reply in steps} for _ in "ab"]
    assert [len(run) for run in runs] == [1, 1]
    assert runs[0] != runs[1]


def test_an_edit_does_not_take_over_a_run_with_the_same_opening() -> None:
    """A changed history forks from its own conversation, not from one with the same opening."""
    driver = a_driver()
    edited = driver.branches[next(iter(driver.branches))].conversation_id
    other = driver.turn(FIRST, calls("pwd"))
    assert other.kind is NEW
    fork = driver.begin([TASK, calls("ls"), result("nothing")])
    assert (fork.kind, fork.match.parent) == (FORK, edited)
    on = driver.begin([TASK, calls("pwd"), result("/")])
    assert (on.kind, on.conversation) == (CONTINUE, other.conversation)


# New.


def test_unknown_histories_are_new() -> None:
    """Without an id, a history without a known prefix hash opens a conversation."""
    driver = a_driver()
    for history in ([says("Another task")], [says("A summary of what was done"), *SECOND[1:]], []):
        call = driver.begin(history)
        assert (call.kind, call.match.position) == (NEW, 0)


def test_only_system_messages_are_always_new() -> None:
    """Requests with system messages alone are never the same conversation."""
    driver = Driver()
    system = [{"role": "system", "content": "s"}]
    first, second = driver.turn(system, answers("Hi")), driver.turn(system, answers("Hello"))
    assert (first.kind, second.kind) == (NEW, NEW)
    on = driver.begin([*system, answers("Hello"), says("Help")])
    assert (on.kind, on.conversation) == (CONTINUE, second.conversation)


def test_a_title_request_without_an_id_stays_alone() -> None:
    """A title request with the first message alone does not become the conversation."""
    driver = Driver()
    title = driver.turn(FIRST, answers("Bug"), tools=None)
    opened = driver.turn(FIRST, calls("ls"))
    on = driver.begin(SECOND)
    assert (title.kind, opened.kind, on.kind) == (NEW, NEW, CONTINUE)
    assert on.conversation == opened.conversation != title.conversation


# Ids from the client.


def test_an_id_names_the_conversation() -> None:
    """The same history under another id, or under none, is another conversation."""
    driver = a_driver(headers=ID)
    assert set(driver.branches) == {OWN}
    other = driver.begin(THIRD, headers={"x-conversation-id": "job-8"})
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
    driver = a_driver(headers=ID)
    call = driver.turn(history, calls("ls"), headers=ID)
    assert (call.kind, call.conversation) == (COMPACTION, OWN)
    on = driver.begin([*history, calls("ls"), result("a.py")], headers=ID)
    assert (on.kind, on.conversation) == (CONTINUE, OWN)


def test_a_summary_after_a_final_answer_is_a_compaction() -> None:
    """An agent that asks for a summary and continues with it alone keeps its conversation."""
    driver = a_driver(headers=ID)
    driver.turn([*THIRD, says("Summarise")], answers("We looked at a.py"), headers=ID)
    call = driver.begin([says("Continue: we looked at a.py")], headers=ID)
    assert (call.kind, call.conversation) == (COMPACTION, OWN)


def test_a_summary_that_keeps_the_opening_is_a_compaction() -> None:
    """The same when the user's messages are kept before the summary."""
    driver = a_driver(headers=ID)
    driver.turn([*THIRD, says("Summarise")], answers("We looked at a.py"), headers=ID)
    call = driver.begin([TASK, says("Summary: we looked at a.py")], headers=ID)
    assert (call.kind, call.conversation, call.match.position) == (COMPACTION, OWN, 1)


@pytest.mark.parametrize("headers", [ID, {"x-session-id": "s"}])
def test_a_compacted_item_continues_a_run_that_awaits_results(headers: dict[str, str]) -> None:
    """A provider's own compaction, on another route, may come between a call and its results."""
    driver = a_driver(headers=headers)
    item = {"type": "compaction", "encrypted_content": "opaque"}
    call = driver.begin([TASK, item], headers=headers)
    assert (call.kind, call.conversation) == (COMPACTION, next(iter(driver.branches)))


def test_a_context_overflow_is_a_compaction() -> None:
    """A summary alone after a failed call continues: clients do so when the context is too long."""
    driver = a_driver(headers=ID)
    driver.fail(driver.begin(THIRD, headers=ID))
    assert driver.begin([says("Summary")], headers=ID).kind is COMPACTION


def test_a_new_list_of_tasks_keeps_the_conversation() -> None:
    """After a final answer, a new list under the same id is the next run of the conversation."""
    driver = Driver()
    driver.turn(FIRST, answers("Done"), headers=ID)
    for history in ([says("Next task")], FIRST):
        call = driver.turn(history, answers("Done"), headers=ID)
        assert (call.kind, call.conversation) == (COMPACTION, OWN)


def test_a_second_agent_under_one_id_gets_a_child() -> None:
    """While an agent is working, another opening under its id is another agent."""
    driver = Driver()
    main = driver.turn(FIRST, calls("ls"), headers=ID)
    helper = driver.turn([says("Search the web")], calls("find"), headers=ID)
    assert (helper.kind, helper.match.parent, helper.match.position) == (FORK, OWN, 0)
    third = driver.begin([says("Read the docs")], headers=ID)
    assert third.kind is FORK
    on = driver.begin([says("Search the web"), calls("find"), result("x")], headers=ID)
    back = driver.begin(SECOND, headers=ID)
    assert (on.kind, on.conversation) == (CONTINUE, helper.conversation)
    assert (back.kind, back.conversation) == (CONTINUE, main.conversation)
    assert third.conversation not in (main.conversation, helper.conversation)


def test_another_role_under_one_id_gets_a_child() -> None:
    """An agent with other tools is not the agent whose id it uses, even when that one is idle."""
    driver = a_driver(headers=ID)
    driver.turn(THIRD, answers("Done"), headers=ID)
    tools = [{"type": "function", "function": {"name": "search"}}]
    call = driver.begin([says("Find"), calls("x"), result("y")], headers=ID, tools=tools)
    assert (call.kind, call.match.parent) == (FORK, OWN)


def test_the_same_opening_in_parallel_gets_a_child() -> None:
    """Agents with one opening under one id are one until they differ, then child and parent."""
    driver = Driver()
    driver.turn(FIRST, calls("ls"), headers=ID)
    assert driver.turn(FIRST, calls("pwd"), headers=ID).kind is RETRY
    one = driver.turn(SECOND, calls("cat a.py"), headers=ID)
    two = driver.turn([TASK, calls("pwd"), result("/")], calls("x"), headers=ID)
    late = driver.begin(FIRST, headers=ID)
    assert [one.kind, two.kind, late.kind] == [CONTINUE, FORK, FORK]
    assert len({one.conversation, two.conversation, late.conversation}) == 3


def test_a_fork_of_a_fork_stays_under_the_id() -> None:
    """A fork of a fork is still matched under the id."""
    driver = a_driver(headers=ID)
    driver.turn(THIRD, calls("x"), headers=ID)
    fork = driver.turn([*THIRD[:-1], result("fail")], calls("y"), headers=ID)
    driver.turn([*THIRD[:-1], result("fail"), calls("y"), result("1")], calls("z"), headers=ID)
    grandchild = driver.begin([*THIRD[:-1], result("fail"), calls("y"), result("2")], headers=ID)
    assert (grandchild.kind, grandchild.match.parent) == (FORK, fork.conversation)
    assert driver.begin([*THIRD, calls("x"), result("1")], headers=ID).conversation == OWN


# Side requests.


@pytest.mark.parametrize(
    "history",
    [[says("Write a title for: Fix the bug")], SECOND, FIRST, [says("Summarise"), *SECOND]],
    ids=["title", "same history", "opening", "summary"],
)
def test_side_requests_touch_no_state(history: list[Any]) -> None:
    """A request under the id without tools, which continues nothing, is a side request."""
    driver = a_driver(headers=ID)
    branches, refs = dict(driver.branches), json.dumps(list(map(str, driver.refs.items())))
    side = driver.turn(history, answers("A title"), headers=ID, tools=None)
    assert (side.kind, side.conversation) == (SIDE, OWN)
    assert driver.branches == branches
    assert json.dumps(list(map(str, driver.refs.items()))) == refs
    assert driver.begin(THIRD, headers=ID).kind is CONTINUE


def test_a_title_request_in_parallel_to_the_opening_is_a_side_request() -> None:
    """A title request that quotes the opening while that is in progress does not extend it."""
    driver = Driver()
    opened = driver.begin(FIRST, headers=ID)
    title = driver.begin([TASK, says("Write a title")], headers=ID, tools=[])
    assert title.kind is SIDE
    driver.finish(opened, calls("ls"))
    assert driver.begin(SECOND, headers=ID).kind is CONTINUE


@pytest.mark.parametrize("title", [FIRST, [says("Write a title for: Fix the bug")]])
def test_a_title_request_that_comes_first_does_not_keep_the_id(title: list[Any]) -> None:
    """The conversation that follows a title request takes over the id."""
    driver = Driver()
    early = driver.begin(title, headers=ID, tools=None)
    opened = driver.begin(FIRST, headers=ID)
    driver.finish(early, answers("Bug"))
    driver.finish(opened, calls("ls"))
    on = driver.begin(SECOND, headers=ID)
    assert [early.kind, opened.kind, on.kind] == [NEW, NEW, CONTINUE]
    assert {early.conversation, opened.conversation, on.conversation} == {OWN}


def test_a_conversation_without_tools_has_no_side_requests() -> None:
    """When no request has tools, a request without tools is not a side request."""
    driver = Driver()
    driver.turn(FIRST, answers("How?"), headers=ID, tools=None)
    on = driver.begin([TASK, answers("How?"), says("So")], headers=ID, tools=None)
    assert on.kind is CONTINUE


# Weak ids.


def test_a_shared_cache_key_does_not_mix_conversations() -> None:
    """Under one prompt cache key each opening is its own branch; a proven compaction is one."""
    driver = Driver()
    key: dict[str, Any] = {"prompt_cache_key": "my-app"}
    first = driver.turn(FIRST, answers("Done"), **key)
    other = driver.turn([says("Hi")], answers("Hello"), **key)
    chat = driver.turn([says("No tools here")], answers("Fine"), tools=None, **key)
    tools = driver.turn([says("Tools again")], calls("ls"), **key)
    rewritten = driver.begin([says("Summary"), calls("nothing"), result("x")], **key)
    assert [c.kind for c in (first, other, chat, tools, rewritten)] == [NEW, FORK, FORK, FORK, FORK]
    on = driver.begin([says("Hi"), answers("Hello"), says("Go")], **key)
    assert (on.kind, on.conversation) == (CONTINUE, other.conversation)
    proven = driver.begin([says("Summary"), calls("ls"), result("x")], **key)
    assert (proven.kind, proven.conversation) == (COMPACTION, tools.conversation)


# The pure function by itself.


def test_prefix_hashes_of_unknown_branches_are_ignored() -> None:
    """A stored prefix hash whose branch is not among the candidates does not count."""
    driver = a_driver()
    call = driver.begin(THIRD)
    assert match(call.request, driver.refs, {}).kind is NEW
    assert match(call.request, driver.refs, {}, conversation_id=OWN).kind is NEW


def test_a_resumed_request_matches_the_same() -> None:
    """Prefix hashes computed from a saved state match like those of the whole history."""
    driver = a_driver()
    served = extend(start_state(TENANT), SECOND)
    whole = driver.begin(THIRD).request
    driver = a_driver()
    resumed = extend(served.state, THIRD[served.state.count :])
    assert resumed.state.digest == whole.hashes.state.digest
    known = {prefix_hash: driver.refs.get(prefix_hash, ()) for _, prefix_hash in resumed.candidates}
    for hashes in (resumed, whole.hashes):
        request = type(whole)(hashes=hashes, signature=whole.signature, has_tools=True)
        verdict = match(request, known, driver.branches)
        assert (verdict.kind, verdict.position) == (CONTINUE, 4)


def test_branches_follow_replies_to_the_latest_request_only() -> None:
    """A reply to a request that is no longer the latest, or its failure, changes nothing."""
    driver = Driver()
    old = driver.turn(FIRST, calls("ls")).request.hashes.state.digest
    call = driver.begin(SECOND)
    branch = driver.branches[call.conversation]
    assert branch.answered(old, b"x", final=True) is branch
    assert branch.failed(old) is branch
    assert branch.awaits is Awaits.MODEL
    assert branch.failed(branch.served_hash).awaits is Awaits.ANYTHING
    assert branch.answered(branch.served_hash, b"x", final=False).awaits is Awaits.TOOLS
    assert not branch.is_extended_by(
        PrefixHashRef(conversation_id="another", served=branch.served_hash)
    )


def test_a_taken_child_id_is_not_used_again() -> None:
    """Two forks with the same request from the same parent, a while apart, are two children."""
    driver = Driver()
    driver.turn(FIRST, calls("ls"), headers=ID)
    helper = [says("Search")]
    first = driver.turn(helper, calls("find"), headers=ID)
    driver.turn([*helper, calls("find"), result("x")], answers("Found"), headers=ID)
    again = driver.begin(helper, headers=ID)
    assert again.kind is FORK
    assert first.conversation == child_id(OWN, first.request.hashes.state.digest)
    assert again.conversation not in (first.conversation, OWN)


def test_a_prompt_alone_can_be_retried() -> None:
    """A request with a system prompt alone is matched as a retry by its id."""
    driver = Driver()
    system = {"role": "system", "content": "Greet the user."}
    opened = driver.turn([system], answers("Hello"), headers=ID)
    again = driver.turn([system], answers("Hello"), headers=ID)
    assert (opened.kind, again.kind) == (NEW, RETRY)
    history = [system, answers("Hello"), says("Book a flight")]
    assert driver.begin(history, headers=ID).kind is CONTINUE


def test_a_branch_that_another_gateway_has_continued() -> None:
    """What is known of it here is on the way to the request, whose prefix the store knows."""
    driver = Driver()
    first = driver.turn(FIRST, calls("ls"), headers=ID)
    history = [*FIRST, calls("ls"), result("x")]
    elsewhere = driver.begin(history, headers=ID)
    conversation = driver.index.get(OWN)
    assert conversation is not None
    behind = replace(first.resolved.incoming.open_branch(OWN), awaits=Awaits.TOOLS)
    conversation.history.branch = behind
    driver.index.add_prefix_hash(conversation, *[elsewhere.request.hashes.state.digest] * 2)
    later = driver.begin([*history, calls("cat"), result("y")], headers=ID)
    assert (later.kind, later.conversation) == (CONTINUE, OWN)
