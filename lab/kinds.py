"""The fit of the kinds of messages, evaluated on sessions and on developers that it never saw."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from msgspec import Struct

from gateway.errors import ConfigError
from gateway.features.history.log_file import LogFile
from gateway.features.learning.verdicts import USED_FROM
from gateway.steering.transcript.message_kinds import ACCEPTING, KINDS, KindModel, features_of
from lab.evaluation import Floats, write_output

SEED = 1  # of folds and samples

OUTER, INNER = 5, 3  # folds
STRENGTHS = (0.1, 0.3, 0.9)  # inverse of the penalty; chosen in the inner folds
LEAST = 4  # messages that must have a feature
LEAST_SESSIONS = 2  # sessions that must have it
SHARED = 40  # characters from which an equal message shows that two sessions are one, continued
DOUBT = 0.3  # what is taken off the reader's certainty: a guess among seven counts little
ROUNDS = 1000  # of the bootstrap, over sessions
CROWD = 40  # messages from which a developer is held out alone; the others are one group
# fmt: off
OF_THE_PROJECT = frozenset((
    "agenttype", "attribution", "bot", "checkpoint", "checkpoints", "claude", "cmd", "condensation",
    "condense", "cursor", "devenv", "dev", "ent", "entire", "entirehq", "entireio", "eof", "feb",
    "gemini", "github", "gitignore", "goreleaser", "homebrew", "linear", "mise", "overlap", "phase",
    "postcommit", "redacted", "rewind", "shadow", "skill", "stash", "strategies", "strategy",
    "subagent", "subagents", "summarise", "superpowers", "telemetry", "tif", "trailer", "trailers",
    "transcript", "transcripts", "troy", "worktree", "worktrees", "wrapper",
))
# fmt: on
"""Words of the one project that the messages are from: they say nothing in another."""


class Row(Struct, frozen=True, kw_only=True):
    """One labelled message. `who`: the developer; `group`: sessions that share messages are one."""

    session: str
    group: str
    who: str
    kind: str
    weight: float
    reader: int
    event: str
    features: Mapping[str, float]


def read_rows(files: Sequence[Path], sessions: Path | None = None) -> list[Row]:
    """The labelled messages of files such as `said-dev.jsonl`.

    Raises ConfigError: a file cannot be read, or a message has no label.
    """
    found = [record for file in files for record in LogFile(file).records()]
    who = {} if sessions is None else {r["id"]: r["who"] for r in LogFile(sessions).records()}
    found = [record for record in found if record.get("category") in KINDS]
    if not found:
        raise ConfigError("no labelled message: expected lines with said, category and session")
    group = _joined(found)
    names = [record.get("who") or who.get(record["session"], "") for record in found]
    many = {name for name, count in Counter(names).items() if count >= CROWD}
    return [
        Row(
            session=record["session"],
            group=group[record["session"]],
            who=name if name in many else "others",
            kind=record["category"],
            weight=float(record["sure"]) - DOUBT,
            reader=record.get("reader", 1),
            event=record["kind"],
            features=features_of(record["said"], event=record["kind"], before=record["before"]),
        )
        for record, name in zip(found, names, strict=True)
    ]


def _joined(records: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """The group of each session: a session that was continued in another file is in both."""
    parent = {record["session"]: record["session"] for record in records}

    def root(name: str) -> str:
        while parent[name] != name:
            name = parent[name]
        return name

    first: dict[str, str] = {}
    for record in records:
        text = " ".join(record["said"].split())[:200]
        if len(text) > SHARED:
            other = first.setdefault(text, record["session"])
            parent[root(record["session"])] = root(other)
    return {name: root(name) for name in parent}


def fit_kinds(rows: Sequence[Row], strength: float) -> KindModel:
    """The weights by multinomial logistic regression, rounded as they are kept."""
    from sklearn.feature_extraction import DictVectorizer
    from sklearn.linear_model import LogisticRegression

    seen: dict[str, set[str]] = defaultdict(set)
    count = Counter(name for row in rows for name in row.features)
    for row in rows:
        for name in row.features:
            seen[name].add(row.session)
    kept = {
        name
        for name in count
        if count[name] >= LEAST
        and len(seen[name]) >= LEAST_SESSIONS
        and OF_THE_PROJECT.isdisjoint(name.split())
    }
    vectors = DictVectorizer()
    design = vectors.fit_transform(
        {name: value for name, value in row.features.items() if name in kept} for row in rows
    )
    weight = np.array([row.weight for row in rows])
    model = LogisticRegression(C=strength, solver="newton-cg", max_iter=500, tol=1e-5)
    model.fit(design, [row.kind for row in rows], sample_weight=weight / weight.mean())
    order = [list(model.classes_).index(kind) for kind in KINDS]
    values = np.round(model.coef_[order].T, 2)
    return KindModel(
        bias=tuple(np.round(model.intercept_[order], 2).tolist()),
        weights={
            name: tuple(each.tolist())
            for name, each in zip(vectors.get_feature_names_out(), values, strict=True)
            if each.any()
        },
    )


def folds(keys: Sequence[str], number: int, seed: int) -> Iterator[tuple[list[int], list[int]]]:
    """Indices to fit on and to judge, such that no key is on both sides."""
    names = sorted(set(keys))
    np.random.default_rng(seed).shuffle(names)
    place = {name: index % number for index, name in enumerate(names)}
    for fold in range(min(number, len(names))):
        judged = [i for i, key in enumerate(keys) if place[key] == fold]
        yield [i for i, key in enumerate(keys) if place[key] != fold], judged


def choose(rows: Sequence[Row], seed: int = SEED) -> float:
    """The strength with the best AUROC in folds within these rows."""
    groups = [row.group for row in rows]
    ranked = {
        auroc(rows, _chances(rows, folds(groups, INNER, seed), strength)): strength
        for strength in STRENGTHS
    }
    return ranked[max(ranked)]


def held_out(
    rows: Sequence[Row], by: str, seed: int = SEED, strength: float | None = None
) -> Floats:
    """Chances of each row by a model that saw neither its session nor, by `who`, its developer.

    `strength`: chosen in folds within the rows that are fitted on, if None.
    """
    keys = [getattr(row, by) for row in rows]
    number = OUTER if by == "group" else len(set(keys))
    return _chances(rows, folds(keys, number, seed), strength)


def _chances(
    rows: Sequence[Row], parts: Iterator[tuple[list[int], list[int]]], strength: float | None
) -> Floats:
    found = np.zeros((len(rows), len(KINDS)))
    for fitted, judged in parts:
        known = [rows[i] for i in fitted]
        model = fit_kinds(known, strength or choose(known))
        for i in judged:
            found[i] = list(model.chances(rows[i].features).values())
    return found


def is_accepted(rows: Sequence[Row]) -> Floats:
    """Which rows accept the work: they say go on, or begin something new."""
    return np.array([row.kind in ACCEPTING for row in rows])


def chance_accepted(chances: Floats) -> Floats:
    """The chance of acceptance in each row."""
    columns = [KINDS.index(kind) for kind in ACCEPTING]
    return np.asarray(chances[:, columns].sum(axis=1))


def auroc(rows: Sequence[Row], chances: Floats) -> float:
    """The AUROC of accepted against not."""
    from sklearn.metrics import roc_auc_score

    return float(roc_auc_score(is_accepted(rows), chance_accepted(chances)))


def precision_at_half(rows: Sequence[Row], chances: Floats) -> float:
    """The precision at the threshold that finds half of what accepts."""
    from sklearn.metrics import precision_recall_curve

    precision, recall, _ = precision_recall_curve(is_accepted(rows), chance_accepted(chances))
    return float(precision[recall >= 0.5].max())


def report(rows: Sequence[Row], chances: Floats) -> str:
    """AUROC and precision at half recall, with 95 % intervals over sessions."""
    rng = np.random.default_rng(SEED)
    members: dict[str, list[int]] = defaultdict(list)
    for i, row in enumerate(rows):
        members[row.group].append(i)
    groups = sorted(members)
    drawn: list[tuple[float, float]] = []
    for _ in range(ROUNDS):
        picked = [i for g in rng.choice(groups, len(groups)) for i in members[g]]
        some = [rows[i] for i in picked]
        if 0 < is_accepted(some).sum() < len(some):
            drawn.append((auroc(some, chances[picked]), precision_at_half(some, chances[picked])))
    low, high = np.percentile(np.array(drawn), (2.5, 97.5), axis=0)
    figures = (auroc(rows, chances), precision_at_half(rows, chances))
    parts = [f"{f:.3f} [{a:.2f}, {b:.2f}]" for f, a, b in zip(figures, low, high, strict=True)]
    return f"n {len(rows)}, AUROC {parts[0]}, precision at half recall {parts[1]}"


def at_level(rows: Sequence[Row], chances: Floats) -> list[str]:
    """The precision and number of messages from the level at which the gateway reads one as
    acceptance of a run."""
    said = np.array([row.event == "message" for row in rows])
    right = is_accepted(rows)
    lines = []
    for part, chosen in (("all", said | True), ("messages", said)):
        found = chosen & (chance_accepted(chances) >= USED_FROM)
        lines.append(
            f"accepted from {USED_FROM}, {part}: {right[found].mean():.2f} of {found.sum()}"
        )
    return lines


def confusion(rows: Sequence[Row], chances: Floats) -> list[str]:
    """A table: each line a kind that was read, each column the most probable kind."""
    counts = Counter(
        (row.kind, KINDS[int(each.argmax())]) for row, each in zip(rows, chances, strict=True)
    )
    head = f"| read \\ most probable | {' | '.join(KINDS)} |"
    lines = [head, "| --- " * (len(KINDS) + 1) + "|"]
    return lines + [f"| {a} | {' | '.join(str(counts[a, b]) for b in KINDS)} |" for a in KINDS]


def run_kinds(files: Sequence[Path], sessions: Path | None, weights: Path | None) -> int:
    """Print the held-out figures, and write the model fitted on all rows.

    Raises ConfigError: nothing to read, or the file cannot be written.
    """
    rows = read_rows(files, sessions)
    figures = {}
    for by in ("group", "who"):
        chances = held_out(rows, by)
        for name, chosen in _parts(rows, by).items():
            figures[name] = report([rows[i] for i in chosen], chances[chosen])
            print(f"{name}: {figures[name]}")
        print("\n".join(confusion(rows, chances)))
        print("\n".join(at_level(rows, chances)))
    strength = choose(rows)
    print(f"strength of the shipped model: {strength}")
    if weights is not None:
        provenance: dict[str, Any] = {
            "messages": len(rows),
            "sessions": len({row.session for row in rows}),
        }
        provenance |= {"strength": strength, "seed": SEED, "held_out": figures}
        write_output(weights, kinds_to_json(fit_kinds(rows, strength), provenance))
    return 0


def _parts(rows: Sequence[Row], by: str) -> dict[str, list[int]]:
    """Indices of the rows that get a line of figures each."""
    unseen = "sessions" if by == "group" else "developers"
    parts = {f"unseen {unseen}": list(range(len(rows)))}
    parts[f"unseen {unseen}, first reader"] = [i for i, row in enumerate(rows) if row.reader == 1]
    for name in sorted({row.who for row in rows}) if by == "who" else ():
        parts[f"unseen {name}"] = [i for i, row in enumerate(rows) if row.who == name]
    return parts


def kinds_to_json(model: KindModel, provenance: Mapping[str, Any]) -> str:
    """The text of a model file: weights are hundredths, equal models give equal bytes."""
    hundredths = {
        name: [round(100 * each) for each in model.weights[name]] for name in sorted(model.weights)
    }
    lines = [
        f'  "provenance": {json.dumps(provenance)}',
        f'  "kinds": {json.dumps(KINDS)}',
        f'  "bias": {json.dumps([round(100 * each) for each in model.bias])}',
        '  "weights": {\n'
        + ",\n".join(
            f"    {json.dumps(name, ensure_ascii=False)}: {json.dumps(each, separators=(',', ':'))}"
            for name, each in hundredths.items()
        )
        + "\n  }",
    ]
    return "{\n" + ",\n".join(lines) + "\n}\n"
