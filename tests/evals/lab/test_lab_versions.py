"""The same worker as SGLang 0.5.13, 0.5.14 and 0.5.20: what each takes, shows and says."""

import json
import re

import pytest

from evals.lab.arguments import configured, parse, parser, recorded, resolve
from evals.lab.dialect import Dialect
from evals.lab.specimen import DEEPSEEK_V4_FLASH
from tools.engines.catalogue import knobs
from tools.engines.engine import engine_of

MODEL = ["--model-path", "/models/flash", "--tp", "4"]
OLD, RECORDED, NEW = Dialect("0.5.13"), Dialect("0.5.14"), Dialect("0.5.20")
SIZES = [1, 2, 4, 8, 12, 16, 24, 32]


@pytest.mark.parametrize(
    ("dialect", "flag", "warned"),
    [
        (OLD, "--cuda-graph-max-bs", False),
        (RECORDED, "--cuda-graph-max-bs", True),
        (RECORDED, "--cuda-graph-max-bs-decode", False),
        (NEW, "--cuda-graph-max-bs-decode", False),
    ],
)
def test_the_largest_captured_batch_has_a_name_in_each(dialect, flag, warned, capsys):
    """Each spelling sets the same; a spelling that is on its way out is taken with a warning."""
    values = parse([*MODEL, flag, "96"], dialect=dialect)

    assert values["cuda_graph_max_bs_decode"] == 96
    assert ("is deprecated and will be removed" in capsys.readouterr().err) is warned


@pytest.mark.parametrize(
    ("dialect", "words", "says"),
    [
        (OLD, ["--cuda-graph-max-bs-decode", "96"], "error: unrecognized arguments: --cuda-graph-max-bs-decode 96"),
        (OLD, ["--disable-decode-cuda-graph"], "error: unrecognized arguments: --disable-decode-cuda-graph"),
        (
            NEW,
            ["--cuda-graph-max-bs", "96"],
            "error: ambiguous option: --cuda-graph-max-bs could match --cuda-graph-max-bs-decode,"
            " --cuda-graph-max-bs-prefill",
        ),
        (
            NEW,
            ["--cuda-graph-bs", "1", "2"],
            "error: ambiguous option: --cuda-graph-bs could match --cuda-graph-bs-decode, --cuda-graph-bs-prefill",
        ),
    ],
)
def test_what_a_version_does_not_have_ends_it_with_status_two(dialect, words, says, capsys):
    """New names are unknown to the old version; removed ones are ambiguous to the new; usage shows neither."""
    with pytest.raises(SystemExit) as ended:
        parse([*MODEL, *words], dialect=dialect)

    said = capsys.readouterr().err
    assert ended.value.code == 2
    assert says in said
    assert f"[{words[0]} " not in said
    assert f"[{words[0]}]" not in said


def test_old_switches_mean_what_the_new_ones_do():
    """Switching piecewise capture off, by its old name too, leaves decode capture on and prefill's off."""
    for dialect in (OLD, RECORDED):
        launch = resolve(
            parse([*MODEL, "--disable-piecewise-cuda-graph"], dialect=dialect), DEEPSEEK_V4_FLASH, 0, dialect
        )

        assert launch.arguments["cuda_graph_config"]["prefill"]["backend"] == "disabled"
        assert launch.sizes


def test_old_fields_are_flat():
    """0.5.13 shows capture settings as fields of their own; 0.5.20 prints a dictionary."""
    old = resolve(parse([*MODEL, "--cuda-graph-max-bs", "32"], dialect=OLD), DEEPSEEK_V4_FLASH, 0, OLD)
    new = resolve(parse([*MODEL, "--cuda-graph-max-bs-decode", "32"], dialect=NEW), DEEPSEEK_V4_FLASH, 0, NEW)

    fields = OLD.fields(old.arguments)
    assert (fields["cuda_graph_max_bs"], fields["cuda_graph_bs"]) == (32, SIZES)
    assert not [name for name in fields if re.search("cuda_graph.*_(decode|prefill)$|dsa_", name)]
    assert f"cuda_graph_max_bs=32, cuda_graph_bs={SIZES}" in OLD.shown(old.arguments)
    assert NEW.shown(new.arguments).startswith("{'model_path': '/models/flash', ")


