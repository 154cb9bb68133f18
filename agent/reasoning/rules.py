"""A reasoner without a model: the grammar of `phrases`, and risk from catalogue, evidence and precedents."""

from __future__ import annotations

from collections.abc import Sequence

from agent.domain import Change, Evidence, FailureMode, Knob, Level, Precedent, Request, Risk
from agent.reasoning import phrases
from agent.reasoning.reasoner import Tool, Understanding, Wish

_LEVELS: tuple[Level, ...] = ("low", "medium", "high")


NEAR = 3
"""Coupled settings that an answer tells besides, because they bear on what the value means."""


class Rules:
    """The reasoner that is always there."""

    @property
    def name(self) -> str:
        """What records call it."""
        return "rules"

    def understand(self, request: Request, knobs: Sequence[Knob], tools: Sequence[Tool]) -> Understanding:
        """Say what a request means; see the promise."""
        text, unless_unsafe = phrases.split_condition(phrases.normal(request.text))
        named = phrases.mentions(text, knobs)
        role = phrases.other_role(text, request.worker)
        if role is not None:
            return _unclear(
                f"The request speaks of {role!r}, and this run is about worker {request.worker!r}.",
                (f"the same request with --worker NAME of the {role} worker",),
            )
        if phrases.is_question(text):
            return self._answer(text, named, tools)
        if phrases.negated(text):
            return Understanding(
                kind="foreign", says="The request says what not to do, so there is nothing to carry out."
            )
        if phrases.is_roll_back(text) and not named:
            return Understanding(kind="roll_back", unless_unsafe=unless_unsafe)
        wanted = phrases.clauses(text, knobs)
        if not wanted:
            return self._not_understood(named)
        return _whole(wanted, text, knobs) or _wish(wanted[0], unless_unsafe, phrases.claims(request.text, knobs))

    def assess_risk(
        self,
        change: Change,
        knobs: Sequence[Knob],
        evidence: Sequence[Evidence],
        precedents: Sequence[Precedent],
        tools: Sequence[Tool],
    ) -> Risk:
        """Weigh a change; see the promise."""
        touched = [knob for knob in knobs if knob.name in {setting.knob for setting in change.settings}]
        ways: list[FailureMode] = []
        level = max((knob.risk for knob in touched), key=_LEVELS.index, default="medium")
        in_force = _ids_about(evidence, "in force")
        for knob in touched:
            for what, caught_by in _WAYS.get(knob.subsystem, _WAYS[""]):
                because = _ids_about(evidence, knob.name) or in_force or _any_id(evidence)
                if because:
                    ways.append(FailureMode(what=what, because=because, caught_by=caught_by))
        for precedent in precedents:
            title = precedent.what.partition(". ")[0].rstrip(".")
            check = precedent.demands[0] if precedent.demands else "start-up and effective values"
            ways.append(FailureMode(what=f"It has happened before: {title}.", because=(precedent.id,), caught_by=check))
        if any(precedent.undoes_fix for precedent in precedents):
            level = "high"
        elif precedents and level == "low":
            level = "medium"
        add = tuple(dict.fromkeys(check for precedent in precedents for check in precedent.demands))
        names = " and ".join(knob.subsystem for knob in touched) or "the worker"
        told = f"{len(precedents)} precedent(s) bear on it" if precedents else "no precedent is known"
        return Risk(
            level=level,
            ways=tuple(ways),
            summary=f"{change.summary}: touches {names}; {told}.",
            add_checks=add,
            by=self.name,
        )

    def _answer(self, text: str, named: Sequence[phrases.Mention], tools: Sequence[Tool]) -> Understanding:
        """Answer what a value is, from the live worker; anything else is said not to be known."""
        hypothetical = phrases.is_hypothetical(text)
        if not named or hypothetical:
            return Understanding(
                kind="unclear",
                says="Without a model I answer what a setting is on the worker, not what would be.",
                choices=("what are the current max running requests?", "what is cuda-graph-max-bs?"),
            )
        names = tuple(dict.fromkeys(mention.knob.name for mention in named))
        facts: list[Evidence] = []
        for tool in tools:
            if tool.name in {"effective_values", "serve_script"}:
                facts += tool.ask({"knobs": list(names)})
        near = tuple(name for mention in named for name in mention.knob.couples if name not in names)[:NEAR]
        for tool in tools:
            if tool.name == "effective_values" and near:
                facts += [fact for fact in tool.ask({"knobs": list(near)}) if "in force" in fact.what]
        facts = list({fact.id: fact for fact in facts}.values())
        if not facts:
            return Understanding(
                kind="unclear", says="Nothing at hand can look that up.", choices=_examples(named[0].knob)
            )
        return Understanding(
            kind="question",
            answer="; ".join(fact.what for fact in facts) + ".",
            cites=tuple(fact.id for fact in facts),
        )

    def _not_understood(self, named: Sequence[phrases.Mention]) -> Understanding:
        if named:
            name = named[0].knob.words[0] if named[0].knob.words else named[0].knob.name
            return _unclear(
                f"The request names {name!r}, but not what to do with it.",
                _examples(named[0].knob),
            )
        return Understanding(
            kind="foreign",
            says="I find neither a setting nor anything to do with one in that.",
        )


