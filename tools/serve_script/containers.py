"""Read the launches of docker compose files, Kubernetes manifests, and YAML files of flags."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping

from tools.serve_script.bash import read_command
from tools.serve_script.bash_walk import Context
from tools.serve_script.env_file import read_variables
from tools.serve_script.launches import EnvPlace, Launch, LineOf, Variable, Word
from tools.serve_script.refusals import ScriptUnreadable
from tools.serve_script.split import atom, split_line, substitute, within
from tools.serve_script.text import Layer, Run, Runs, Source, Unknown, Via, cut, plain
from tools.serve_script.yaml_text import Document, MappingNode, Node, ScalarNode, SequenceNode, entries, is_null, member

_COMPOSE = re.compile(r"\$\$|\$\{(\w+)((?::-|:\?|:\+|-|\?|\+)[^}]*)?\}|\$([A-Za-z_]\w*)")
_KUBE = re.compile(r"\$\$\(|\$\(([A-Za-z_][\w.-]*)\)")
_MOST_NODES = 50_000
_POD_KEYS = ("containers", "initContainers", "mainContainer", "container")


# ------------------------------------------------------------------------------------------------ compose


def read_compose(
    content: bytes,
    *,
    files: Mapping[str, bytes],
    environ: Mapping[str, str],
    entrypoints: Mapping[str, tuple[str, ...]],
) -> tuple[Launch, ...]:
    """The launches of a compose file's services.

    Args:
        content: The file.
        files: Env files, by the name that it uses; `.env` is read for substitution.
        environ: The environment of whoever runs compose, as far as it is known.
        entrypoints: The entry point of each service's image, which no file says.

    Raises:
        ScriptUnreadable: it is not YAML, or a template of it.
    """
    document = Document(content)
    line_of = LineOf(content)
    given = _substitutions(files, environ)
    out: list[Launch] = []
    for root in document.roots:
        for name, _, service in entries(member(root, "services")):
            env = _compose_environment(document, service, files, given, line_of)
            words = [*_compose_words(document, member(service, "entrypoint"), given)]
            words = words or [_told(text) for text in entrypoints.get(name, ())]
            command = _compose_words(document, member(service, "command"), given)
            image = member(service, "image")
            if (
                not words
                and isinstance(image, ScalarNode)
                and re.search(r"vllm-openai|/vllm:", image.value)
                and not _names_program(command)
            ):
                words = [_told("vllm"), _told("serve")]
            site = document.extent(service)
            place = _compose_place(document, service)
            out += _container(words + command, content, files, env, name, (), site, place)
    return tuple(out)


def _names_program(words: list[Word]) -> bool:
    return (
        bool(words)
        and not words[0].text.startswith("-")
        and words[0].text.rsplit("/", 1)[-1] in ("vllm", "python", "python3", "bash", "sh")
    )


def _told(text: str) -> Word:
    return Word((Run(text, -1, -1, ("line",), (-1, -1)),), (-1, -1), ("line",), "sequence", -1)


def _container(
    words: list[Word],
    content: bytes,
    files: Mapping[str, bytes],
    env: tuple[Variable, ...],
    name: str,
    names: tuple[str, ...],
    site: tuple[int, int],
    place: EnvPlace,
) -> tuple[Launch, ...]:
    if not words:
        return ()
    launches = read_command(
        words, content=content, files=files, env=env, context=Context(names=(name, *names)), site=site, place=place
    )
    line_of = LineOf(content)
    first = next((word.site[0] for word in words if word.site[0] >= 0), site[0])
    return tuple(launch._replace(env_place=place, line=line_of.at(first), site=site) for launch in launches)


def _substitutions(files: Mapping[str, bytes], environ: Mapping[str, str]) -> dict[str, Runs]:
    out: dict[str, Runs] = {}
    for name, content in files.items():
        if name.rsplit("/", 1)[-1] == ".env":
            text = content.decode("latin-1")
            found = read_variables(Source((Run(text, -1, -1, ("line",), (-1, -1)),)), "compose", LineOf(b""))
            out |= {
                key: tuple([run._replace(via=(Via(name, -1, -1, (), -1),)) for run in v.runs])
                for key, v in found.items()
            }
    for key, value in environ.items():
        out[key] = (Run(value, -1, -1, ("line",), (-1, -1), (Via("the caller's environment", -1, -1, (), -1),)),)
    return out


def _interpolate(runs: Runs, given: Mapping[str, Runs]) -> Runs:
    """Compose's own variables: `${NAME:-default}` and `$$`."""

    def replace(match: re.Match[str], found: Runs) -> Runs:
        if match[0] == "$$":
            return (atom("$", found),)
        name = match[1] or match[3]
        operator = match[2] or ""
        known = given.get(name)
        if known is not None and (plain(known) or not operator.startswith(":")):
            return known
        if operator.startswith((":-", "-")):
            skip = len(name) + 2 + (2 if operator.startswith(":") else 1)
            size = len(plain(found))
            default = cut(found, skip, size - 1)
            if not default:
                at = found[-1].end - 1
                default = (found[-1]._replace(text="", start=at, end=at, outer=(at, at)),)
            return tuple(
                [
                    run._replace(layers=("default", *run.layers), overridable=name, outer=(run.start, run.end))
                    for run in default
                ]
            )
        if operator.startswith((":+", "+")):
            return ()
        reason = Unknown("not-in-file", f"{name} comes from the environment of whoever runs compose", True)
        return (found[0]._replace(text="\x01", unknown=reason),)

    return within(substitute(runs, _COMPOSE, replace), "compose")


