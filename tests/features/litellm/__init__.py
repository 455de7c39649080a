"""Tests of the lane and the embeddings of LiteLLM."""
