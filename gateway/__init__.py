"""An OpenAI-compatible steering gateway: scores, steers and routes agent runs."""

__version__ = "0.2.0"
