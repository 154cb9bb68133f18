"""Campaigns: thousands of runs of the real graph, over a real host helper, against a worker on virtual time."""
