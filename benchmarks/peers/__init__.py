"""Other systems on the same workloads, each in its own interpreter."""
