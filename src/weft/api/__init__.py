"""What users write: graphs and vertex functions."""
