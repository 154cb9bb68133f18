"""The record: what was changed here, why, and what came of it."""
