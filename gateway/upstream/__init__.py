"""Calls to providers: model names to targets, retries and fallbacks, two lanes, costs.

The native lane sends the client's bytes to an upstream that speaks the client's dialect; the
LiteLLM lane has LiteLLM translate for every other one. Imports `config`, `dialects`, `wire` and
`observability`; knows nothing of conversations and stores."""
