"""Keep secrets out of whatever people and models get to read.

The edit keeps the bytes; what is shown has stars. A reference to a variable is not a secret and stays readable.
"""

from __future__ import annotations

import re

STARS = "********"

_NAMES = (
    r"(?:api[-_]?keys?|access[-_]?keys?|secret(?:[-_]?keys?)?|auth[-_]?keys?|private[-_]?keys?"
    r"|tokens?|passwords?|passwd|passphrase|credentials?)"
)
_ENDS = r"(?![A-Za-z0-9])"
_PLAIN = r"[^\s\"'`,;|&<>(){}\\$\[\]]"
_VALUE = rf"(?P<quote>[\"']?)(?!\$|\*{{8}})(?P<secret>(?:(?<=\")[^\"\n$]+|(?<=')[^'\n]+|{_PLAIN}+))"
_COUNTS = r"(?!(?:max|min|num|total|batched)[-_])"
_BETWEEN = r"[\"']?(?:=|[ \t]+|[ \t]*\\\n[ \t]*|,[ \t]*|\n[ \t]*-[ \t]+)"
_ENTRY = rf"name:[ \t]*[\"']?(?:[A-Za-z0-9]+_)*{_NAMES}"

_PATTERNS = (
    # --api-key VALUE, --hf-token=VALUE, also as two items of a list
    re.compile(rf"(?P<head>(?<![\w-])--?{_COUNTS}(?:[a-z0-9]+[-_])*?(?:key|{_NAMES}){_ENDS}{_BETWEEN}){_VALUE}", re.I),
    # HF_TOKEN=VALUE, api_key: VALUE, "apiKey": "VALUE"
    re.compile(
        rf"(?P<head>(?<![\w$-])(?:[A-Za-z0-9]+[-_.])*?{_NAMES}(?:_(?:id|value|file_content))?{_ENDS}"
        rf"[\"']?[ \t]*(?:=|:(?![-=?+]))[ \t]*){_VALUE}",
        re.I,
    ),
    # ${API_KEY:-VALUE}
    re.compile(rf"(?P<head>\$\{{(?:[A-Za-z0-9]+_)*{_NAMES}:?[-=])(?P<quote>[\"']?)(?P<secret>[^}}$\s\"']+)", re.I),
    # name: HF_TOKEN / value: VALUE, in either order
    re.compile(rf"(?P<head>{_ENTRY}[\"']?[ \t]*(?:,|\r?\n)[ \t]*value:[ \t]*){_VALUE}", re.I),
)
_BEFORE_NAME = re.compile(
    rf"(?P<head>value:[ \t]*)(?P<quote>[\"']?)(?P<secret>[^\s\"',}}]+)"
    rf"(?P<rest>[\"']?[ \t]*(?:,|\r?\n)[ \t]*{_ENTRY}{_ENDS})",
    re.I,
)
_URL = re.compile(r"(?P<head>[a-z][a-z0-9+.-]*://[^\s/@:\"']*:)(?P<secret>[^\s/@\"'$]+)(?=@)", re.I)
_URL_TOKEN = re.compile(r"(?P<head>[a-z][a-z0-9+.-]*://)(?P<secret>[^\s/@:\"'$]{12,})(?=@)", re.I)
_QUERY = re.compile(rf"(?P<head>[?&](?:{_NAMES}|sig|signature)=)(?P<secret>[^\s&\"'$]+)", re.I)
_BEARER = re.compile(r"(?P<head>\b(?:Bearer|Basic)[ \t]+)(?P<secret>[A-Za-z0-9._~+/=-]{6,})")
_SHAPES = re.compile(
    r"\b(?:hf_[A-Za-z0-9]{8,}|sk-[A-Za-z0-9_-]{8,}|gh[pousr]_[A-Za-z0-9]{8,}|github_pat_\w{8,}|glpat-[\w-]{8,}"
    r"|xox[abprs]-[\w-]{8,}|AKIA[0-9A-Z]{12,}|nvapi-[\w-]{8,}|eyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]*)"
)
_SECRET_NAME = re.compile(rf"(?:^|[-_]){_NAMES}$|^{_NAMES}$|(?:^|[-_])key$", re.I)


def is_secret_name(name: str) -> bool:
    """Whether a flag or variable of that name holds a secret, going by its name alone."""
    bare = name.lstrip("-")
    if re.match(r"(?i)(?:max|min|num)[-_]", bare) or re.search(
        r"(?i)(?:max|num|total|batched)[-_](?:\w+[-_])*tokens?$", bare
    ):
        return False
    return bool(_SECRET_NAME.search(bare))


def mask(text: str) -> str:
    """The text with every secret in it replaced by stars."""
    for pattern in _PATTERNS:
        text = pattern.sub(_starred, text)
    text = _BEFORE_NAME.sub(lambda m: f"{m['head']}{m['quote']}{STARS}{m['rest']}", text)
    for pattern in (_URL, _URL_TOKEN, _QUERY, _BEARER):
        text = pattern.sub(lambda m: m["head"] + STARS, text)
    return _SHAPES.sub(STARS, text)


def mask_argv(argv: tuple[str, ...] | list[str]) -> tuple[str, ...]:
    """Arguments with the values of secret flags replaced, however they look."""
    out: list[str] = []
    hide = False
    for word in argv:
        name, equals, _ = word.partition("=")
        if hide and not word.startswith("-"):
            out.append(STARS)
        elif equals and is_secret_name(name):
            out.append(f"{name}={STARS}")
        else:
            out.append(mask(word))
        hide = not equals and word.startswith("-") and is_secret_name(word)
    return tuple(out)


def _starred(match: re.Match[str]) -> str:
    name = match["head"].lower()
    secret = match["secret"]
    if secret.isdigit() and re.search(r"tokens?\W*$", name):
        return match[0]
    if re.search(
        r"(?:max|num|min|total|batched|prefill|chunked|draft|reserved|special)[-_](?:\w+[-_])*tokens?\W*$", name
    ):
        return match[0]
    return f"{match['head']}{match['quote']}{STARS}"