def _compose_words(document: Document, node: Node | None, given: Mapping[str, Runs]) -> list[Word]:
    if node is None or is_null(node):
        return []
    owner = document.extent(node)[0]
    if isinstance(node, SequenceNode):
        return _items(document, node, lambda item: _interpolate(document.runs(item, string=False), given), ("compose",))
    if not isinstance(node, ScalarNode):
        return []
    source = Source(_interpolate(document.runs(node, string=False), given))
    out = []
    for item in split_line(source, "posix"):
        tail: Layer = next((run.layers[-1] for run in item.runs if run.layers), "block")
        layers: tuple[Layer, ...] = ("bare", "compose", tail)
        out.append(Word(item.runs, source.extent(item.start, item.end), layers, "fields", owner))
    return out


def _items(
    document: Document, node: SequenceNode, read: Callable[[Node], Runs], inner: tuple[Layer, ...]
) -> list[Word]:
    out = []
    start = document.extent(node)[0]
    flow = bool(node.flow_style)
    for item in node.value:
        if not isinstance(item, ScalarNode):
            continue
        tail: Layer = "yaml-double" if item.style == '"' else "yaml-single" if item.style == "'" else "plain"
        out.append(
            Word(
                read(item),
                document.extent(item),
                (tail, *inner),
                "json" if flow else "sequence",
                start,
            )
        )
    return out


