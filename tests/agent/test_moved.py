"""After every start: intended against effective against the last good start, through the whole path."""

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]


def test_a_value_that_moved_without_being_asked_is_found_and_not_kept(quick):
    """Somebody changes a file that the script reads, between the plan and the restart: the run names the variable."""
    site = quick.ground.directory / "site.env"
    site.write_text("export SGLANG_DISAGGREGATION_WAITING_TIMEOUT=300\n", encoding="utf-8")
    script = quick.ground.script
    text = script.read_text(encoding="utf-8")
    script.write_text(text.replace("exec python3", ". ./site.env\nexec python3"), encoding="utf-8")
    quick.restart()

    said = quick.ask(
        "bump cuda graphs to 96",
        before=lambda _: site.write_text("export SGLANG_DISAGGREGATION_WAITING_TIMEOUT=30\n", encoding="utf-8"),
    )
    verdict = said.record["verdict"]
    found = [each for each in said.record["readings"] if each["metric"] == "effective_matches"]

    assert verdict["decision"] != "kept", verdict
    assert verdict["state"] != "new"
    assert [each["value"] for each in found if each["phase"] == "candidate"] == [0.0]
    moved = "SGLANG_DISAGGREGATION_WAITING_TIMEOUT moved from 300 to 30 without being asked."
    assert all(moved in each["detail"] for each in found)
    assert script.read_bytes().decode() == text.replace("exec python3", ". ./site.env\nexec python3")
