"""The exam and the practice ground."""
