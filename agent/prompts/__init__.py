"""One template a reasoning node."""
