"""Per-example PyTorch code, recorded call by call and run batched."""
