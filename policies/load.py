"""A YAML file -> a policy, or the line of the mistake and what would have been right."""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, get_args, get_origin

import yaml
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from agent.errors import BadSettings
from policies.metrics import METRICS
from policies.schema import Policy

Place = tuple[str | int, ...]
"""Where a value lies in the document: keys and positions from the top."""


def shipped() -> tuple[str, ...]:
    """Names of the policies that come with Prudent."""
    return tuple(sorted(path.stem for path in Path(__file__).parent.glob("*.yaml")))


def load(name_or_path: str, base: Path | None = None) -> Policy:
    """Load a shipped policy by its name, or a file by its path.

    Args:
        name_or_path: A name such as `decode`, or a path that ends in `.yaml` or `.yml`.
        base: The directory that a relative path starts from; None: the current one.

    Raises:
        BadSettings: there is no such policy, or the file has a mistake, with its line and the nearest right word.
    """
    if name_or_path in shipped():
        path = Path(__file__).with_name(f"{name_or_path}.yaml")
    elif name_or_path.endswith((".yaml", ".yml")):
        path = (base or Path()) / name_or_path
    else:
        raise BadSettings(
            f"There is no policy {name_or_path!r}.",
            f"{_nearest(name_or_path, shipped())}Name one of {', '.join(shipped())}, or a path that ends in .yaml.",
        )
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise BadSettings(
            f"The policy {str(path)!r} cannot be read: {error.strerror}.", "Correct the path in the settings."
        ) from None
    except UnicodeDecodeError:
        raise BadSettings(f"The policy {str(path)!r} is not UTF-8 text.", "Save it as UTF-8.") from None
    return parse(text, str(path))


def parse(text: str, source: str) -> Policy:
    """Read a policy from YAML text.

    Args:
        text: The document.
        source: What to call it in messages, such as its path.

    Raises:
        BadSettings: as in `load`.
    """
    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise BadSettings(
            f"{source}, line {line}: there is a character that YAML does not have.", "Type the line anew."
        ) from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        problem = getattr(error, "problem", None) or "it cannot be read"
        where = f"{source}, line {mark.line + 1}" if mark is not None else source
        raise BadSettings(f"{where}: this is not YAML, {problem}.", "Correct the line.") from None
    except RecursionError:
        raise BadSettings(f"{source}: it is nested too deep.", "A policy has four levels.") from None
    if node is None:
        raise BadSettings(f"{source}: the file is empty.", "Start from the shipped decode.yaml.")
    reader = _Reader(source)
    document = reader.value(node, ())
    try:
        return Policy.model_validate_json(json.dumps(document, default=str), strict=True)
    except ValidationError as error:
        raise _explained(error, reader) from None


class _Reader:
    """Turns YAML nodes into plain values and remembers the line of each."""

    def __init__(self, source: str) -> None:
        self.source = source
        self.lines: dict[Place, int] = {}
        self._scalars = yaml.constructor.SafeConstructor()
        self._seen: set[int] = set()

    def value(self, node: yaml.Node, at: Place) -> Any:
        """The plain value of a node.

        Raises:
            BadSettings: a key twice, an alias, or a tag that no policy needs.
        """
        line = node.start_mark.line + 1
        self.lines.setdefault(at, line)
        if isinstance(node, yaml.ScalarNode):
            try:
                return self._scalars.construct_object(node)
            except (yaml.YAMLError, ValueError):
                raise self.refuse(line, f"{node.value!r} cannot be read.", "Write it in quotes.") from None
        if id(node) in self._seen:
            raise self.refuse(line, "Aliases are not used in policies.", "Write the value out.")
        self._seen.add(id(node))
        if isinstance(node, yaml.SequenceNode):
            return [self.value(item, (*at, index)) for index, item in enumerate(node.value)]
        assert isinstance(node, yaml.MappingNode)
        return self._mapping(node, at)

    def refuse(self, line: int, sentence: str, remedy: str) -> BadSettings:
        """The error for a line of the document."""
        return BadSettings(f"{self.source}, line {line}: {sentence}", remedy)

    def line_of(self, at: Place) -> int:
        """The line of a place, or of the nearest place around it that has one."""
        for length in range(len(at), -1, -1):
            if at[:length] in self.lines:
                return self.lines[at[:length]]
        return 1

    def _mapping(self, node: yaml.MappingNode, at: Place) -> dict[str, Any]:
        mapping: dict[str, Any] = {}
        for key, item in node.value:
            line = key.start_mark.line + 1
            if not isinstance(key, yaml.ScalarNode):
                raise self.refuse(line, "A key is a plain word.", "Correct the line.")
            if key.value in mapping:
                first = self.lines[(*at, key.value)]
                raise self.refuse(line, f"{key.value!r} is here twice, first on line {first}.", "Remove one.")
            self.lines[(*at, key.value)] = line
            mapping[key.value] = self.value(item, (*at, key.value))
        return mapping


