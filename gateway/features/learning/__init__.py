"""Learning from runs: verdicts on them, and the lessons and rules that later runs are given.

A pure core (`reading`, `context`, `gate`, most of `life_cycle`) inside thin edges (`worker`,
`lessons_in_memory`, `verdicts`), off the path of requests."""

OFFERS = ("reader.lines:added_to", "reader.lines:suggested", "worker:open_learner")
