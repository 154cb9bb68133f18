"""The graph as Mermaid, in the words of the nodes."""

from __future__ import annotations

from typing import NamedTuple

from agent.graph import build


class Edge(NamedTuple):
    """One way from a node to the next."""

    source: str
    target: str
    chosen: bool
    """Whether the node chooses it; otherwise it is always taken."""


def edges() -> tuple[Edge, ...]:
    """The edges of the compiled graph; `request` and `done` are its ends."""
    ends = {"__start__": "request", "__end__": "done"}
    return tuple(
        Edge(ends.get(edge.source, edge.source), ends.get(edge.target, edge.target), edge.conditional)
        for edge in build().get_graph().edges
    )


def mermaid() -> str:
    """Draw the compiled graph: one line an edge, exits that a node chooses dotted, as it is quoted in the README."""
    shapes = {"request": "request([request])", "done": "done([done])"}
    lines = ["graph TD"]
    for edge in edges():
        source, target = (shapes.get(end, end) for end in (edge.source, edge.target))
        lines.append(f"    {source} {'-.->' if edge.chosen else '-->'} {target}")
    return "\n".join(lines) + "\n"
