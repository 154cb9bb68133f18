"""The graph as Mermaid, in the words of the nodes."""

from __future__ import annotations

from agent.graph import build


def mermaid() -> str:
    """Draw the compiled graph: one line an edge, exits that a node chooses dotted, as it is quoted in the README."""
    drawn = build().get_graph()
    ids = {"__start__": "request([request])", "__end__": "done([done])"}
    lines = ["graph TD"]
    for edge in drawn.edges:
        source, target = (ids.get(end, end) for end in (edge.source, edge.target))
        lines.append(f"    {source} {'-.->' if edge.conditional else '-->'} {target}")
    return "\n".join(lines) + "\n"
