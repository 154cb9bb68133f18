"""An environment and a source tree beside a serve script, so that its command finds the practice worker."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from evals.lab import cards

_WORKER = '''"""Launch the inference server."""

import os
import sys
from pathlib import Path

from evals.lab.worker import main

if __name__ == "__main__":
    main(sys.argv[1:], os.environ, Path(__file__).resolve().parents[3], "/opt/sglang/sglang/launch_server.py")
'''
_ROUTER = '''"""Launch the router."""

import sys

from evals.lab.router import main

if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
'''
_VLLM = '''"""The command line of vLLM."""

import os
import sys
from pathlib import Path

from evals.lab.vllm_0_24.worker import main as work


def main():
    work(sys.argv[1:], os.environ, Path(sys.prefix).resolve().parents[1])
'''
_COMMAND = """#!{python}
import sys

from vllm.entrypoints.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
"""


def plant(directory: Path, version: str, *, engine: str = "sglang", router: bool = False) -> None:
    """Write the tree of an engine, or of SGLang's router, into `opt/`, anew.

    Args:
        directory: The post's folder.
        version: The engine's version.
        engine: `sglang` or `vllm`.
        router: The router's package instead of the engine's.
    """
    shutil.rmtree(directory / "opt", ignore_errors=True)
    commands = directory / "opt" / "venv" / "bin"
    packages = _environment(directory / "opt" / "venv")
    if not router:
        cards.plant(commands, commands / "python3", directory)
    if engine == "vllm":
        _install(packages, commands, version)
        return
    name, program, text = (
        ("sglang_router", "launch_router.py", _ROUTER) if router else ("sglang", "launch_server.py", _WORKER)
    )
    package = directory / "opt" / "sglang" / name
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(f'__version__ = "{version}"\n', encoding="utf-8")
    (package / program).write_text(text, encoding="utf-8")


def _install(packages: Path, commands: Path, version: str) -> None:
    """Lay a wheel of vLLM into an environment: package, what is known about it, command."""
    package = packages / "vllm"
    (package / "entrypoints" / "cli").mkdir(parents=True)
    (package / "__init__.py").write_text(f'__version__ = "{version}"\n', encoding="utf-8")
    (package / "entrypoints" / "__init__.py").touch()
    (package / "entrypoints" / "cli" / "__init__.py").touch()
    (package / "entrypoints" / "cli" / "main.py").write_text(_VLLM, encoding="utf-8")
    known = packages / f"vllm-{version}.dist-info"
    known.mkdir()
    (known / "METADATA").write_text(f"Metadata-Version: 2.4\nName: vllm\nVersion: {version}\n", encoding="utf-8")
    (commands / "vllm").write_text(_COMMAND.format(python=commands / "python3"), encoding="utf-8")
    (commands / "vllm").chmod(0o755)


def _environment(venv: Path) -> Path:
    """An environment of its own that sees what this process sees; return where its packages lie."""
    (venv / "bin").mkdir(parents=True)
    base = Path(sys._base_executable)  # type: ignore[attr-defined]
    for name in ("python", "python3"):
        (venv / "bin" / name).symlink_to(base)
    (venv / "pyvenv.cfg").write_text(
        f"home = {base.parent}\ninclude-system-site-packages = false\nversion = {sys.version.split()[0]}\n",
        encoding="utf-8",
    )
    packages = venv / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"
    packages.mkdir(parents=True)
    ours = str(Path(__file__).resolve().parents[2])
    paths = [path for path in sys.path if Path(path).name in {"site-packages", "dist-packages"} or _serves(Path(path))]
    (packages / "engine.pth").write_text(
        "".join(f"{path}\n" for path in dict.fromkeys([*paths, ours])), encoding="utf-8"
    )
    return packages


def _serves(folder: Path) -> bool:
    """Whether the HTTP library lies there, as it may on a machine that has it mounted under another name."""
    return (folder / "aiohttp").is_dir()
