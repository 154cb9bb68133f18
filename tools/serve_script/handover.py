"""What an operator does with an edited file whose service Prudent cannot restart yet."""

from __future__ import annotations

import shlex
from typing import NamedTuple

from tools.serve_script.launches import Kind


class Handover(NamedTuple):
    """A diff that a person applies."""

    sentence: str
    """What Prudent did and did not do."""
    commands: tuple[str, ...]
    """What to run once the file is changed."""


def handover(kind: Kind, path: str) -> Handover | None:
    """How an edited file takes effect where no service of ours starts it; None: a service does.

    Args:
        kind: What sort of launch file it is.
        path: Where it lies.
    """
    quoted = shlex.quote(path)
    commands = {
        "compose": (f"docker compose -f {quoted} config --quiet", f"docker compose -f {quoted} up -d"),
        "k8s": (f"kubectl diff -f {quoted}", f"kubectl apply -f {quoted}"),
        "supervisord": ("supervisorctl reread", "supervisorctl update"),
    }.get(kind)
    if commands is None:
        return None
    sentence = (
        f"Prudent read, planned and proved the change of {path}, and applied nothing: apply the diff, then run these."
    )
    return Handover(sentence, commands)
