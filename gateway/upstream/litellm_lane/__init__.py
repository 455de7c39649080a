"""The LiteLLM lane; `lane` is its entry and puts the other modules together.

LiteLLM itself is imported by `sdk`, when the lane is first needed and never at start."""
