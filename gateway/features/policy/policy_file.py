"""The file of a policy: compiled of what was learned, read, compared. The digest of an entry, with
two digits for each of its parts, finds and names an edit. It is no signature: anybody can compute
it."""

import hashlib
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from typing import Any

import msgspec
import yaml
from msgspec.structs import replace

from gateway.config.load import read_config_file
from gateway.core.pattern import Status
from gateway.errors import ConfigError
from gateway.features.learning.book import APPROVED
from gateway.features.learning.life_cycle import approved, is_guess
from gateway.reporting.rates import wilson
from gateway.steering.guidance.lessons import is_rule
from gateway.stores import learning as rows
from gateway.text.secrets import mask_secrets
from gateway.values import FieldDict, Fields, by_name

SECTIONS = ("routes", "lessons", "rules")
HEAD = """\
# What this gateway learned. `gateway policy publish FILE` lets exactly this apply, nothing else.
# `applies` takes effect and is covered by `digest`; `evidence` says why the entry is here.
# Entries may be removed. To change one, change what was learned and compile again.
"""
_KEY = ("tenant", "client", "requested", "workload")
_WORDS = {"fields": "text", "lesson": "situation, status or share"}  # parts of a lesson


def compiled(
    rates: Iterable[rows.WorkloadRate],
    lessons: Iterable[rows.StoredLesson],
    chosen: Callable[[rows.WorkloadRate], str],
) -> rows.LearnedPolicy:
    """The policy of what was learned; `chosen`: the model on which a workload's runs begin."""
    found: Any = {name: [] for name in SECTIONS}
    for key, group in groupby(sorted(rates, key=attrgetter(*_KEY, "model")), attrgetter(*_KEY)):
        same = list(group)
        about = by_name(_KEY, key)
        counts = {r.model: (max(r.recent_solved, 0.0), max(r.recent_failed, 0.0)) for r in same}
        route = rows.PolicyRoute(**about, model=chosen(same[0]), counts=counts)
        whole = {r.model: (r.solved + r.failed, r.solved) for r in same}
        shown = {m: {"n": n, "solved": k, "interval": wilson(k, n)} for m, (n, k) in whole.items()}
        found["routes"].append(_entry(f"route {'/'.join(key)}", route, shown))
    for stored in sorted(lessons, key=lambda e: (-e.support.conversations, e.pattern.pattern_id)):
        known = stored.pattern.lesson
        rule = is_rule(stored.pattern)
        if known and (known.status is Status.ACTIVE or approved(stored)) and not is_guess(stored):
            name = f"{'rule' if rule else 'lesson'} {stored.pattern.pattern_id}"
            found["rules" if rule else "lessons"].append(_lesson(name, stored, known))
    return summed(rows.LearnedPolicy(**found))


def summed(policy: rows.LearnedPolicy) -> rows.LearnedPolicy:
    """The policy with the digest of all its entries."""
    return replace(policy, digest=_hash([each.digest for each in entries(policy).values()]))


def entries(policy: rows.LearnedPolicy | None) -> dict[str, rows.PolicyEntry[Any]]:
    """The entries of a policy by name."""
    return {each.name: each for name in SECTIONS if policy for each in getattr(policy, name)}


def render(policy: rows.LearnedPolicy) -> str:
    """The file of a policy: the same bytes for the same one."""
    values = _slim(msgspec.to_builtins(policy))
    shown = msgspec.json.encode(values).decode().isprintable()  # else all is escaped
    return HEAD + yaml.safe_dump(values, sort_keys=False, allow_unicode=shown, width=1000)


def read(path: Path) -> tuple[rows.LearnedPolicy, dict[str, str]]:
    """The policy of a file, and the place of each entry by name. Raises ConfigError: its faults,
    each with its line."""
    file = read_config_file(path, lambda text: _refuse_unreadable(path, text))
    places = dict[str, str]()

    def at(key: str) -> str:
        while key and key not in file.lines:
            key = key[: max(key.rfind("."), key.rfind("["), 0)]
        return f"{path}:{file.lines.get(key, 1)}"

    faults = list(file.repeated)
    try:
        policy = msgspec.convert(file.values, rows.LearnedPolicy)
        msgspec.json.decode(msgspec.json.encode(policy), type=rows.LearnedPolicy)  # no NaN
    except msgspec.ValidationError as error:
        what, _, key = str(error).replace("`", "").partition(" - at $.")
        raise ConfigError(*faults, f"{at(key)}: {key or 'the file'}: {what}") from error
    if "form" not in file.values:
        faults.append(f"{path}:1: form: none, so this is no policy that was compiled")
    for section in SECTIONS:
        for number, entry in enumerate(getattr(policy, section)):
            name = entry.name
            place = at(f"{section}[{number}]")
            right = _digest(entry)
            if not name.isprintable():
                faults.append(f"{place}: {name!a}: a name with characters that do not show")
            elif name in places:
                faults.append(f"{place}: {name}: it is here twice")
            elif entry.digest != right:
                own, found = (each.split("-")[1:] for each in (entry.digest, right))
                digits = zip(_parts(entry), own, found, strict=False)
                part = next((part for part, was, now in digits if was != now), "content")
                faults.append(f"{place}: {name}: its {part} is not what was compiled")
            places[name] = place
    if faults:
        raise ConfigError(*faults)
    return policy, places


