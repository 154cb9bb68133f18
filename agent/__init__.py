"""The reasoning: from a request to a record."""
