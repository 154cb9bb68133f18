"""A policy in words."""

from __future__ import annotations

from policies.explain import explain, rule
from policies.load import load


def test_rules_read_as_sentences() -> None:
    """Each criterion of the shipped policy reads as one line without jargon."""
    rules = {criterion.id: rule(criterion) for criterion in load("practice").criteria}

    assert rules == {
        "start": "the worker came up",
        "identity": "the process that serves is a new one",
        "effective": "the values in force are the planned ones",
        "plausible-start": "time to start: at least 0.2 times the baseline",
        "headroom": "free GPU memory after capture: at least 6 GB",
        "entry": "a request through the traffic entry was answered",
        "corruption": "under 3 % of sessions corrupted rather than 0.1 %, shown at 95 % by a sequential test of "
        "at most 300, 20 % of their tokens from where the change acts; two bad ones are a breach whatever the share",
        "failed-requests": "under 2 % of requests failed, shown at 95 % by 149 or more; "
        "three bad ones are a breach whatever the share",
        "throughput": "throughput: a loss of more than 10 % is ruled out at 95 %",
        "progress-under-aborts": "none of 3 or more abort storms wedged the worker",
        "rest-after-aborts": "none of 3 or more abort storms left the worker worse",
    }


def test_the_explanation_is_complete() -> None:
    """Every criterion, its reason, every check and every limit of the policy is in the explanation."""
    policy = load("practice")
    text = "\n".join(explain(policy))

    for criterion in policy.criteria:
        assert criterion.id in text
        assert criterion.because in text
    for name in policy.order:
        assert policy.checks.rule(name).because in text
    assert policy.label in text
    assert "15 minutes" in text
    assert policy.noise.basis in text