def _refuse_unreadable(path: Path, text: str) -> None:
    """Raises ConfigError: characters that no reviewer sees, or an alias, which may multiply."""
    lines = text.split("\n")
    tokens = yaml.scan(text) if "*" in text else ()
    bad = [n for n, line in enumerate(lines, start=1) if not line.rstrip("\r").isprintable()]
    bad += [t.start_mark.line + 1 for t in tokens if isinstance(t, yaml.AliasToken)]
    if bad:
        raise ConfigError(f"{path}:{bad[0]}: characters that do not show, or an alias")


def changes(one: rows.LearnedPolicy | None, other: rows.LearnedPolicy | None) -> list[str]:
    """The way from one policy to another, in words, an entry a line."""
    before = entries(one)
    after = entries(other)
    lines = list[str]()
    for name in dict.fromkeys([*before, *after]):
        old = before.get(name)
        new = after.get(name)
        if old is None or new is None:
            lines.append(f"{name}: {'removed' if new is None else 'added'}")
        elif old.digest != new.digest:
            was = _parts(old)
            now = _parts(new)
            edited = ", ".join(part for part in was if was[part] != now.get(part))
            moved = f"{was.get('model')} -> {now.get('model')}"
            lines.append(f"{name}: {moved if 'model' in edited else f'{edited} changed'}")
    return lines


def _lesson(name: str, stored: rows.StoredLesson, known: Any) -> rows.PolicyEntry[Any]:
    marks = known.applies_when
    trial = stored.posterior
    kept = {mark: marks[mark] for mark in ("scope", "precedes") if mark in marks}
    kept |= {APPROVED: "by an operator"} if approved(stored) else {}
    lesson = replace(known, applies_when=kept, expires_at=None, last_confirmed_at=0.0)
    shown = {"project": marks.get("project"), "said_by": marks.get("author")}
    shown |= {"conversations": stored.support.conversations, "date": _day(stored.updated_at)}
    shown |= {"n_given": trial.given, "n_held_out": trial.decisions - trial.given}
    shown |= {"effect": trial.effect, "interval": [trial.low, trial.high], "e_value": trial.proof}
    return _entry(name, replace(stored.pattern, lesson=lesson, source_trace_id=None), shown)


def _entry(name: str, applies: Any, evidence: Fields) -> rows.PolicyEntry[Any]:
    """An entry without secrets, with its digest."""
    values = _slim(msgspec.to_builtins({"applies": applies, "evidence": evidence}))
    values["applies"] = msgspec.convert(values["applies"], type(applies))
    made = rows.PolicyEntry(name=mask_secrets(name), **values)
    return replace(made, digest=_digest(made))


def _slim(value: Any) -> Any:
    """Plain values without what is empty, secrets masked, numbers rounded."""
    if isinstance(value, Mapping):
        items = ((name, _slim(each)) for name, each in value.items())
        return {name: each for name, each in items if each not in (None, "", {}, [])}
    if isinstance(value, list | tuple):
        return [_slim(each) for each in value if each is not None]
    number = round(value, 4) if isinstance(value, float) else value
    return mask_secrets(value) if isinstance(value, str) else number


def _parts(entry: rows.PolicyEntry[Any]) -> FieldDict:
    values = msgspec.to_builtins(entry.applies)
    return {_WORDS.get(name, name): value for name, value in values.items()}


def _digest(entry: rows.PolicyEntry[Any]) -> str:
    parts = [*_parts(entry).items()]
    return "-".join([_hash([entry.name, parts]), *(_hash(part)[:2] for part in parts)])


def _hash(value: Any) -> str:
    return hashlib.sha256(msgspec.json.encode(value, order="sorted")).hexdigest()[:12]


def _day(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).date().isoformat()
