"""Benches: what the gateway costs, beside its peers, in one run on one machine (`make bench`).

`python -m bench` measures latency, CPU, memory and start-up of every arm; `python -m bench.steps`
what steering costs as a conversation grows; `python -m bench.incidents` what a store costs that
fails.
"""
