"""Readers of the time before Prudent: what documents, backups, git and logs say was changed."""
