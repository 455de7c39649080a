"""The parts of the LiteLLM lane; `gateway.upstream.litellm` puts them together."""
