"""The crash matrix of the helper where systemd keeps the worker: what the command service has not, some points of it.

A fifth of the points that only systemd's guards and commands add, which fifth following from the day, and one that they
share with every service. `python -m evals.bench.matrix units` takes every one, also as an ordinary user, with the
watchdog alone to settle it, and with the watchdog itself killed.
"""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from evals.bench.matrix_units import actions, died

VERBS = ("open", "edit", "restart", "commit", "undo")
OURS = ("prudent-boot", "zzz-prudent.conf", "reload", "symlink", "spawn", "command", "wait", "arm")


@pytest.mark.slow
@pytest.mark.parametrize("verb", VERBS)
def test_a_helper_killed_at_any_action_is_undone_to_the_unit_as_it_was(root_site, verb) -> None:
    """SIGKILL at a point, then undo: exact bytes, a live process that runs them, the unit as it was."""
    every, today = actions(root_site, verb), datetime.now(UTC).toordinal()
    ours = [act for act in every if any(word in act[1] for word in OURS)]
    taken = sorted({*ours[today % 5 :: 5], every[today % len(every)]})
    assert taken
    for number, action in taken:
        assert died(root_site, verb, number) is None, f"killed before {action} ({number}) of {verb}"
