"""Similarity gates: how similar a pattern must be to be injected, by tier and embedder."""

from __future__ import annotations

from collections.abc import Mapping

from gateway.steering.guidance.settings import EtraceSettings, Gates

CALIBRATED: Mapping[str, Gates] = {
    "static-minilm-256-1": Gates(e1=0.66, e2=0.48, e2_untyped=0.54),
    "hashing-256-1": Gates(e1=0.80, e2=0.66),
}
"""By embedder id. Source: `bench/retrieval.py`, results in docs/etraces.md."""

UNCALIBRATED = Gates(e1=0.80, e2=0.70)
"""For embedders without measurements. Source: reference section 6.1."""


def gates_for(embedder_id: str, settings: EtraceSettings) -> Gates:
    """The configured gates, or else those calibrated for the embedder."""
    known = CALIBRATED.get(embedder_id, UNCALIBRATED)
    return Gates(
        e1=known.e1 if settings.e1_gate is None else settings.e1_gate,
        e2=known.e2 if settings.e2_gate is None else settings.e2_gate,
        e2_untyped=known.e2_untyped if settings.e2_gate is None else settings.e2_gate,
    )
