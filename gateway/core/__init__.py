"""The core: what scores a step, folds a run, fires an alarm, decides on a call and places guidance.

Pure: values in, values out. `docs/core.md` gives the order in which to read it."""
