"""Seeing plans: numbers, text, a page, a trace."""
