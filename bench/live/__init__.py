"""The live kit: arms of this gateway, compared on tasks that an official harness runs and judges.

`python -m bench.live run` and `python -m bench.live report`; docs/live.md.
"""
