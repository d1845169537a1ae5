"""Measurements of Perdure; run as ``python -m benchmarks``."""