def _compose_environment(
    document: Document, service: Node, files: Mapping[str, bytes], given: Mapping[str, Runs], line_of: LineOf
) -> tuple[Variable, ...]:
    out: dict[str, Variable] = {}
    env_file = member(service, "env_file")
    listed = (
        env_file.value if isinstance(env_file, SequenceNode) else [env_file] if isinstance(env_file, ScalarNode) else []
    )
    for item in listed:
        path_node = member(item, "path") if isinstance(item, MappingNode) else item
        if not isinstance(path_node, ScalarNode):
            continue
        content = next(
            (c for n, c in files.items() if n.removeprefix("./") == path_node.value.removeprefix("./")), None
        )
        if content is not None:
            text = content.decode("latin-1")
            runs: Runs = (Run(text, -1, -1, ("line",), (-1, -1), (Via(path_node.value, -1, -1, (), -1),)),)
            out |= read_variables(Source(runs), "compose", line_of)
    node = member(service, "environment")
    if isinstance(node, MappingNode):
        for name, key, value in entries(node):
            start, end = document.at(key.start_mark.index), document.extent(value)[1]
            if is_null(value):
                end = max(end, document.extent(key)[1])
                runs = (
                    Run(
                        "\x01",
                        -1,
                        -1,
                        (),
                        (-1, -1),
                        (),
                        Unknown("not-in-file", f"{name} comes from whoever runs compose"),
                    ),
                )
            else:
                runs = _interpolate(document.runs(value, string=False), given)
            alone = not node.flow_style
            out[name] = Variable(name, runs, line_of.at(start), (start, end), "map", (start, end), alone)
    elif isinstance(node, SequenceNode):
        for item in node.value:
            if not isinstance(item, ScalarNode):
                continue
            runs = _interpolate(document.runs(item, string=False), given)
            name, equals, _ = plain(runs).partition("=")
            site = document.extent(item)
            if not equals:
                runs = (
                    Run(
                        "\x01",
                        -1,
                        -1,
                        (),
                        (-1, -1),
                        (),
                        Unknown("not-in-file", f"{name} comes from whoever runs compose"),
                    ),
                )
            else:
                runs = _behind(runs, len(name) + 1)
            out[name] = Variable(name, runs, line_of.at(site[0]), site, "list", site, not node.flow_style)
    return tuple(out.values())


def _behind(runs: Runs, at: int) -> Runs:
    """What follows in a text, an empty stretch with its place included."""
    size = len(plain(runs))
    if size > at:
        return cut(runs, at, size)
    last = runs[-1]
    return (last._replace(text="", start=last.end, outer=(last.end, last.end)),)


def _indent(document: Document, offset: int) -> str:
    low = document.raw.rfind("\n", 0, offset) + 1
    return re.match(r"[ \t]*", document.raw[low:])[0]  # type: ignore[index]


def _line_end(document: Document, offset: int) -> int:
    at = document.raw.find("\n", offset)
    return len(document.raw) if at < 0 else at + 1


def _newline(document: Document) -> str:
    return "\r\n" if "\r\n" in document.raw else "\n"


def _appended(document: Document, at: int, lines: list[str]) -> str:
    """Whole lines to insert at an offset that is the beginning of one, or the end of the file."""
    newline = _newline(document)
    text = "".join(line + newline for line in lines)
    if at == len(document.raw) and not document.raw.endswith("\n"):
        return newline + text.removesuffix(newline)
    return text


def _compose_place(document: Document, service: Node) -> EnvPlace:
    node = member(service, "environment")
    own = [key for name, key, _ in entries(service)]
    if isinstance(node, MappingNode) and node.value:
        last = document.extent(node.value[-1][1])[1]
        if node.flow_style:
            return EnvPlace(last, ', {name}: "{value}"', ("compose", "yaml-double"))
        space = _indent(document, document.at(node.value[-1][0].start_mark.index))
        at = _line_end(document, last)
        return EnvPlace(at, _appended(document, at, [space + '{name}: "{value}"']), ("compose", "yaml-double"))
    if isinstance(node, SequenceNode) and node.value:
        last = document.extent(node.value[-1])[1]
        if node.flow_style:
            return EnvPlace(last, ', "{name}={value}"', ("compose", "yaml-double"))
        space = _indent(document, document.at(node.value[-1].start_mark.index))
        at = _line_end(document, last)
        plain_line = _appended(document, at, [space + "- {name}={value}"])
        return EnvPlace(
            at,
            plain_line,
            ("compose", "plain"),
            _appended(document, at, [space + '- "{name}={value}"']),
            ("compose", "yaml-double"),
        )
    if not isinstance(service, MappingNode) or service.flow_style or not own or node is not None:
        return EnvPlace(-1, "", ())
    first = document.at(own[0].start_mark.index)
    low = document.raw.rfind("\n", 0, first) + 1
    space = _indent(document, first)
    return EnvPlace(
        low,
        _appended(document, low, [space + "environment:", space + '  {name}: "{value}"']),
        ("compose", "yaml-double"),
    )


