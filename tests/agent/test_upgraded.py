"""An engine that was upgraded on disk while the old one runs: the next start is the new one's."""

import pytest

from evals.lab import private

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]


def test_a_flag_that_the_installed_engine_has_dropped_is_seen_before_the_restart(quick):
    """The change is about another flag; the script would die of the old one, so nothing is touched."""
    package = quick.ground.directory / "opt" / "sglang" / "sglang" / "__init__.py"
    package.write_text('__version__ = "0.5.20"\n', encoding="utf-8")
    nature = private.read(quick.ground.directory)
    private.write(quick.ground.directory, nature._replace(version="0.5.20"))

    said = quick.ask("set max running requests to 128", decide=())
    verdict = said.record["verdict"]

    assert (said.status, verdict["refusal"], verdict["state"]) == (39, "EngineRefuses", "untouched"), verdict
    assert "--cuda-graph-max-bs could be --cuda-graph-max-bs-decode or --cuda-graph-max-bs-prefill" in verdict["why"]
    assert quick.ground.script.read_bytes() == quick.original
