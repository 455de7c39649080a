"""LiteLLM: a lane to providers that speak no dialect of the clients (`lane` puts the other modules
together), and embeddings of providers.

LiteLLM itself is imported by `sdk`, when the lane is first needed and never at start."""
