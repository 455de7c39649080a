"""What all embedders have in common, and what each adds."""

from __future__ import annotations

import math
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import gateway.embedding.static
from gateway.embedding import Embedder, EmbeddingError, EmbeddingSettings, open_embedder
from gateway.embedding.base import HashingEmbedder, normalised, similarity
from gateway.embedding.static import StaticEmbedder
from gateway.embedding.vector_cache import CachedEmbedder

MODEL = Path(gateway.embedding.static.__file__).parent / "model"
STATIC = StaticEmbedder.load()


def length(vector: object) -> float:
    return math.sqrt(sum(value * value for value in vector))  # type: ignore[attr-defined]


@pytest.fixture(params=["static", "hashing"])
async def embedder(request: pytest.FixtureRequest) -> Embedder:
    return await open_embedder(EmbeddingSettings(embedder=request.param))


async def test_vectors_have_unit_length_and_the_promised_dimensions(embedder: Embedder) -> None:
    """Each text gives one float32 unit vector, in order."""
    texts = ["the test fails again", "", "word " * 10_000, "日本語 and naïve text"]
    vectors = await embedder.embed(texts)
    assert [len(vector) for vector in vectors] == [embedder.dimensions] * len(texts)
    assert [vector.typecode for vector in vectors] == ["f"] * len(texts)
    assert [round(length(vector), 4) for vector in vectors] == [1.0, 0.0, 1.0, 1.0]


async def test_equal_texts_have_equal_vectors(embedder: Embedder) -> None:
    """A vector does not depend on the other texts of the call."""
    alone = await embedder.embed(["the build is broken"])
    together = await embedder.embed(["something else", "the build is broken"])
    assert alone[0] == together[1]


async def test_related_texts_are_nearer_than_unrelated_ones(embedder: Embedder) -> None:
    """A paraphrase with shared words is nearer than another subject."""
    asked, near, far = await embedder.embed(
        [
            "the same test fails again with the same error",
            "this test keeps failing with an identical error",
            "reserve window seats flying Boston",
        ]
    )
    assert similarity(asked, near) > similarity(asked, far) + 0.2


async def test_the_static_model_knows_synonyms() -> None:
    """Words that share no letters are near when they mean the same."""
    car, automobile, banana = STATIC.vectors(["car", "automobile", "banana"])
    assert similarity(car, automobile) > similarity(car, banana) + 0.3


@given(st.text(max_size=300))
def test_any_text_gives_a_finite_vector(text: str) -> None:
    """No text raises; the length is 1, or 0 when no word is known."""
    for vector in (STATIC.vectors([text])[0], HashingEmbedder().vector(text)):
        assert round(length(vector), 3) in (0.0, 1.0)


def test_the_packaged_model_is_small_and_carries_its_licences() -> None:
    """The package data stay within 8 MB, notices included."""
    files = {path.name: path.stat().st_size for path in MODEL.iterdir()}
    assert sum(files.values()) < 8_000_000
    assert {"NOTICE", "LICENSE-MIT.txt", "LICENSE-APACHE-2.0.txt"} <= files.keys()


@pytest.mark.parametrize("damage", ["missing", "cut", "mixed"])
def test_a_damaged_model_is_named_at_load(tmp_path: Path, damage: str) -> None:
    """A missing, truncated or unrelated file raises an EmbeddingError that names the folder."""
    folder = Path(shutil.copytree(MODEL, tmp_path / "model"))
    if damage == "missing":
        (folder / "scales.npy").unlink()
    elif damage == "cut":
        rows = (folder / "rows.npy").read_bytes()
        (folder / "rows.npy").write_bytes(rows[: len(rows) // 2])
    else:
        (folder / "vocab.txt").write_text("one\ntwo\n", encoding="utf-8")
    with pytest.raises(EmbeddingError, match="model"):
        StaticEmbedder.load(folder)


def test_importing_the_package_loads_neither_numpy_nor_litellm() -> None:
    """Only the opened embedder takes memory."""
    code = (
        "import sys, gateway.embedding, gateway.embedding.static;"
        "sys.exit(any(name in sys.modules for name in ('numpy', 'litellm')))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


async def test_the_cache_embeds_a_text_once_and_forgets_the_oldest() -> None:
    """A cached text is not embedded again; a full cache drops the least recently used one."""
    asked: list[str] = []

    class Counting(HashingEmbedder):
        async def embed(self, texts):
            asked.extend(texts)
            return await super().embed(texts)

    cached = CachedEmbedder(Counting(), entries=2)
    first = await cached.embed(["a", "b", "a"])
    await cached.embed(["a"])
    assert asked == ["a", "b"]
    assert first == await HashingEmbedder().embed(["a", "b", "a"])
    await cached.embed(["c"])
    await cached.embed(["a", "b"])
    assert asked == ["a", "b", "c", "b"]
    assert cached.embedder_id == HashingEmbedder.embedder_id


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("embedder", "bert"),
        ("embedder", "litellm/"),
        ("dimensions", 0),
        ("timeout_s", 0),
        ("cache_entries", -1),
    ],
)
def test_bad_settings_are_refused_by_name(key: str, value: object) -> None:
    """The message starts with the field."""
    with pytest.raises(ValueError, match=f"^{key}: "):
        EmbeddingSettings(**{key: value})  # type: ignore[arg-type]


def test_vectors_that_are_not_finite_are_refused() -> None:
    """A provider's NaN never reaches a store."""
    with pytest.raises(EmbeddingError):
        normalised([1.0, float("nan")])
