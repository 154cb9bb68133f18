"""The texts that a ground is written from."""

from __future__ import annotations

from importlib import resources
from string import Template


def filled(template: str, **values: object) -> str:
    """A text of `templates/` with its names filled in.

    Raises:
        KeyError: a name of the text has no value.
    """
    text = resources.files("evals.lab").joinpath(f"templates/{template}").read_text(encoding="utf-8")
    return Template(text).substitute(values)
