"""Commands that only look: each says what it knows with its source, and nothing on the worker changes."""

import pytest

from evals.lab import ground

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]


def test_looking_changes_nothing(quick):
    """A knob, its value here, a forecast, the script and an edit that is not made; script and process stay."""
    before = ground.status(quick.ground.directory).pid

    knobs = quick.say("knobs", "--json").document
    explained = quick.say("explain", "cuda graphs", "--json").document
    forecast = quick.say("forecast", "--set", "cuda-graph-max-bs=96", "--json").document
    shown = quick.say("script", "show", "--json").document
    edit = quick.say("script", "diff", "decode", "--set", "cuda-graph-max-bs=96", "--json").document

    told = [quick.say(*words) for words in (("knobs", "graph"), ("explain", "cuda graphs"), ("script", "show"))]
    told.append(quick.say("forecast", "--set", "cuda-graph-max-bs=96"))
    told.append(quick.say("script", "diff", "--set", "cuda-graph-max-bs=96"))

    assert [(said.status, bool(said.out)) for said in told] == [(0, True)] * 5, [said.err for said in told]
    assert {"cuda-graph-max-bs", "disable-overlap-schedule"} <= {knob["name"] for knob in knobs}
    assert (explained["in_force"], explained["in_script"]) == ("32", "32")
    assert "the --help of the installed 0.5.14" in explained["installed"]["basis"]
    assert forecast["fits"] == "fits"
    assert forecast["free_after_capture"]["low"] > 6
    assert {"line": 30, "text": "--cuda-graph-max-bs 32"} in shown[0]["flags"]
    assert "+    --cuda-graph-max-bs 96 \\" in edit["diff"]
    assert "exactly what was intended" in edit["proof"]
    assert quick.ground.script.read_bytes() == quick.original
    assert ground.status(quick.ground.directory).pid == before


def test_looking_for_what_is_not_there_says_so(quick):
    """Unknown knobs, values out of bounds and unknown engines are a sentence with a remedy and a code."""
    assert quick.say("explain", "nonsense").status == 38
    assert "Did you mean mem-fraction-static?" in quick.say("explain", "mem-fraction").err
    assert quick.say("knobs", "nonsense").status == 38
    assert quick.say("forecast", "--set", "nonsense=1").status == 38
    assert quick.say("forecast", "--set", "cuda-graph-max-bs").status == 38
    assert quick.say("script", "diff", "--set", "cuda-graph-max-bs=0").status == 24
    assert quick.say("knobs", "--engine", "triton").status == 24
    assert quick.say("script", "show", "decoed").status == 20


def test_a_switch_means_what_its_name_says(quick):
    """The overlap scheduler off keeps the flag that switches it off; the flag itself off takes it out."""
    by_words = quick.say("script", "diff", "--set", "overlap scheduler=on", "--json").document
    by_name = quick.say("script", "diff", "--set", "disable-overlap-schedule=off", "--json").document

    assert by_words["diff"] == by_name["diff"]
    assert "-    --disable-overlap-schedule" in by_words["diff"]
    assert quick.say("script", "diff", "--set", "overlap scheduler=off").status == 33
    assert quick.say("script", "diff", "--set", "overlap scheduler=perhaps").status == 24


def test_one_of_several_launches_is_named_in_the_settings(quick):
    """A script that starts two servers is edited once the settings say which of them the worker is."""
    other = "python3 -m sglang.launch_server --port 1 --cuda-graph-max-bs 8 &\nexec python3"
    quick.ground.script.write_bytes(quick.original.replace(b"exec python3", other.encode()))
    refused = quick.say("script", "diff", "--set", "cuda-graph-max-bs=96")
    quick.settle('engine = "sglang"', f'engine = "sglang"\nlaunch = "port:{quick.ground.port}"')

    edit = quick.say("script", "diff", "--set", "cuda-graph-max-bs=96", "--json").document

    assert (refused.status, "launch =" in refused.err) == (23, True)
    assert "-    --cuda-graph-max-bs 32 \\" in edit["diff"]
    assert "+    --cuda-graph-max-bs 96 \\" in edit["diff"]


def test_secrets_of_a_script_are_shown_nowhere(quick):
    """A key in the launch file keeps its bytes and is starred in everything that is printed or recorded."""
    key = "sk-4f9a8b7c6d5e4f3a2b1c"
    text = quick.original.replace(b"    --enable-metrics", f"    --enable-metrics \\\n    --api-key {key}".encode())
    text = text.replace(
        b"export SGLANG_OPT_USE_TILELANG", f"export HF_TOKEN=hf_{key[3:]}\nexport SGLANG_OPT_USE_TILELANG".encode()
    )
    quick.ground.script.write_bytes(text)

    printed = [
        quick.say("script", "show"),
        quick.say("script", "diff", "--set", "max-running-requests=128"),
        quick.ask("set max running requests to 128", decide=("reject",)),
        quick.say("history", "--json"),
    ]

    assert "--api-key" in printed[0].out
    for said in printed:
        assert key not in said.out + said.err
        assert key[3:] not in said.out + said.err
    log = quick.ground.directory / ".prudent" / "prudent.log"
    assert key[3:] not in log.read_text(encoding="utf-8")
    assert quick.ground.script.read_bytes() == text


COMPOSE = """\
services:
  decode:
    image: lmsysorg/sglang:v0.5.14
    command: >
      python3 -m sglang.launch_server --model-path /models/m
      --cuda-graph-max-bs 32   --max-running-requests 256
    # the rest is not ours
"""


def test_what_no_service_of_ours_starts_is_handed_over(quick):
    """A compose file is read, planned and proven; the diff and the commands are handed over, and nothing is applied."""
    compose = quick.ground.directory / "compose.yml"
    compose.write_text(COMPOSE, encoding="utf-8")
    quick.settle('script = "serve_decode.sh"', 'script = "compose.yml"')

    edit = quick.say("script", "diff", "--set", "cuda-graph-max-bs=96", "--json").document
    said = quick.ask("bump cuda graphs to 96", decide=())

    assert any("docker compose" in command and "up -d" in command for command in edit["by_hand"])
    assert (said.status, said.record["verdict"]["state"]) == (13, "untouched")
    assert "applied nothing" in said.record["verdict"]["why"]
    assert "--cuda-graph-max-bs 96" in said.record["verdict"]["remedy"]
    assert said.record["plan"] is None
    assert compose.read_text(encoding="utf-8") == COMPOSE


def test_a_forecast_remembers_what_the_log_has_lost(quick):
    """A start that Prudent saw narrows the forecast after the log was rotated; without the memory it is wider again."""

    def width():
        free = quick.say("forecast", "--set", "cuda-graph-max-bs=96", "--json").document["free_after_capture"]
        return free["high"] - free["low"]

    assert quick.ask("bump cuda graphs to 96").status == 0
    quick.ground.script.write_bytes(quick.original)
    quick.restart()
    with_log = width()
    text = quick.ground.log.read_text(encoding="utf-8")
    quick.ground.log.write_text(text[text.rindex("server_args=ServerArgs") :], encoding="utf-8")

    remembered = width()

    store = quick.ground.directory / ".prudent" / "prudent.sqlite"
    assert remembered == pytest.approx(with_log)
    store.rename(store.with_name("elsewhere.sqlite"))
    assert width() > remembered * 1.1
