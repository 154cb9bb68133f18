"""Secrets in launch files reach neither a diff nor a sentence, and the edit keeps their bytes."""

from __future__ import annotations

import pytest

from tools.serve_script.edit import plan_edit, value_of
from tools.serve_script.prove import prove
from tools.serve_script.secrets import mask, mask_argv

SECRETS = [
    ("vllm serve /m --api-key {} --port 1", "s3cr3t-value"),
    ("vllm serve /m --api-key={} --port 1", "s3cr3t-value"),
    ("vllm serve /m --api-key '{}' --port 1", "s3cr3t value"),
    ('vllm serve /m --api-key "{}" --port 1', "s3cr3t value"),
    ("vllm serve /m --api-key \\\n  {} --port 1", "s3cr3t-value"),
    ("vllm serve /m --admin-api-key {}", "s3cr3t-value"),
    ("vllm serve /m --hf-token {}", "s3cr3t-value"),
    ("export HF_TOKEN={}", "hf_abcdefghijklmnop"),
    ("export HUGGING_FACE_HUB_TOKEN='{}'", "s3cr3t-value"),
    ("OPENAI_API_KEY={} vllm serve /m", "s3cr3t-value"),
    ("export AWS_SECRET_ACCESS_KEY={}", "s3cr3t/value+x"),
    ("DB_PASSWORD={}", "s3cr3t-value"),
    ("git clone https://user:{}@example.org/x.git", "s3cr3t-value"),
    ("git clone https://{}@example.org/x.git", "s3cr3tvaluelong"),
    ("KEY=${{API_KEY:-{}}}", "s3cr3t-value"),
    ("redis-cli -u redis://:{}@host:6379", "s3cr3t"),
    ("curl -H 'Authorization: Bearer {}' http://x", "s3cr3t-value"),
    ("curl 'http://x/?api_key={}&a=1'", "s3cr3t-value"),
    ('environment=HF_TOKEN="{}",A="1"', "s3cr3t-value"),
    ("- name: HF_TOKEN\n  value: {}", "s3cr3t-value"),
    ("- value: {}\n  name: HF_TOKEN", "s3cr3t-value"),
    ("- {{name: HF_TOKEN, value: {}}}", "s3cr3t-value"),
    ('args: ["--api-key", "{}"]', "s3cr3t-value"),
    ("args:\n  - --api-key\n  - {}", "s3cr3t-value"),
    ("docker run -e HF_TOKEN={} image", "s3cr3t-value"),
    ("echo sk-{}", "abcdefgh12345678"),
    ("NOTE={}", "ghp_abcdefghijklmnopqrst"),
]


@pytest.mark.parametrize(("text", "secret"), SECRETS)
def test_a_secret_is_masked_wherever_it_stands(text: str, secret: str) -> None:
    """Whatever the syntax around it, the secret is gone and the rest is there."""
    masked = mask(text.format(secret))

    assert secret not in masked
    assert text.split("{", maxsplit=1)[0].split(maxsplit=1)[0] in masked


@pytest.mark.parametrize(
    "text",
    [
        "--max-num-batched-tokens 8192",
        "--max-total-tokens 400000",
        "--chunked-prefill-size 8192 --num-reserved-decode-tokens 512",
        "HF_TOKEN=$HF_TOKEN",
        "- HF_TOKEN=${HF_TOKEN:-}",
        '--api-key "$API_KEY"',
        "--tokenizer /m --tokenizer-mode auto",
        "--speculative-config '{\"num_speculative_tokens\":3}'",
        "max_tokens: 512",
        "http://127.0.0.1:8000/health",
        "git@github.com:a/b.git",
    ],
)
def test_what_is_no_secret_stays_readable(text: str) -> None:
    """Numbers of tokens, references to variables and plain URLs are shown as they are."""
    assert text == mask(text)


def test_arguments_are_masked_by_the_flag_before_them() -> None:
    """In a list of arguments, the word behind a secret's flag is a secret whatever it looks like."""
    assert mask_argv(["--api-key", "x y", "--port", "1"]) == ("--api-key", "********", "--port", "1")


def test_an_edit_keeps_the_bytes_of_a_secret_and_shows_none_of_them() -> None:
    """The file afterwards holds the secret as before; nothing that people or models read does."""
    content = b"export HF_TOKEN=hf_abcdefghij\nvllm serve /m --api-key tops3cret --seed 1 --port 8000\n"

    edit = plan_edit(content, path="serve.sh", kind="flag", names=["--seed"], operation="set", value="2")
    proof = prove(content, edit.content, path="serve.sh", intended=edit.intent)

    assert content.replace(b"--seed 1", b"--seed 2") == edit.content
    shown = " ".join([edit.diff, edit.explanation, repr(edit), proof.how, *proof.differences])
    assert "tops3cret" not in shown
    assert "hf_abcdefghij" not in shown


def test_changing_a_secret_itself_shows_neither_the_old_nor_the_new() -> None:
    """An edit of a key is planned like any other and told without the key."""
    content = b"vllm serve /m --api-key oldtops3cret --port 8000\n"

    edit = plan_edit(content, path="serve.sh", kind="flag", names=["--api-key"], operation="set", value="newtops3cret")
    found = value_of(edit.content, path="serve.sh", names=["--api-key"], kind="flag")

    assert b"--api-key newtops3cret " in edit.content
    assert "[the secret changes]" in edit.diff
    for shown in (edit.diff, edit.explanation, repr(edit), found.sentence, repr(found)):
        assert "tops3cret" not in shown
