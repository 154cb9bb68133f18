"""Which words of a command are a wrapper's and which are the server's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

SHELLS = frozenset({"bash", "sh", "dash", "ash", "zsh"})
CONTAINERS = frozenset({"docker", "podman", "nerdctl"})
PYTHONS = ("python", "pypy")

_VALUED: dict[str, tuple[frozenset[str], int]] = {
    # options that take the next word as their value, and how many positional words come before the command
    "nohup": (frozenset(), 0),
    "setsid": (frozenset(), 0),
    "exec": (frozenset({"-a"}), 0),
    "command": (frozenset(), 0),
    "builtin": (frozenset(), 0),
    "time": (frozenset({"-f", "-o", "--format", "--output"}), 0),
    "coproc": (frozenset(), 0),
    "stdbuf": (frozenset({"-i", "-o", "-e", "--input", "--output", "--error"}), 0),
    "nice": (frozenset({"-n", "--adjustment"}), 0),
    "ionice": (frozenset({"-c", "-n", "--class", "--classdata"}), 0),
    "chrt": (frozenset({"-T", "-P", "-D"}), 1),
    "taskset": (frozenset(), 1),
    "numactl": (
        frozenset(
            {"-N", "-m", "-C", "-i", "-p", "-P", "-w", "--cpunodebind", "--membind", "--physcpubind", "--interleave"}
            | {"--preferred", "--preferred-many", "--weighted-interleave"}
        ),
        0,
    ),
    "timeout": (frozenset({"-k", "-s", "--kill-after", "--signal"}), 1),
    "sudo": (frozenset({"-u", "-g", "-h", "-p", "-C", "-r", "-t", "-D", "-R", "-T", "-U", "--user", "--group"}), 0),
    "doas": (frozenset({"-u", "-C"}), 0),
    "runuser": (frozenset({"-u", "--user", "-g", "-G", "-s"}), 0),
    "gosu": (frozenset(), 1),
    "su-exec": (frozenset(), 1),
    "setpriv": (frozenset({"--reuid", "--regid", "--groups", "--bounding-set", "--inh-caps", "--ambient-caps"}), 0),
    "prlimit": (frozenset({"-p", "--pid"}), 0),
    "chroot": (frozenset(), 1),
    "unbuffer": (frozenset(), 0),
    "catchsegv": (frozenset(), 0),
    "dumb-init": (frozenset({"-r", "--rewrite"}), 0),
    "tini": (frozenset({"-p", "-e"}), 0),
    "systemd-run": (
        frozenset(
            {"-u", "--unit", "-p", "--property", "-E", "--setenv", "-H", "-M", "--slice", "--uid", "--gid", "--nice"}
            | {"--description", "--working-directory", "--service-type", "--on-active", "--on-boot", "--timer-property"}
        ),
        0,
    ),
    "systemd-inhibit": (frozenset({"--what", "--who", "--why", "--mode"}), 0),
    "srun": (
        frozenset(
            {"-N", "-n", "-c", "-p", "-w", "-J", "-t", "-G", "-A", "-D", "-o", "-e", "-x", "-q", "--nodes", "--ntasks"}
            | {"--partition", "--nodelist", "--job-name", "--time", "--gpus", "--account", "--chdir", "--output"}
            | {"--error", "--exclude", "--qos", "--mem", "--cpus-per-task", "--ntasks-per-node", "--container-image"}
            | {
                "--container-mounts",
                "--container-name",
                "--container-workdir",
                "--gres",
                "--gpus-per-node",
                "--het-group",
            }
            | {"--export", "--mpi"}
        ),
        0,
    ),
    "mpirun": (frozenset({"-n", "-np", "-H", "--host", "--hostfile", "-x", "--map-by", "--bind-to"}), 0),
    "uv": (
        frozenset(
            {"--with", "--extra", "--group", "--python", "-p", "--project", "--directory", "--env-file", "--index"}
        ),
        0,
    ),
    "conda": (frozenset({"-n", "--name", "-p", "--prefix", "--cwd"}), 0),
    "mamba": (frozenset({"-n", "--name", "-p", "--prefix", "--cwd"}), 0),
    "micromamba": (frozenset({"-n", "--name", "-p", "--prefix", "--cwd", "-r", "--root-prefix", "-e", "--env"}), 0),
    "poetry": (frozenset({"-C", "-P"}), 0),
    "pixi": (frozenset({"-e", "--environment", "--manifest-path"}), 0),
    "apptainer": (frozenset({"-B", "--bind", "--env", "--env-file", "--pwd", "-H", "--home", "-W", "--workdir"}), 1),
    "singularity": (frozenset({"-B", "--bind", "--env", "--env-file", "--pwd", "-H", "--home", "-W", "--workdir"}), 1),
    "nsys": (
        frozenset({"-o", "--output", "-t", "--trace", "-y", "--delay", "-d", "--duration", "-c", "--capture-range"}),
        0,
    ),
    "screen": (frozenset({"-S", "-s", "-c", "-L", "-Logfile", "-h", "-t", "-T"}), 0),
    "ts": (frozenset(), 0),
}
_VERBS = {
    "uv": {"run"},
    "conda": {"run"},
    "mamba": {"run"},
    "micromamba": {"run"},
    "poetry": {"run"},
    "pixi": {"run"},
    "apptainer": {"exec", "run"},
    "singularity": {"exec", "run"},
    "nsys": {"profile", "launch"},
}
_DOCKER_SWITCHES = frozenset(
    {"--rm", "--init", "--privileged", "--detach", "--interactive", "--tty", "--read-only", "--publish-all", "--quiet"}
    | {"--oom-kill-disable", "--no-healthcheck", "--sig-proxy", "--disable-content-trust", "--replace", "--no-hosts"}
)
SERVER_MODULES = ("sglang.launch_server", "vllm.entrypoints.")
ROUTER_MODULES = ("sglang_router.launch_router", "sglang.launch_router")
TALKERS = frozenset(
    """
