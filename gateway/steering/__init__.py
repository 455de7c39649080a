"""The decision core, pure: from a conversation's messages to a state, a model and guidance."""
