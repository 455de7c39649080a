"""Thresholds of similarity between a pattern and a situation, by embedder."""

from collections.abc import Mapping
from dataclasses import replace

from gateway.core.guidance_settings import EtraceSettings, Gates

# By embedder id. Source: `bench/retrieval.py`, results in docs/evidence.md.
CALIBRATED: Mapping[str, Gates] = {
    "static-minilm-256-1": Gates(e1=0.66, e2=0.48, e2_untyped=0.54),
    "hashing-256-1": Gates(e1=0.80, e2=0.66),
}
# For embedders without measurements. Source: docs/names.md, look-ups of E-traces.
UNCALIBRATED = Gates(e1=0.80, e2=0.70)


def gates_for(embedder_id: str, settings: EtraceSettings) -> Gates:
    """The configured gates, or else those calibrated for the embedder."""
    gates = CALIBRATED.get(embedder_id, UNCALIBRATED)
    if settings.e1_gate is not None:
        gates = replace(gates, e1=settings.e1_gate)
    if settings.e2_gate is not None:
        gates = replace(gates, e2=settings.e2_gate, e2_untyped=settings.e2_gate)
    return gates
