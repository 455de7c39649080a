"""Facts read from the steps of a run: commands, edits, outcomes, repeats.

Scorers and monitors work on these facts, not on texts. Word lists are data
(`steering/word_lists.json`). May import `steering.transcript`.
"""
