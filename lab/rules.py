"""The question that only the laboratory asks: which sentences of a message state a rule."""

from __future__ import annotations

import json
import re

from gateway.features.learning.reader.questions import DATA, MOST_TYPED, Question, one_line
from gateway.text.secrets import mask_secrets

PASTED = re.compile(r"```.*?(?:```|\Z)|https?://\S+|(?m:^)>[^\n]*", re.DOTALL)

MOST_RULES = 5  # sentences that one message gives
_SHORTEST_RULE = 10  # characters: "yes" and "do it" hold for nothing else

RULES = Question(
    name="rules",
    version=1,
    instruction=f"{DATA} `typed` is what a person wrote to a coding agent, `before` the end of "
    "what the agent had said. Find the sentences in `typed` that state a standing rule: how an "
    "agent is to work in this project beyond the present task. A wish for this task, a report, a "
    f"question and praise are none. Answer with a JSON list of at most {MOST_RULES} strings, each "
    "one sentence copied from `typed` letter by letter; [] if there is none.",
    read=str,
)


def quoted(answer: str, typed: str) -> str | None:
    """The sentences as lines; "" for none. One that was not typed makes the whole answer none."""
    begin = answer.find("[")
    end = answer.rfind("]")
    try:
        found = json.loads(answer[begin : end + 1])
    except (ValueError, RecursionError):
        return None
    if not isinstance(found, list) or len(found) > MOST_RULES:
        return None
    own = one_line(PASTED.sub(" ", typed[:MOST_TYPED]))
    kept = [one_line(each) if isinstance(each, str) else "" for each in found]
    verbatim = all(len(each) >= _SHORTEST_RULE and each in own for each in kept)
    return mask_secrets("\n".join(dict.fromkeys(kept))) if verbatim else None
