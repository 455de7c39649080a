"""The place of a run: its project, what its agent was doing, and whether the agent's own
instructions say a rule already. Pure."""

import re
from collections.abc import Sequence
from functools import lru_cache

from gateway.core.pattern import Pattern
from gateway.core.step import Action
from gateway.features.learning.gate import language, vocabulary
from gateway.features.learning.reading import command_of, digest, program_of
from gateway.steering.evidence.failure_keys import read_action
from gateway.stores.records import PromptMessage
from gateway.text.secrets import mask_secrets


def situation_of(action: Action | None) -> str:
    """The agent's tool, or the program of its shell call with the sub-command; "" for no call."""
    if action is None:
        return ""
    head = read_action(action).head
    program = ""
    if head.startswith("$"):
        program = program_of(command_of(action.arguments) or "")
    return program or head.lstrip("$")


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


_STEM = re.compile(r"(?:ies|ing|ed|es|s|e|y)$")
_MEANT = re.compile(r"[a-z][a-z0-9_-]+")
_NO = re.compile(r"\b(?:not|never|avoid|without|stop)\b|n't\b|^no\b")
_LIMITS = frozenset(("onl", "instead", "unles", "rather"))  # stems of words that exclude


@lru_cache(maxsize=4096)
def meaning(text: str) -> frozenset[str]:
    """Stems of the words of a rule that carry its meaning, with `not` for a prohibition."""
    flat = text.lower().replace(", not ", " instead ")
    kept = (word for word in _MEANT.findall(flat) if word not in vocabulary("common"))
    stems = {_STEM.sub("", language()["synonyms"].get(word, word)) for word in kept}
    return frozenset(stems - {"avoid", "stop"} | ({"not"} if _NO.search(flat) else set()))


_INSTRUCTED = 0.7  # share of a rule's words in a sentence that says it
_SENTENCE_ENDS = re.compile(r"(?<=[.!?;\n])\s+|\n+")


@lru_cache(maxsize=64)
def _sentences_meant(text: str) -> tuple[frozenset[str], ...]:
    """The meaning of each sentence of a prompt; many runs begin with the same one."""
    parts = _SENTENCE_ENDS.split(text[:100_000])
    return tuple(each | ({"not"} if each & _LIMITS else set()) for each in map(meaning, parts))


def instructed(rule: str, prompts: Sequence[PromptMessage]) -> bool:
    """Whether the agent's own instructions, in the opening of its run, say a rule already."""
    meant = meaning(rule) - _LIMITS
    return any(
        len(meant & each) >= _INSTRUCTED * len(meant) and ("not" in each or "not" not in meant)
        for prompt in prompts
        for each in _sentences_meant(prompt.text)
    )
