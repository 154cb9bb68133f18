"""The law: criteria and the arithmetic that applies them."""