echo printf cat pkill pgrep grep egrep fgrep kill killall ps mkdir rm rmdir cp mv ln ls chmod chown touch test
[ curl wget sleep wait cd pushd popd head tail sed awk tr cut sort uniq wc date which type hash true false
ulimit trap git pip nvidia-smi rocm-smi lsof ss netstat fuser module hf huggingface-cli jq tput logger dirname
basename systemctl journalctl apt-get stat df du free nproc hostname find seq exit return break continue shopt
umask jobs disown fg bg let getopts alias unalias bind complete history
""".split()  # noqa: SIM905 - a list of words reads better as words
)
"""Commands whose words are never a launch, whatever they say."""


class Seen(NamedTuple):
    """What a command turns out to be."""

    what: Literal["server", "shell", "container", "terminal", "remote", "eval", "router", "other"]
    at: int
    """Index of the program."""
    first: int
    """Index of the first word that it reads itself: engine arguments, or the shell's options."""
    engine: Literal["sglang", "vllm", "router"] = "sglang"
    env: tuple[int, ...] = ()
    """Indices of words `NAME=value` that a wrapper puts into the environment."""
    env_at: int = -1
    """Index before which `NAME=value` can be put for `env` or `sudo`; -1: there is no such wrapper."""
    wrappers: tuple[str, ...] = ()


def base(word: str) -> str:
    """A program's name without its folder."""
    return word.rsplit("/", 1)[-1]


def is_python(name: str) -> bool:
    """Whether a program is an interpreter of Python."""
    return any(
        name == stem or (name.startswith(stem) and name[len(stem) :].replace(".", "").isdigit()) for stem in PYTHONS
    )


def skip_options(words: Sequence[str], at: int, valued: frozenset[str], positional: int) -> int:
    """Index of the first word that is neither an option of a wrapper nor one of its positional words."""
    while at < len(words):
        word = words[at]
        if word == "--":
            at += 1
            break
        if len(word) > 1 and word.startswith("-"):
            at += 2 if word in valued else 1
            continue
        break
    return at + positional


def see(words: Sequence[str]) -> Seen:
    """See through wrappers to what a command starts."""
    at = 0
    env: list[int] = []
    env_at = -1
    wrappers: list[str] = []
    while at < len(words):
        name = base(words[at])
        if name == "env" or (name == "sudo" and "=" in "".join(words[at + 1 : at + 6])):
            valued = frozenset({"-u", "--unset", "-C", "--chdir", "-S"}) if name == "env" else _VALUED["sudo"][0]
            at = skip_options(words, at + 1, valued, 0)
            env_at = at
            while at < len(words) and _is_assignment(words[at]):
                env.append(at)
                at += 1
            wrappers.append(name)
            continue
        if name in _VERBS:
            if len(words) <= at + 1:
                break
            valued, positional = _VALUED[name]
            verb = skip_options(words, at + 1, valued, 0)
            if verb >= len(words) or words[verb] not in _VERBS[name]:
                break
            wrappers.append(name)
            at = skip_options(words, verb + 1, valued, positional)
            continue
        if name == "screen":
            wrappers.append(name)
            at = skip_options(words, at + 1, frozenset({"-S", "-dmS", "-h", "-c", "-t", "-T", "-Logfile"}), 0)
            continue
        if name in _VALUED:
            wrappers.append(name)
            valued, positional = _VALUED[name]
            if name == "taskset" and any(word.startswith(("-c", "--cpu-list")) for word in words[at + 1 : at + 3]):
                valued = frozenset({"-c", "--cpu-list"})
                positional = 0
            at = skip_options(words, at + 1, valued, positional)
            continue
        seen = _program(words, at)
        if seen is None and name not in TALKERS:
            # A program that we do not know and that is given a whole launch is taken for a wrapper.
            later = next((i for i in range(at + 1, len(words)) if _program(words, i, whole=True)), -1)
            if later > 0:
                wrappers.append(name)
                at = later
                seen = _program(words, at)
        if seen is None:
            break
        return seen._replace(env=tuple(env), env_at=env_at, wrappers=tuple(wrappers))
    return Seen("other", min(at, max(0, len(words) - 1)), len(words), wrappers=tuple(wrappers))


def _is_assignment(word: str) -> bool:
    name, equals, _ = word.partition("=")
    return bool(equals) and name.replace("_", "a").isalnum() and not name[:1].isdigit()


def _program(words: Sequence[str], at: int, *, whole: bool = False) -> Seen | None:
    """What stands at an index; `whole`: only what cannot be a mere value that looks like a program."""
    name = base(words[at])
    following = words[at + 1] if at + 1 < len(words) else ""
    if name in ("vllm", "sglang") and (following == "serve" or (following.startswith("\x01") and not whole)):
        return Seen("server", at, at + 2 if following == "serve" else at + 1, "vllm" if name == "vllm" else "sglang")
    if is_python(name):
        return _python(words, at)
    if whole:
        return None
    if name in SHELLS:
        return Seen("shell", at, at + 1)
    if name in CONTAINERS and (following in ("run", "exec") or words[at + 1 : at + 3] == ["container", "run"]):
        return Seen("container", at, at + (3 if following == "container" else 2))
    if name in ("tmux", "byobu"):
        return Seen("terminal", at, at + 1)
    if name == "ssh":
        return Seen("remote", at, at + 1)
    if name == "eval":
        return Seen("eval", at, at + 1)
    return None


def _python(words: Sequence[str], at: int) -> Seen | None:
    i = at + 1
    while i < len(words):
        word = words[i]
        if word == "-m" and i + 1 < len(words):
            module = words[i + 1]
            if module.startswith(SERVER_MODULES):
                return Seen("server", at, i + 2, "vllm" if module.startswith("vllm") else "sglang")
            if module.startswith(ROUTER_MODULES):
                return Seen("router", at, i + 2, "router")
            return None
        if word in ("-W", "-X"):
            i += 2
        elif word.startswith("-") and word != "-" and not word.startswith("-c"):
            i += 1
        else:
            name = base(word)
            if name == "launch_server.py":
                return Seen("server", at, i + 1, "sglang")
            if name == "api_server.py":
                return Seen("server", at, i + 1, "vllm")
            if name in ("vllm", "sglang") and words[i + 1 : i + 2] == ["serve"]:
                return Seen("server", at, i + 2, "vllm" if name == "vllm" else "sglang")
            return None
    return None


class Boxed(NamedTuple):
    """The parts of a `docker run`."""

    image: int
    """Index of the image, or of the container's name."""
    env: tuple[tuple[int, int], ...]
    """First and last index of each option that sets a variable."""
    entrypoint: int
    """Index of the word that holds the entry point; -1: none."""


def unbox(words: Sequence[str], first: int) -> Boxed:
    """Read the options of `docker run` or `docker exec`."""
    at = first
    env: list[tuple[int, int]] = []
    entrypoint = -1
    while at < len(words):
        word = words[at]
        if not word.startswith("-") or word == "-":
            break
        if word == "--":
            at += 1
            break
        name, equals, _ = word.partition("=")
        takes = not equals and name not in _DOCKER_SWITCHES
        if not name.startswith("--"):
            letters = name[1:]
            takes = not equals and len(letters) > 0 and letters[-1] not in "ditPq"
            if letters[:1] in "evp" and len(letters) > 1:
                takes = False
                if letters[0] == "e":
                    env.append((at, at))
        if name in ("-e", "--env"):
            env.append((at, at + 1 if takes else at))
        if name == "--entrypoint":
            entrypoint = at + 1 if takes else at
        at += 2 if takes else 1
    return Boxed(at, tuple(env), entrypoint)
