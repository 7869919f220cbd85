"""Benchmarks: ratios against baselines measured in the same run. `python -m tests.benchmarks [--quick]`; never a test of time."""
