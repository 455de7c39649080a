"""Families of models, by the form of guidance that suits them."""

from __future__ import annotations

import enum
import re

from gateway.steering.short_cache import remembered


class ModelFamily(enum.StrEnum):
    """A family of models; `OTHER` gets the form for Claude Sonnet."""

    CLAUDE_HAIKU = "claude-haiku"
    CLAUDE_SONNET = "claude-sonnet"
    CLAUDE_OPUS = "claude-opus"
    GPT = "gpt"
    O_SERIES = "o-series"
    GEMINI = "gemini"
    OTHER = "other"

    @property
    def terse(self) -> bool:
        """Failure patterns as situation, dead end and solution, without the diagnosis.

        Small models follow three short lines better than four; reasoning models find the cause
        themselves.
        """
        return self in (self.CLAUDE_HAIKU, self.CLAUDE_OPUS, self.O_SERIES)

    @property
    def asks_questions(self) -> bool:
        """Universal rules as a question to answer, when the pattern has one."""
        return self in (self.CLAUDE_HAIKU, self.CLAUDE_OPUS, self.O_SERIES)

    @property
    def one_liner(self) -> bool:
        """Instances as only the action that worked."""
        return self in (self.CLAUDE_OPUS, self.O_SERIES)


_RULES: tuple[tuple[re.Pattern[str], ModelFamily], ...] = (
    (re.compile(r"haiku"), ModelFamily.CLAUDE_HAIKU),
    (re.compile(r"opus"), ModelFamily.CLAUDE_OPUS),
    (re.compile(r"sonnet|claude"), ModelFamily.CLAUDE_SONNET),
    (re.compile(r"gemini|gemma"), ModelFamily.GEMINI),
    (re.compile(r"(?:^|[/:._-])o[1-9](?:$|[-._:@])"), ModelFamily.O_SERIES),
    (re.compile(r"gpt|codex"), ModelFamily.GPT),
)
"""First match wins. Source: reference section 6.4 for Claude; the providers' model names."""


@remembered
def model_family(model: str) -> ModelFamily:
    """The family of a model name, provider prefixes and date suffixes included."""
    name = model.lower()
    return next((family for rule, family in _RULES if rule.search(name)), ModelFamily.OTHER)


def family_matches(wanted: str, model: str) -> bool:
    """Whether a pattern recorded for `wanted` suits `model`; an empty side suits anything.

    `wanted` may be a family (`claude-sonnet`, `sonnet`, `gpt`), a line of models (`claude-3`,
    `gpt-4o`) or a whole name: it suits when it names the model's family or is part of its name.
    """
    if not wanted or not model:
        return True
    want, name = wanted.lower(), model.lower()
    family = model_family(name).value
    return want in name or want == family or want == family.rpartition("-")[2]
