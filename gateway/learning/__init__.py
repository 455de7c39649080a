"""Learning from runs: outcomes, mined lessons, and the trial that each lesson has to pass.

A pure core (`mining`, `templates`, `outcomes`, `signs`, `generalise`, `near`, `posterior`,
`life_cycle`, `questions`) inside thin edges (`worker`, `generaliser`, `book`, `distiller`), off the
path of requests. What may come in: something that is read off recorded runs, or decides about a
lesson. What a request is given is decided in `gateway.steering`.
"""
