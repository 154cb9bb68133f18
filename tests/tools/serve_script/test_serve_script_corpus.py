"""The 40 cases of the corpus, judged by its own checker, which executes what the editor wrote."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
CORPUS = ROOT / "tests" / "data" / "serve-corpus"


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_corpus_passes_with_nothing_unsafe(tmp_path: Path) -> None:
    """All 31 edits and all 9 refusals pass, none of them unsafe."""
    results = tmp_path / "results.json"
    editor = [sys.executable, str(ROOT / "evals" / "serve_scripts.py")]
    checker = [sys.executable, str(CORPUS / "check_corpus.py"), "--split", "dev", "-q", "--timeout", "120"]

    done = subprocess.run(
        [*checker, "--json", str(results), "--", *editor], capture_output=True, text=True, check=False, timeout=580
    )

    failed = {case["id"]: case["checks"] for case in json.loads(results.read_text()) if not case["pass"]}
    assert failed == {}
    assert len(json.loads(results.read_text())) == 40
    assert done.returncode == 0, done.stdout
    assert "unsafe     0" in done.stdout
