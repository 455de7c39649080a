"""The row of this feature in the table of hooks."""

from gateway.hooks import Feature

FEATURE = Feature(parts={"lane": "lane:LiteLLMLane", "embedder": "embedder:LiteLLMEmbedder"})
