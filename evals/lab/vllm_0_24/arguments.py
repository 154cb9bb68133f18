"""argv -> what `vllm serve` of 0.24 makes of it: parsed, refused or resolved as the engine does.

The flags are a table of data (`flags.txt`); the way in which they are read, with underscores for dashes, dotted keys of
JSON flags, `-O3` and `--config`, is that of the engine's own parser.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from evals.lab.specimen import Specimen
from evals.lab.vllm_0_24.capture import Capture, capture_plan
from evals.lab.vllm_0_24.log import VllmLog

VERSION = "0.24.0"
_COMMANDS = "{chat,complete,serve,launch,bench,collect-env,run-batch}"
_SIZE = re.compile(r"(\d+)([kmgt])?", re.IGNORECASE)
_EXACT = re.compile(r"(\d+(?:\.\d+)?)([KMGT])")
_STEPS = "kmgt"


class Launch(NamedTuple):
    """What the server was started with, after the engine made up its mind."""

    values: Mapping[str, Any]
    """Every argument by its field name as parsed, defaults included."""
    model: str
    """The model's path or name."""
    names: list[str]
    """Names under which it is served; the first is the one that answers carry."""
    context: int
    """Longest request, in tokens."""
    seqs: int
    """Requests that may run in one step."""
    batched: int
    """Tokens of one step."""
    block: int
    """Tokens of a block of the KV pool."""
    asynchronous: bool
    """The next step is prepared while this one runs."""
    prefixes: bool
    """Shared prefixes are kept."""
    capture: Capture
    """What is captured."""


class _Flexible(argparse.ArgumentParser):
    """Ends as argparse does; long help only on demand."""

    wanted = ""
    """What help was asked for; empty: an overview."""

    def format_help(self) -> str:
        """Groups, or with `--help=all` every flag."""
        if not self.wanted:
            return (
                f"usage: {self.usage}\n\nLaunch a local OpenAI-compatible API server to serve LLM\n"
                "completions via HTTP.\n\nTip: Use `vllm serve --help=<ConfigGroup>` to explore arguments from help.\n"
                "   - To view all argument groups:     --help=listgroup\n"
                "   - To view help with pager:         --help=page\n"
                "   - To view all available parameters: --help=all\n"
            )
        if self.wanted == "all":
            return super().format_help()
        found = [action for action in self._actions if any(self.wanted in name for name in action.option_strings)]
        formatter = self._get_formatter()
        formatter.start_section(f"Arguments matching {self.wanted!r}")
        formatter.add_arguments(found)
        formatter.end_section()
        return formatter.format_help()


def size(text: str) -> int:
    """A count as the engine takes it: `8192`, `8k` (8000), `8K` (8192), `1.5M`.

    Raises:
        argparse.ArgumentTypeError: it is none.
    """
    found = _EXACT.fullmatch(text)
    if found:
        return int(float(found[1]) * 1024 ** (_STEPS.index(found[2].lower()) + 1))
    found = _SIZE.fullmatch(text)
    if found is None:
        raise argparse.ArgumentTypeError(f"invalid int value: {text!r}")
    return int(found[1]) * (1000 ** (_STEPS.index(found[2].lower()) + 1) if found[2] else 1)