def _explained(error: ValidationError, reader: _Reader) -> BadSettings:
    """The first mistake in the document, as one sentence and a remedy."""
    problems = error.errors(include_url=False)
    explained = [_explain(problem, reader) for problem in problems]
    # A misspelt key is unknown and missing at once; the line of the misspelling is the one to edit.
    absent = [problem["type"] == "missing" for problem in problems]
    (_, line, sentence, remedy), *_ = sorted(
        (missing, *found) for missing, found in zip(absent, explained, strict=True)
    )
    rest = len({found[0] for found in explained} - {line})
    more = f" (On {rest} more of its lines there are mistakes.)" if rest else ""
    return reader.refuse(line, sentence, f"{remedy}{more}")


def _explain(problem: ErrorDetails, reader: _Reader) -> tuple[int, str, str]:
    context = problem.get("ctx", {})
    at = tuple(context["at"]) if problem["type"] == "fault" else _written(problem["loc"], reader)
    line = reader.line_of(at)
    spot = _spot(at)
    if problem["type"] == "fault":
        remedy = context["remedy"]
        if at and at[-1] == "metric":
            remedy = _nearest(str(context["sentence"]).split("'")[1], [metric.name for metric in METRICS]) + remedy
        return line, context["sentence"], remedy
    if problem["type"] == "extra_forbidden":
        keys = _keys(at[:-1])
        return line, f"{spot} is not a key here.", f"{_nearest(str(at[-1]), keys)}Keys: {', '.join(keys)}."
    if problem["type"] == "missing":
        return line, f"{spot} is missing.", f"Add it: {_described(at)}"
    given = problem["input"]
    if problem["type"] == "literal_error":
        choices = [word.strip("'") for word in str(context["expected"]).replace(" or ", ", ").split(", ")]
        return line, f"{spot} is {given!r}.", f"{_nearest(str(given), choices)}Write one of {', '.join(choices)}."
    shown = "a list or a table" if isinstance(given, dict | list) else repr(given)
    return line, f"{spot} is {shown}: {problem['msg'][:1].lower()}{problem['msg'][1:]}.", _described(at)


def _written(location: Sequence[str | int], reader: _Reader) -> Place:
    """A pydantic location without the names of union members, which nobody wrote."""
    at: Place = ()
    for part in location:
        longer = (*at, part)
        if longer in reader.lines or part in _keys(at) or len(longer) == 1:
            at = longer
    last = location[-1] if location else None
    if isinstance(last, str) and (*at, last) in reader.lines:
        at = (*at, last)
    return at


def _spot(at: Place) -> str:
    """A place as people write it: `criteria[3].bound`."""
    text = ""
    for part in at:
        text += f"[{part}]" if isinstance(part, int) else f".{part}"
    return f"'{text.lstrip('.')}'" if text else "The document"


def _model(at: Place) -> type[BaseModel] | None:
    """The model that describes the table at a place."""
    model: type[BaseModel] | None = Policy
    named = False
    for part in at:
        if isinstance(part, int) or named:
            named = False
            continue
        field = model.model_fields.get(part) if model is not None else None
        model = _model_in(field.annotation) if field is not None else None
        # The next word is a name of the table's own, such as a knob's.
        named = field is not None and get_origin(field.annotation) is Mapping
    return model


def _model_in(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((model for part in get_args(annotation) if (model := _model_in(part)) is not None), None)


def _keys(at: Place) -> list[str]:
    model = _model(at)
    return list(model.model_fields) if model is not None else []


def _described(at: Place) -> str:
    """What a field is for, from its own docstring."""
    names = [part for part in at if isinstance(part, str)]
    model = _model(at[: at.index(names[-1])]) if names else None
    field = model.model_fields.get(names[-1]) if model is not None else None
    if field is None or not field.description:
        return "Compare it with the shipped decode.yaml."
    return " ".join(field.description.split())


def _nearest(word: str, words: Sequence[str] | Mapping[str, Any]) -> str:
    near = difflib.get_close_matches(word, list(words), n=1, cutoff=0.5)
    return f"Did you mean {near[0]!r}? " if near else ""


def document_schema() -> str:
    """The JSON schema of a policy file, as the text of the file that lies beside the policies for editors."""
    return json.dumps(Policy.model_json_schema(), indent=2, ensure_ascii=False) + "\n"