# --------------------------------------------------------------------------------------------- Kubernetes


def read_manifests(
    content: bytes, *, files: Mapping[str, bytes], entrypoints: Mapping[str, tuple[str, ...]]
) -> tuple[Launch, ...]:
    """The launches of every container in Kubernetes manifests, custom resources included.

    Args:
        content: The file.
        files: Other files that the commands read.
        entrypoints: The entry point of each container's image, which no file says.

    Raises:
        ScriptUnreadable: it is not YAML, or a template of it.
    """
    document = Document(content)
    line_of = LineOf(content)
    out: list[Launch] = []
    for root in document.roots:
        name = member(member(root, "metadata"), "name")
        names = (name.value,) if isinstance(name, ScalarNode) else ()
        for container, around in _pods(root, ()):
            out += _pod(document, container, (*around, *names), files, entrypoints, line_of)
    return tuple(out)


def _pods(
    node: Node, around: tuple[str, ...], on_path: frozenset[int] = frozenset(), visited: list[int] | None = None
) -> Iterator[tuple[MappingNode, tuple[str, ...]]]:
    """Each container with the names around it; an anchor within itself is left out."""
    visited = [] if visited is None else visited
    visited.append(id(node))
    if len(visited) > _MOST_NODES:
        raise ScriptUnreadable("does-not-parse", "The anchors of the file unfold into too much.", "Edit it by hand.")
    if id(node) in on_path:
        return
    on_path |= {id(node)}
    if isinstance(node, SequenceNode):
        for item in node.value:
            yield from _pods(item, around, on_path, visited)
        return
    for key, _, value in entries(node):
        if key in _POD_KEYS and isinstance(value, SequenceNode):
            for item in value.value:
                if isinstance(item, MappingNode):
                    yield item, around
        elif key in _POD_KEYS and isinstance(value, MappingNode):
            yield value, around
        else:
            inner = (key, *around)
            title = member(value, "name")
            if isinstance(title, ScalarNode):
                inner = (title.value, *inner)
            yield from _pods(value, inner if isinstance(value, MappingNode) else around, on_path, visited)


def _pod(
    document: Document,
    container: MappingNode,
    names: tuple[str, ...],
    files: Mapping[str, bytes],
    entrypoints: Mapping[str, tuple[str, ...]],
    line_of: LineOf,
) -> tuple[Launch, ...]:
    title = member(container, "name")
    name = title.value if isinstance(title, ScalarNode) else ""
    env = _pod_environment(document, container, line_of)
    known = {variable.name: variable for variable in env}

    def read(item: Node) -> Runs:
        return _kube(document.runs(item, string=True), known)

    def listed(key: str) -> list[Word]:
        node = member(container, key)
        return _items(document, node, read, ("kube",)) if isinstance(node, SequenceNode) else []

    words = listed("command") or [_told(text) for text in entrypoints.get(name, ())]
    arguments = listed("args")
    image = member(container, "image")
    if (
        not words
        and isinstance(image, ScalarNode)
        and re.search(r"vllm-openai|/vllm:", image.value)
        and not _names_program(arguments)
    ):
        words = [_told("vllm"), _told("serve")]
    site = document.extent(container)
    return _container(
        words + arguments, document.content, files, env, name, names, site, _pod_place(document, container)
    )


