"""The sentence that the whole project is, as a graph: one node for each arrow, the exits in the nodes' signatures.

request -> change -> evidence -> risk -> plan -> approval -> execution -> readings -> verdict -> record
"""

from __future__ import annotations

from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.graph import START, StateGraph
from langgraph.graph.state import CompiledStateGraph

from agent.nodes.approve import approve
from agent.nodes.assess_risk import assess_risk
from agent.nodes.consult_history import consult_history
from agent.nodes.decide import decide
from agent.nodes.estimate_memory import estimate_memory
from agent.nodes.execute import execute
from agent.nodes.plan_verification import plan_verification
from agent.nodes.record import record
from agent.nodes.roll_back import roll_back
from agent.nodes.understand import understand
from agent.nodes.verify import verify
from agent.state import Parts, RunState

Run = CompiledStateGraph[RunState, Parts, RunState, RunState]


def build(checkpoints: BaseCheckpointSaver[str] | None = None) -> Run:
    """Compile the graph; without checkpoints it can be drawn and run, but not resumed."""
    graph = StateGraph(RunState, context_schema=Parts)
    graph.add_node("understand", understand)  # request -> change, or an answer
    graph.add_node("consult_history", consult_history)  # change -> precedents
    graph.add_node("assess_risk", assess_risk)  # change, evidence, precedents -> risk
    graph.add_node("estimate_memory", estimate_memory)  # change, evidence -> forecast
    graph.add_node("plan_verification", plan_verification)  # all of it -> plan
    graph.add_node("approve", approve)  # plan -> approval
    graph.add_node("execute", execute)  # approval -> baseline, execution
    graph.add_node("verify", verify)  # execution -> readings
    graph.add_node("decide", decide)  # readings -> verdict
    graph.add_node("roll_back", roll_back)  # verdict -> the state from before, proven
    graph.add_node("record", record)  # verdict -> record
    graph.add_edge(START, "understand")
    return graph.compile(checkpointer=checkpoints)
