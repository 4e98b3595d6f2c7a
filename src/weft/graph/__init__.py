"""The intermediate representation: programs (flat arrays, no torch) and cells (traced, batched, differentiated once)."""
