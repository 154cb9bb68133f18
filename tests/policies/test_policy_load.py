"""Policies as files: what is right loads, what is wrong is told with its line."""

from __future__ import annotations

from pathlib import Path

import pytest

import policies
from agent.errors import BadSettings
from policies.load import document_schema, load, parse, shipped

ROOM = Path(policies.__file__).parent
PRACTICE = (ROOM / "practice.yaml").read_text(encoding="utf-8")


def _line(text: str, needle: str) -> int:
    return next(number for number, line in enumerate(text.splitlines(), 1) if needle in line)


def test_the_shipped_policy() -> None:
    """The shipped policy loads by its name and asks for what issue and incidents demand."""
    policy = load("practice")

    assert policy.name == "practice"
    assert policy.floor_gb == 6
    assert policy.approve_within_seconds == 900
    assert policy.label == load("practice").label
    assert {criterion.metric for criterion in policy.criteria} == {
        "start_failed",
        "identity_proven",
        "effective_matches",
        "start_seconds",
        "free_after_capture_gb",
        "entry_answers",
        "corrupted_sessions",
        "failed_requests",
        "throughput_tokens_per_second",
        "wedged_storms",
        "lingering_storms",
    }


def test_a_file_of_ones_own(tmp_path: Path) -> None:
    """A path loads too, relative to the directory of the settings, and another number gives another label."""
    (tmp_path / "ours.yaml").write_text(PRACTICE.replace("bound: 6\n", "bound: 2\n"), encoding="utf-8")

    policy = load("ours.yaml", tmp_path)

    assert policy.floor_gb == 2
    assert policy.label != load("practice").label


@pytest.mark.parametrize("name", shipped())
def test_the_schema_beside_it_is_fresh(name: str) -> None:
    """An editor that follows the schema beside a policy sees the model of today."""
    assert (ROOM / "policy.schema.json").read_text(encoding="utf-8") == document_schema()


@pytest.mark.parametrize(
    ("right", "wrong", "says"),
    [
        ("    hard_count: 2", "    hard_cuont: 2", ["is not a key here", "'hard_count'"]),
        ("approve_within_minutes: 15", "aprove_within_minutes: 15", ["'approve_within_minutes'"]),
        ("  wait_seconds: 60", "  wait_second: 60", ["'wait_seconds'"]),
        ("    metric: wedged_storms", "    metric: wedged_storm", ["'wedged_storm'", "Did you mean 'wedged_storms'?"]),
        (
            "    of: baseline\n    bound: 0.9",
            "    of: basline\n    bound: 0.9",
            ["'basline'", "Did you mean 'baseline'?"],
        ),
        ("    bound: 0.03", "    bound: three", ["'criteria[6].bound'", "'three'"]),
        ("    bound: 0.03", "    bound: .nan", ["not a number"]),
        ("    bound: 0.03", "    bound: 3", ["3.0 is not a share"]),
        ("    hard_count: 3", "    hard_count: yes", ["'criteria[7].hard_count'"]),
        ("    minimum_n: 149", "    minimum_n: 50", ["50 clean requests do not show", "Write 149 or more."]),
        ("    count: 100", "    count: 98", ["asks for 99 sessions and the check sends 98"]),
        ("cap: 300}", "cap: 90}", ["100 clean sessions are needed, and it ends after 90"]),
        ("{ok: 0.001, bad", "{ok: 0.3, bad", ["a smaller share from a larger one"]),
        ("bad: 0.03, error", "bad: 0.02, error", ["The test is of 2 % and the bound says 3 %"]),
        ("    exposure: 0.2", "    exposure: 2", ["as a share above 0 and below 1"]),
        ("second_start: undecided", "second_start: sometimes", ["'second_start'"]),
        ("times:\n", "limits:\n  autonomy: free\ntimes:\n", ["'limits.autonomy'"]),
        ("times:\n", "limits:\n  windows: [{opens: '09:00', closes: '17:00', zone: Mars}]\ntimes:\n", ["no time zone"]),
        ("times:\n", "limits:\n  windows: [{opens: 25h, closes: '17:00'}]\ntimes:\n", ["'limits.windows[0].opens'"]),
        ("times:\n", "limits:\n  budgets: {restarts: 1}\ntimes:\n", ["'limits.budgets.restarts'"]),
        ("times:\n", "pairs: 2\ntimes:\n", ["need 7 restarts, and the budget is 4"]),
        ("times:\n", "limits:\n  knobs: {cuda-graph-max-bs: {hihg: 64}}\ntimes:\n", ["'high'"]),
        ("  - id: entry", "  - id: start", ["'start' is used twice"]),
        ("concurrency: [captured/2]", "concurrency: [capture]", ["'checks.aborts.concurrency[0]'"]),
        ("concurrency: [captured/2]", "concurrency: []", ["The list is empty"]),
        ("concurrency: [captured]", "concurrency: [8, captured]", ["Sessions run at one concurrency"]),
        ("order: [sessions, throughput, aborts]", "order: [sessions, sessions]", ["names a check twice"]),
        ("  boot_sd: 0.026", "  boot_sd: 2.6", ["2.6, not a relative"]),
        ("  stall: 150", "  stall: 1", ["'times.stall'"]),
        ("users:\n  at_most: 0\n  wait_seconds: 60\n", "users: 3\n", ["'users'"]),
        ("  at_most: 0\n", "  at_most: 0\n  at_most: 1\n", ["'at_most' is here twice"]),
        ("  at_most: 0\n", "  at_most: &x 0\n  ? [1]\n  : 2\n", ["A key is a plain word"]),
        ("  at_most: 0\n", "  at_most: [\n", ["not YAML"]),
    ],
)
def test_a_mistake_is_told_with_its_line(right: str, wrong: str, says: list[str]) -> None:
    """A wrong key, value or combination is refused in one sentence, with its line and the nearest right word."""
    assert right in PRACTICE
    text = PRACTICE.replace(right, wrong, 1)

    with pytest.raises(BadSettings) as refusal:
        parse(text, "ours.yaml")

    message = str(refusal.value)
    assert message.startswith("ours.yaml, line "), message
    assert all(said in message for said in says), message
    assert refusal.value.remedy


