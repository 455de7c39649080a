"""The place of a run: its project, what its agent does, and whether the agent's own instructions
say a rule already. Pure."""

import re
from collections.abc import Sequence
from functools import lru_cache

from gateway.core.pattern import Pattern
from gateway.core.step import Action
from gateway.features.learning.reading import digest, program_of
from gateway.steering.evidence.commands import named_object
from gateway.steering.evidence.failure_keys import read_action
from gateway.stores.records import PromptMessage
from gateway.text.secrets import mask_secrets
from gateway.text.sentences import nearly_equal, sentences

_ENDING = re.compile(r"\.[a-z]\w{0,7}$")


def like_of(action: Action) -> str:
    """The calls that are like this one: the program of a shell call with its sub-command, such as
    `git push`; else the tool, with the ending of the file that it names, such as `Edit .py`."""
    reading = read_action(action)
    head = reading.head
    if head.startswith("$"):
        return program_of(reading.call.command) or head.lstrip("$")
    ending = _ENDING.search(named_object(action.arguments))
    if ending:
        return f"{head} {ending[0]}"
    return head


_FOLDER = re.compile(
    r"(?i)(?:working directory|workspace(?: folder| root| directories)?|\bcwd|current directory"
    r"|project root|repository)\W{1,12}?((?:/|~|[A-Z]:\\)[^\s<>\"'`]{1,300})"
)
_WORKTREE = re.compile(r"[/\\]\.(?:claude[/\\])?worktrees?[/\\].*|(?<![/\\])[/\\]++$")
_PROMPT_CHARS = 4000  # of a system prompt, by which an agent without a folder is recognised


def project_of(prompts: Sequence[PromptMessage]) -> tuple[str, str]:
    """The project of a run, hashed, and the last part of its name: the working directory that the
    client names, else the system prompt without its numbers; ("", "") without either."""
    text = "\n".join(each.text for each in prompts if each.role in ("system", "developer"))
    found = _FOLDER.search("\n".join(each.text for each in prompts))
    if found:
        folder = _WORKTREE.sub("", found[1].rstrip(".,;)"))
        return digest(folder), re.split(r"[/\\]", folder)[-1][:40]
    head = mask_secrets(text[: 2 * _PROMPT_CHARS])[:_PROMPT_CHARS]  # as it is stored
    if text:
        return (digest(re.sub(r"\d+", "0", head)), "")
    return ("", "")


def scope_of(pattern: Pattern) -> str | None:
    """Returns the digest of the project that a lesson is for; "" for runs without a project.
    None for a shared lesson and for one that was learned before lessons had projects: these
    apply in every project."""
    lesson = None
    if pattern.tenant:
        lesson = pattern.lesson
    if lesson:
        return lesson.applies_when.get("scope")
    return None


_SYSTEM = ("system", "developer")
_BLOCK = re.compile(  # up to the next tag of the name, so that each part is read once
    r"<(system-reminder|user_instructions|INSTRUCTIONS)>((?:(?!</?\1>).)*+)</\1>", re.DOTALL
)
_INSTRUCTION_FILE = re.compile(r"\b(?:CLAUDE|AGENTS|GEMINI|QWEN)(?:\.local)?\.md\b")
_READ_CHARACTERS = 100_000  # of a prompt


def instructed(rule: str, prompts: Sequence[PromptMessage]) -> bool:
    """Whether a sentence of the agent's instructions, in the opening of its run, has nearly the
    words of a rule. Instructions are system messages, and files such as `AGENTS.md` as clients put
    them into the first messages; what the task says is none."""
    for prompt in prompts:
        text = prompt.text[:_READ_CHARACTERS]
        if prompt.role not in _SYSTEM:
            blocks = _BLOCK.finditer(text)
            # Claude Code puts other texts than files into reminders.
            files = (
                each[2]
                for each in blocks
                if each[1] != "system-reminder" or _INSTRUCTION_FILE.search(each[2])
            )
            text = "\n".join(files)
        if text and _says(text, rule):
            return True
    return False


@lru_cache(maxsize=256)  # many runs begin with the same prompt
def _says(text: str, rule: str) -> bool:
    return any(nearly_equal(rule, each) for each in sentences(text))
