"""Abilities and prices of models, from the list that LiteLLM ships or a newer one."""
