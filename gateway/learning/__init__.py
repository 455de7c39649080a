"""Learning from runs: verdicts, mined lessons, and the trial that each lesson has to pass.

A pure core (`reading`, `mining`, `contrast`, `corrections`, `gate`, `questions`, most of
`life_cycle` and `generalise`) inside thin edges (`worker`, `book`, `verdicts`, `distiller`), off
the path of requests."""
