"""The monitor's row: plain data, read at every start, so that nothing else is imported here."""

ROW = {
    "failure_type": "politeness",
    "weights": {"coding": 0.2, "pr_review": 0.0, "qa": 0.1},
    "classes": {"robust": "politeness.monitor:Politeness"},
    "texts": ("You thank the user in every step{evidence}. Work on the task instead.",),
}
