"""Benchmarks: ratios against baselines of the same run (`python -m tests.benchmarks [--quick]`); never timed tests."""
