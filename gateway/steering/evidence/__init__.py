"""Facts read from the steps of a run: commands, edits, outcomes.

Word lists are data (`steering/word_lists.json`). May import `steering.transcript`."""