_MEMORY, _SESSIONS = "free memory after capture", "tool-call sessions"
_WAYS: dict[str, tuple[tuple[str, str], ...]] = {
    "decode graph capture": (
        ("Capture needs GPU memory and may run out of it, at the start or with the first large batch.", _MEMORY),
        ("Batches that ran eager until now run captured, on a path that nobody checked at these sizes.", _SESSIONS),
    ),
    "prefill graph capture": (
        ("Capture needs GPU memory and may run out of it, at the start or with the first long prompt.", _MEMORY),
    ),
    "scheduler overlap": (
        ("Ranks can lose step with each other and stop without an error while health still answers.", "abort storms"),
    ),
    "KV pool": (
        ("The KV pool takes memory from graphs and activations; the first long prefill may run out of it.", _MEMORY),
    ),
    "admission": (("More in flight need more of the KV pool; fewer make the queue longer.", "throughput"),),
    "": (("The setting may not take, or move something else with it.", "the values in force after the start"),),
}


def _whole(wanted: Sequence[phrases.Clause], text: str, knobs: Sequence[Knob]) -> Understanding | None:
    """What keeps a request from being one wish; nothing is done by halves."""
    unknown = [clause for clause in wanted if clause.mention is None]
    known = tuple(clause.words for clause in wanted if clause.mention is not None)
    if unknown and not known:
        return Understanding(kind="foreign", says=f"I know no setting that {unknown[0].words!r} could mean.")
    if unknown:
        return _unclear(f"I understand {known[0]!r}, but not {unknown[0].words!r}; nothing is done by halves.", known)
    if len({clause.mention.knob.name for clause in wanted if clause.mention}) > 1:
        return _unclear("Two settings at once cannot be told apart afterwards; which one first?", known)
    condition = phrases.loose_condition(text)
    if condition is not None:
        return _unclear(f"I do not know what to make of {condition!r}; I act now, on one worker, or not at all.", known)
    loose = phrases.loose_numbers(text, knobs, wanted)
    if loose:
        return _unclear(f"I do not know what {loose[0]:g} is for.", known)
    if len(known) > 1:
        return _unclear("The request names the same setting twice.", known)
    return None


def _wish(clause: phrases.Clause, unless_unsafe: bool, stated: tuple[str, ...]) -> Understanding:
    """One clause -> a wish, or a question where a part of it is missing or does not fit the knob."""
    assert clause.mention is not None
    knob, verb = clause.mention.knob, clause.verb or "set"
    value = clause.value.value if clause.value else None
    if knob.value == "switch":
        wish = _switch(clause, knob, verb, value)
        if wish is None:
            return _unclear(f"{knob.name} is on or off; which of the two?", _examples(knob))
    elif verb in {"turn_on", "turn_off"}:
        return _unclear(f"{knob.name} takes a value, it is not a switch.", _examples(knob))
    elif verb == "unset":
        wish = Wish(knob=knob.name, verb="unset", words=clause.words)
    elif value is None:
        return _unclear(f"To which value? The request names none for {knob.name}.", _examples(knob))
    elif clause.by and verb in {"raise", "lower"}:
        wish = Wish(knob=knob.name, verb="raise_by" if verb == "raise" else "lower_by", value=value, words=clause.words)
    else:
        was = clause.was.value if clause.was else None
        wish = Wish(knob=knob.name, verb=verb, value=value, was=was, words=clause.words)
    return Understanding(kind="change", wishes=(wish,), unless_unsafe=unless_unsafe, claims=stated)


def _switch(clause: phrases.Clause, knob: Knob, verb: phrases.Verb, value: float | None) -> Wish | None:
    assert clause.mention is not None
    if value in (0.0, 1.0) and verb == "set":
        verb = "turn_on" if value else "turn_off"
    if verb == "unset":
        return Wish(knob=knob.name, verb="unset" if clause.mention.literal else "turn_off", words=clause.words)
    if verb == "set" and clause.mention.literal and value is None and knob.kind == "flag":
        return Wish(knob=knob.name, verb="set", words=clause.words)
    if verb in {"turn_on", "turn_off"}:
        if clause.mention.literal and knob.inverted:
            return Wish(knob=knob.name, verb="set" if verb == "turn_on" else "unset", words=clause.words)
        return Wish(knob=knob.name, verb=verb, words=clause.words)
    return None


def _examples(knob: Knob) -> tuple[str, ...]:
    name = knob.words[0] if knob.words else knob.name
    if knob.value == "switch":
        return (f"turn on {name}", f"turn off {name}")
    return (f"set {name} to N",)


def _unclear(says: str, choices: tuple[str, ...]) -> Understanding:
    return Understanding(kind="unclear", says=says, choices=choices)


def _ids_about(evidence: Sequence[Evidence], words: str) -> tuple[str, ...]:
    return tuple(fact.id for fact in evidence if words in fact.what)


def _any_id(evidence: Sequence[Evidence]) -> tuple[str, ...]:
    return tuple(fact.id for fact in evidence[:1])
