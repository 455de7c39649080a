"""Learning from runs: verdicts, what people say, and the trial that each lesson has to pass.

A pure core (`reading`, `sources`, `corrections`, `gate`, `questions`, most of `life_cycle`) inside
thin edges (`worker`, `book`, `verdicts`, `distiller`), off
the path of requests."""
