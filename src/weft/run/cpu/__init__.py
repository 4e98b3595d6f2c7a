"""Functions for a CPU, written in C and generated from traced cells."""
