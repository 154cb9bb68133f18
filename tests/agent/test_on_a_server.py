"""A whole run with its records and checkpoints in PostgreSQL, where an agent dies and another one takes it over."""

from __future__ import annotations

from typing import Any

import pytest

from evals.bench.postgres_server import Server


@pytest.mark.slow
def test_a_run_left_by_a_killed_agent_is_ended_from_the_servers_checkpoints(quick: Any, postgres: Server) -> None:
    """Killed with the change live, the run is resumed from the database and ends in a proven state; the chain holds.

    While the approval is still valid it goes on, and later it is only taken back: how busy the machine is decides.
    """
    url = postgres.fresh()
    quick.environ["PRUDENT_STORE_URL"] = url
    quick.die_with_the_change_live("bump cuda graphs to 64")
    waiting = quick.say("history", "--json").document["open"]
    assert [(one["state"], one["owner_lives"]) for one in waiting] == [("executing", False)]
    resumed = quick.say("resume", waiting[0]["run"], "--json")
    state = resumed.record["verdict"]["state"]
    assert state in {"new", "restored"}, resumed.err
    wanted = quick.original if state == "restored" else quick.original.replace(b"max-bs 32", b"max-bs 64")
    assert quick.ground.script.read_bytes() == wanted
    verified = quick.say("verify", "--all", "--json")
    assert (verified.status, verified.document["records"]) == (0, 1)
    assert postgres.ask("SELECT count(*) > 0 FROM checkpoints", url.rpartition("/")[2]) == [(True,)]
    assert not list(quick.ground.directory.rglob("prudent.sqlite"))