def _kube(runs: Runs, known: Mapping[str, Variable]) -> Runs:
    def replace(match: re.Match[str], found: Runs) -> Runs:
        if match[0] == "$$(":
            return (atom("$", cut(found, 0, 2)), *cut(found, 2, 3))
        variable = known.get(match[1])
        if variable is None:
            return found
        via = Via(match[1], found[0].start, found[-1].end, found[0].layers, len(plain(variable.runs)))
        return tuple([run._replace(via=(*run.via, via)) for run in variable.runs])

    return tuple(
        [
            run if run.via or run.unknown else run._replace(layers=("kube", *run.layers))
            for run in substitute(runs, _KUBE, replace)
        ]
    )


def _pod_environment(document: Document, container: Node, line_of: LineOf) -> tuple[Variable, ...]:
    out: dict[str, Variable] = {}
    node = member(container, "env")
    for item in node.value if isinstance(node, SequenceNode) else []:
        title, value = member(item, "name"), member(item, "value")
        if not isinstance(title, ScalarNode):
            continue
        name = title.value
        start, end = document.extent(item)
        if isinstance(value, ScalarNode):
            runs = _kube(document.runs(value, string=True), out)
        else:
            reason = Unknown("not-in-file", f"{name} comes from a secret, a config map or the pod itself")
            runs = (Run("\x01", start, end, (), (start, end), (), reason),)
        alone = not (isinstance(node, SequenceNode) and node.flow_style)
        out[name] = Variable(name, runs, line_of.at(start), (start, end), "entry", (start, end), alone)
    return tuple(out.values())


def _pod_place(document: Document, container: MappingNode) -> EnvPlace:
    node = member(container, "env")
    if isinstance(node, SequenceNode) and node.value:
        last = document.extent(node.value[-1])[1]
        if node.flow_style:
            return EnvPlace(last, ', {{name: {name}, value: "{value}"}}', ("kube", "yaml-double"))
        space = _indent(document, document.at(node.value[-1].start_mark.index))
        at = _line_end(document, last)
        return EnvPlace(
            at,
            _appended(document, at, [space + "- name: {name}", space + '  value: "{value}"']),
            ("kube", "yaml-double"),
        )
    keys = [key for _, key, _ in entries(container)]
    if node is not None or container.flow_style or not keys:
        return EnvPlace(-1, "", ())
    last_key, last_value = container.value[-1]
    space = " " * (last_key.start_mark.column)
    at = _line_end(document, document.extent(last_value)[1])
    return EnvPlace(
        at,
        _appended(document, at, [space + "env:", space + "  - name: {name}", space + '    value: "{value}"']),
        ("kube", "yaml-double"),
    )


# ---------------------------------------------------------------------------------------------- flag files


def read_config(content: bytes) -> tuple[Launch, ...]:
    """A YAML file of flags that a launch reads with `--config`, as the arguments that it stands for.

    Raises:
        ScriptUnreadable: it is no flat mapping.
    """
    document = Document(content)
    line_of = LineOf(content)
    root = document.roots[0] if document.roots else None
    if not isinstance(root, MappingNode):
        raise ScriptUnreadable(
            "no-launch",
            "The file is neither a launch file nor a mapping of flags.",
            "Name the file that holds the launch command.",
        )
    words: list[Word] = []
    for name, key, value in entries(root):
        start = document.at(key.start_mark.index)
        end = document.extent(value)[1]
        head = Run("--" + name, -1, -1, ("line",), (-1, -1))
        site = (start, max(end, document.extent(key)[1]))
        items = value.value if isinstance(value, SequenceNode) else [value] if isinstance(value, ScalarNode) else []
        words.append(Word((head,), site, ("line",), "config", start))
        for item in items:
            if isinstance(item, ScalarNode) and item.tag != "tag:yaml.org,2002:bool":
                layers: tuple[Layer, ...] = ("plain",)
                words.append(Word(document.runs(item, string=False), site, layers, "config", start))
    site = document.extent(root)
    return (
        Launch("vllm", tuple(words), 0, (), line_of.at(site[0]), site, notes=("The launch reads it with --config.",)),
    )
