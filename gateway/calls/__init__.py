"""One call between `pipeline.py` and the store: whether it may be sent, what is sent, and how its
answer is committed. What a call costs is in `budgets/`, what it says in `conversations/`."""
