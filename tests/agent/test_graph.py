"""The graph is the one that the README shows, and its exits are those that the nodes' signatures name."""

import re
import subprocess
import sys
from pathlib import Path

from agent.doors.drawing import mermaid

ROOT = Path(__file__).resolve().parents[2]


def test_the_readme_shows_the_compiled_graph():
    """Whoever changes an exit of a node changes the picture in the README with it."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    shown = re.search(r"```mermaid\n(.*?)```", readme, re.DOTALL)

    assert shown is not None
    assert shown[1] == mermaid()


def test_prudent_graph_prints_it():
    """The command prints the same text."""
    said = subprocess.run(
        [sys.executable, "-m", "agent.doors", "graph"], capture_output=True, text=True, timeout=60, check=True
    )

    assert said.stdout == mermaid()


def test_every_arrow_of_the_design_is_a_node():
    """Request to record, and the way back, each a node of its own."""
    nodes = {
        "understand",
        "consult_history",
        "assess_risk",
        "estimate_memory",
        "plan_verification",
        "approve",
        "execute",
        "verify",
        "decide",
        "roll_back",
        "record",
    }

    assert set(re.findall(r"^    (\w+)", mermaid(), re.MULTILINE)) - {"request"} == nodes
