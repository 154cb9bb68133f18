"""Measurements of Prudent itself, each one command that prints a table."""
