"""Learning from runs: verdicts on them, and the lessons and rules that later runs are given.

A pure core (`reading`, `sources`, `context`, `gate`, most of `life_cycle`) inside thin edges
(`worker`, `book`, `verdicts`), off the path of requests."""

OFFERS = ("reader.lines:added_to", "reader.lines:suggested", "worker:open_learner")