def _document(text: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as slip:
        raise argparse.ArgumentTypeError(f"Value {text} cannot be converted to <function loads>.") from slip


_KINDS: dict[str, tuple[Callable[[str], Any], str | None]] = {
    "int": (int, None),
    "size": (size, None),
    "float": (float, None),
    "text": (str, None),
    "texts": (str, "+"),
    "ints": (int, "+"),
    "json": (_document, None),
}


def _table() -> list[tuple[list[str], str, str | None]]:
    """Names, kind and default as text of each flag."""
    text = resources.files("evals.lab.vllm_0_24").joinpath("flags.txt").read_text(encoding="utf-8")
    rows = []
    for line in text.splitlines():
        if line and not line.startswith("#"):
            names, kind, *default = line.split(maxsplit=2)
            rows.append((names.split(","), kind, default[0] if default else None))
    return rows


def _default(kind: str, text: str | None) -> Any:
    if text is None:
        return None
    if kind == "flag":
        return text == "true"
    if kind in ("json", "texts", "ints"):
        return json.loads(text)
    return _KINDS[kind][0](text) if kind in _KINDS else text


def parser(absent: frozenset[str] = frozenset()) -> _Flexible:
    """The parser of the `serve` command.

    Args:
        absent: Flags that this build does not have.
    """
    made = _Flexible(prog="vllm serve", usage="vllm serve [model_tag] [options]")
    made.add_argument("model_tag", nargs="?", default=None, help="The model tag to serve (optional if in config)")
    for names, kind, default in _table():
        if absent.intersection(names):
            continue
        value = _default(kind, default)
        if kind == "flag":
            made.add_argument(*names, action=argparse.BooleanOptionalAction, default=value)
        elif kind.startswith("{"):
            made.add_argument(*names, choices=kind.strip("{}").split(","), default=value)
        else:
            read, many = _KINDS[kind]
            made.add_argument(*names, type=read, nargs=many, default=value)
    return made


def parse(argv: Sequence[str], absent: frozenset[str] = frozenset()) -> dict[str, Any]:
    """Read an argv as `vllm` would.

    Args:
        argv: The words after `vllm`.
        absent: Flags that this build does not have.

    Returns:
        Each argument by its field name, `model_tag` first.

    Raises:
        SystemExit: with status 2 and a usage on stderr, for what the engine does not take; 0 after help or the version.
        ValueError: the configuration file is none.
    """
    if argv and argv[0] in {"-v", "--version"}:
        print(VERSION)
        raise SystemExit(0)
    if not argv or argv[0] != "serve":
        _end(f"argument subparser: invalid choice: {argv[0]!r}" if argv else "")
    words = list(argv[1:])
    if "--config" in words:
        words = _configured(words)
    made = parser(absent)
    spread = _spread(words)
    for word in spread:
        if word.startswith("--help="):
            made.wanted = word.partition("=")[2].lower().replace("_", "-")
    spread = ["--help" if word.startswith("--help=") else word for word in spread]
    found, unknown = made.parse_known_args(spread)
    if unknown:
        _end(f"unrecognized arguments: {' '.join(unknown)}")
    return {**defaults(), **vars(found)}


def _end(says: str) -> None:
    print(f"usage: vllm [-h] [-v]\n            {_COMMANDS} ...\nvllm: error: {says}", file=sys.stderr, flush=True)
    raise SystemExit(2)


def _configured(words: list[str]) -> list[str]:
    """Put what a YAML file says behind the model and before everything else, so that argv wins.

    Raises:
        ValueError: no file, or one of another type.
    """
    at = words.index("--config")
    if at + 1 == len(words):
        raise ValueError("No config file specified! Please check your command-line arguments.")
    path = words[at + 1]
    rest = words[:at] + words[at + 2 :]
    if Path(path).suffix not in (".yaml", ".yml"):
        raise ValueError(f"Config file must be of a yaml/yml type. {path.rpartition('.')[2]} supplied")
    with Path(path).open(encoding="utf-8") as file:
        document = yaml.safe_load(file) or {}
    said: list[str] = []
    for key, value in document.items():
        if isinstance(value, bool):
            said += [f"--{key}"] if value else []
        elif isinstance(value, list):
            said += [f"--{key}", *map(str, value)] if value else []
        else:
            said += [f"--{key}", json.dumps(value) if isinstance(value, dict) else str(value)]
    if rest and not rest[0].startswith("-"):
        return [rest[0], *said, *rest[1:]]
    if "--model" in said:
        at = said.index("--model")
        return [said[at + 1], *said[:at], *said[at + 2 :], *rest]
    if "--model" in rest:
        return [*said, *rest]
    raise ValueError("No model specified! Please specify model either as a positional argument or in a config file.")


def _spread(words: Sequence[str]) -> list[str]:
    """Dashes for underscores, `-O3` spelled out, dotted keys gathered into the JSON of their flag."""
    plain: list[str] = []
    nested: dict[str, dict[str, Any]] = {}
    waiting = iter(words)
    for word in waiting:
        if re.fullmatch(r"-O=?[0-9]+", word):
            plain += ["--optimization-level", word[2:].lstrip("=")]
            continue
        if word == "-O":
            plain.append("--optimization-level")
            continue
        name, equals, value = word.partition("=")
        if name.startswith("--"):
            name = name.partition(".")[0].replace("_", "-") + name[len(name.partition(".")[0]) :]
        if name.startswith("-") and "." in name and not re.fullmatch(r"-\d*\.?\d+", name):
            value = value if equals else next(waiting, "")
            flag, *keys = name.removesuffix("+").split(".")
            _put(nested.setdefault(flag, {}), keys, value.split(",") if name.endswith("+") else _plain(value))
            continue
        plain.append(f"{name}={value}" if equals else name)
    for flag, document in nested.items():
        plain += [flag, json.dumps(document)]
    return plain


def _plain(text: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return text


def _put(document: dict[str, Any], keys: Sequence[str], value: Any) -> None:
    for key in keys[:-1]:
        document = document.setdefault(key, {})
    document[keys[-1]] = value


def named(values: Mapping[str, Any], log: VllmLog) -> dict[str, Any]:
    """Put the model's name where it belongs, and refuse what the parser refuses after parsing.

    Args:
        values: What `parse` returned.
        log: Where the warning about a deprecated way to name it goes.

    Raises:
        TypeError: a combination that makes no sense, in the engine's words.
    """
    values = dict(values)
    if values["model_tag"] is None and values["model"] != defaults()["model"]:
        log.bare(
            "WARNING",
            "argparse_utils.py:257",
            "With `vllm serve`, you should provide the model as a positional argument or in a config file instead of"
            " via the `--model` option. The `--model` option will be removed in a future version.",
        )
        values["model_tag"] = values["model"]
    if values["model_tag"] is not None:
        values["model"] = values["model_tag"]
    if values["tool_call_parser"] is None and values["enable_auto_tool_choice"]:
        raise TypeError("Error: --enable-auto-tool-choice requires --tool-call-parser")
    return values


def said(values: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments that are not the default, in the engine's order: the log's `non-default args`."""
    usual = defaults()
    return {name: value for name, value in values.items() if name != "config" and value != usual[name]}


def resolve(values: Mapping[str, Any], specimen: Specimen) -> Launch:
    """Fill in what was left open, as the engine does for this model on this machine.

    Args:
        values: What `named` returned.
        specimen: The model and the cards.

    Raises:
        ValueError: combinations that the engine refuses, in its words.
    """
    context = values["max_model_len"] or specimen.context
    if context > specimen.context:
        raise ValueError(
            f"User-specified max_model_len ({context}) is greater than the derived max_model_len"
            f" (max_position_embeddings={specimen.context} or model_max_length=None in model's config.json). To allow"
            " overriding this maximum, set the env var VLLM_ALLOW_LONG_MAX_MODEL_LEN=1."
        )
    # Defaults of the API server on cards from 70 GiB on that are no A100 (engine facts, section 3).
    seqs = values["max_num_seqs"] or 1024
    batched = values["max_num_batched_tokens"] or 8192
    if batched < seqs:
        raise ValueError(f"max_num_batched_tokens ({batched}) must be greater than or equal to max_num_seqs ({seqs}).")
    if values["enable_chunked_prefill"] is False and batched < context:
        raise ValueError(
            f"max_num_batched_tokens ({batched}) is smaller than max_model_len ({context}). This effectively limits the"
            " maximum sequence length to max_num_batched_tokens and makes vLLM reject longer sequences. Please increase"
            " max_num_batched_tokens or decrease max_model_len."
        )
    return Launch(
        values=values,
        model=values["model"],
        names=values["served_model_name"] or [values["model"]],
        context=context,
        seqs=seqs,
        batched=batched,
        block=values["block_size"] or (specimen.page if specimen.page > 1 else 16),
        asynchronous=values["async_scheduling"] is not False,
        prefixes=values["enable_prefix_caching"] is not False,
        capture=capture_plan(values, seqs, batched),
    )


def defaults() -> dict[str, Any]:
    """Every argument's value when nobody sets it."""
    return vars(parser().parse_args([]))