@pytest.mark.parametrize(
    ("version", "flag"),
    [("0.5.13", "--cuda-graph-max-bs"), ("0.5.14", "--cuda-graph-max-bs"), ("0.5.20", "--cuda-graph-max-bs-decode")],
)
def test_the_product_reads_each_alike(put_up, version, flag):
    """Log and `/server_info` of each version give the same typed facts and the same values in force."""
    worker = put_up(version=version, faults=())
    text = worker.script.read_text(encoding="utf-8")
    assert f"{flag} 32" in text
    engine = engine_of("sglang")
    facts = engine.read_log(worker.said().encode().split(b"\n")).facts
    info = json.loads(worker.player.get("/server_info")[1])
    values = engine.effective(info, knobs("sglang"), facts=facts)

    assert info["version"] == version
    assert ("cuda_graph_max_bs" in info) is (version == "0.5.13")
    assert list(facts.decode_capture.sizes) == SIZES
    assert (facts.decode_capture.gb, facts.free_after_capture_gb) == (0.36, 15.26)
    assert (facts.kv_tokens, facts.max_running_requests, facts.ready) == (2_368_000, 256, True)
    assert [values[name] for name in ("cuda-graph-max-bs", "mem-fraction-static")] == ["32", "0.82"]


@pytest.mark.parametrize(
    ("version", "hint"),
    [("0.5.13", "2. set --cuda-graph-max-bs to"), ("0.5.20", "2. set --cuda-graph-max-bs-decode to")],
)
def test_capture_that_does_not_fit_is_hinted_at_in_its_words(put_up, until, version, hint):
    """Graphs that run out of memory end the start with the hints of the version."""
    worker = put_up(version=version, faults=())
    begun = len(worker.said())
    worker.edit(("--mem-fraction-static 0.82", "--mem-fraction-static 0.9785"), (" 32 ", " 512 "), ready=False)
    until(lambda: hint in worker.said()[begun:])

    failures = engine_of("sglang").read_log(worker.said().encode().split(b"\n")).facts.failures
    assert "oom_at_capture" in [failure.kind for failure in failures]


def test_a_configuration_file_stands_before_the_words(tmp_path):
    """What `--config` names counts unless argv says otherwise; lists, switches and underscores are understood."""
    file = tmp_path / "worker.yaml"
    file.write_text(
        "model-path: /models/flash\ncuda_graph_bs_decode: [1, 2, 64]\nmax-running-requests: 48\n"
        "disable-overlap-schedule: true\nenable-metrics: false\n",
        encoding="utf-8",
    )
    values = parse(["--config", str(file), "--max-running-requests", "64"])

    assert values["model_path"] == "/models/flash"
    assert values["cuda_graph_bs_decode"] == [1, 2, 64]
    assert values["max_running_requests"] == 64
    assert (values["disable_overlap_schedule"], values["enable_metrics"]) == (True, False)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--config"], "No config file specified after --config flag!"),
        (["--config", "a.yaml", "--config", "b.yaml"], "Multiple config files specified! Only one allowed."),
        (["--config", "worker.toml"], "Config file must be YAML format, got: worker.toml"),
        (["--config", "{list}"], "Config file must contain a dictionary at root level"),
    ],
)
def test_a_configuration_file_that_is_none_is_refused(words, says, tmp_path):
    """In the words of the engine's merger."""
    (tmp_path / "list.yaml").write_text("- a\n", encoding="utf-8")
    with pytest.raises(ValueError, match=re.escape(says)):
        configured([word.replace("{list}", str(tmp_path / "list.yaml")) for word in words])


def test_a_worker_whose_flags_lie_in_a_file(put_up):
    """A script that only names a file starts a worker with that file's values in force."""
    worker = put_up(faults=())
    text = worker.script.read_text(encoding="utf-8")
    flag = re.search(r"    --mem-fraction-static 0\.82 \\\n", text)[0]
    (worker.directory / "worker.yaml").write_text("mem-fraction-static: 0.8\n", encoding="utf-8")
    worker.edit((flag, "    --config worker.yaml \\\n"))

    assert json.loads(worker.player.get("/server_info")[1])["mem_fraction_static"] == 0.8


@pytest.mark.parametrize("version", ["0.5.13", "0.5.14", "0.5.20"])
def test_spellings_of_the_catalogue_are_known_or_not_as_it_says(version):
    """Two readings of the released wheels agree: the catalogue's spellings and what the practice worker takes."""
    known = set(parser(recorded()["server_args"], dialect=Dialect(version))._option_string_actions)
    at = tuple(int(part) for part in version.split("."))
    for knob in knobs("sglang"):
        for spelling in knob.spellings if knob.kind == "flag" else ():
            begins, ends = (
                tuple(int(part) for part in text.split(".")) if text else other
                for text, other in ((spelling.since, (0,)), (spelling.until, (9,)))
            )
            matching = [name for name in known if name == spelling.text] or [
                name for name in known if name.startswith(spelling.text)
            ]
            assert (len(matching) == 1) is (begins <= at < ends), spelling.text
