"""Measurements of weft beside the alternatives, on the workloads of the papers. `python -m benchmarks.run --help`."""
