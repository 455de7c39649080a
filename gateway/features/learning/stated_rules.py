"""The rules that people stated, as a list: the most often said first, by project."""

from collections import Counter
from collections.abc import Mapping, Sequence

from gateway.features.learning.typed_counts import TypedCounts
from gateway.features.learning.views import lesson_view
from gateway.steering.guidance.lessons import is_rule
from gateway.stores.learning import StoredLesson
from gateway.values import FieldDict


def rule_views(found: Sequence[StoredLesson], counts: Mapping[str, TypedCounts]) -> list[FieldDict]:
    """The rules that people stated, the most often said first, with project, author, words and how
    often they were typed. Projects of one name are listed with the beginning of their digest."""
    views = []
    for stored in sorted(found, key=lambda each: -each.support.conversations):
        if (lesson := stored.pattern.lesson) and is_rule(stored.pattern):
            marks = {"author": "", "project": "no name", "said": ""}
            said = lesson.applies_when
            view: FieldDict = {name: said.get(name, text) for name, text in marks.items()}
            view |= {
                "typed": counts.get(stored.pattern.pattern_id, TypedCounts()),
                "scope": lesson.key.split("|")[1],
                **lesson_view(stored),
                "since": lesson.last_confirmed_at - stored.support.span_s,
            }
            views.append(view)
    folders = {(view["project"], view["scope"]) for view in views}
    several = Counter(name for name, _ in folders)
    for view in views:
        if several[view["project"]] > 1:
            view["project"] += f" ({view['scope'][:6]})"
    return views