@pytest.mark.parametrize(
    ("right", "wrong", "needle"),
    [
        ("    hard_count: 2", "    hard_cuont: 2", "hard_cuont"),
        ("    bound: 0.03", "    bound: three", "bound: three"),
        ("    minimum_n: 149", "    minimum_n: 50", "minimum_n: 50"),
        ("  - id: entry", "  - id: start", "PLACE"),
        ("  stall: 150", "  stall: 1", "stall: 1"),
        ("  entry_seconds: 20\n", "", "times:"),
    ],
)
def test_the_line_is_the_right_one(right: str, wrong: str, needle: str) -> None:
    """The line that is named is the one to edit; for a missing key it is the table that lacks it."""
    text = PRACTICE.replace(right, wrong, 1)
    expected = _line(PRACTICE, right) if needle == "PLACE" else _line(text, needle)

    with pytest.raises(BadSettings) as refusal:
        parse(text, "ours.yaml")

    assert str(refusal.value).startswith(f"ours.yaml, line {expected}:")


def test_no_damage_ends_in_anything_but_a_refusal() -> None:
    """Take away or repeat any one line, and the file is refused with a remedy or still reads as a policy."""
    lines = PRACTICE.splitlines(keepends=True)
    refusals = []

    for index, line in enumerate(lines):
        for damaged in (lines[:index] + lines[index + 1 :], [*lines[:index], line, *lines[index:]]):
            try:
                parse("".join(damaged), "ours.yaml")
            except BadSettings as refusal:
                refusals.append(refusal)

    assert len(refusals) > len(lines)
    assert all(refusal.sentence and refusal.remedy for refusal in refusals)


def test_a_recursive_document_is_refused() -> None:
    """A document that contains itself is refused instead of followed."""
    with pytest.raises(BadSettings, match="Aliases are not used"):
        parse("name: decode\ncriteria: &loop [*loop]\n", "ours.yaml")


@pytest.mark.parametrize("text", ["", "just words", "- a\n- list\n", "name: !!python/object:os.system x\n", "\x00"])
def test_what_is_no_policy_is_refused(text: str) -> None:
    """A file that holds something else altogether is refused with a remedy, and runs nothing."""
    with pytest.raises(BadSettings) as refusal:
        parse(text, "ours.yaml")

    assert refusal.value.remedy


def test_a_policy_that_is_not_there(tmp_path: Path) -> None:
    """A name that nobody ships is told with the nearest one, a path that is not there with the system's own word."""
    with pytest.raises(BadSettings, match="Did you mean 'decode'"):
        load("decoder")
    with pytest.raises(BadSettings, match="No such file"):
        load("ours.yaml", tmp_path)
