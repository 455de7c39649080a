"""The ledger of tries: the objects of a run, what was tried on them, and how it ended.

`ledger` reads a run step by step into `entries`, one object each, and says which failure a call
ended in and what settles it; `sameness` says which calls ask for the same, `files` which edits undo
or repeat each other, `messages` what is said again, `session` what returns in a later run. Its
readers are the table of difficulty (`core/scoring/difficulty.py`) and the monitors
(`core/monitors/robust.py`)."""
