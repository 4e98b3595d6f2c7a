"""Planning: programs in, orders of batched steps out; integer arrays only, no torch."""
