"""`prudent.toml`: what is wrong is said with its line and the nearest right key."""

from pathlib import Path
from typing import NamedTuple

import pytest

from agent.errors import BadSettings, UnknownWorker
from agent.settings import find, load

GOOD = """\
[store]
path = "state/runs.sqlite"

[workers.decode]
engine = "sglang"
script = "serve.sh"
log = "run/worker.log"
control = "http://127.0.0.1:31000"

[workers.decode.service]
kind = "command"
restart = ["ctl", "restart"]
pid = ["ctl", "pid"]
"""


class Mistake(NamedTuple):
    """A good file made bad, and what must be said about it."""

    old: str
    new: str
    line: int
    says: str


MISTAKES = {
    "an unknown key": Mistake('script = "serve.sh"', 'scirpt = "serve.sh"', 6, "'script'"),
    "an unknown section": Mistake("[store]", "[stroe]", 1, "'store'"),
    "an unknown key of a section inside": Mistake('pid = ["ctl", "pid"]', 'pdi = ["ctl", "pid"]', 13, "'pid'"),
    "a wrong choice": Mistake('engine = "sglang"', 'engine = "sglng"', 5, "'sglang'"),
    "an address without a scheme": Mistake('"http://127.0.0.1:31000"', '"127.0.0.1:31000"', 8, "http://"),
    "a port that is none": Mistake("http://127.0.0.1:31000", "http://127.0.0.1:310000", 8, "ort"),
    "a name that is none": Mistake("[workers.decode]", '[workers."gpu 1"]', 4, "gpu 1"),
    "a wrong type": Mistake('log = "run/worker.log"', "log = 3", 7, "string"),
    "an empty command": Mistake('restart = ["ctl", "restart"]', "restart = []", 12, "at least 1"),
    "a kind of service that is none": Mistake('kind = "command"', 'kind = "systmd"', 11, "'systemd'"),
    "a service without a kind": Mistake('kind = "command"\n', "", 10, "service.kind"),
    "a key of another kind of service": Mistake(
        'kind = "command"', 'kind = "systemd"\nunit = "a.service"', 13, "restart"
    ),
    "a unit's name that is none": Mistake(
        'kind = "command"\nrestart = ["ctl", "restart"]\npid = ["ctl", "pid"]',
        'kind = "systemd"\nunit = "rm -rf"',
        12,
        "sglang-decode.service",
    ),
    "a path that means nothing elsewhere": Mistake(
        'engine = "sglang"', 'engine = "sglang"\nhost = "gpu7"', 7, "from the root"
    ),
    "a journal without a unit": Mistake('log = "run/worker.log"', 'log = "journal"', 7, "no unit"),
    "a side of a pair without an entry": Mistake(
        'engine = "sglang"', 'engine = "sglang"\nrole = "decode"', 6, "no entry"
    ),
    "a mistake in a host": Mistake("[store]", '[hosts.gpu7]\nusr = "root"\n\n[store]', 2, "'user'"),
    "a database that is none": Mistake('path = "state/runs.sqlite"', 'url = "mysql://db"', 2, "postgresql://"),
    "something missing": Mistake('log = "run/worker.log"\n', "", 4, "missing"),
    "no TOML": Mistake('engine = "sglang"', 'engine = "sglang', 5, "line 5"),
}


def _write(folder: Path, text: str) -> Path:
    path = folder / "prudent.toml"
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize("mistake", MISTAKES.values(), ids=list(MISTAKES))
def test_a_mistake_is_named_with_its_line(tmp_path: Path, mistake: Mistake):
    """One sentence with file and line, and a remedy with what would be right."""
    path = _write(tmp_path, GOOD.replace(mistake.old, mistake.new))

    with pytest.raises(BadSettings) as caught:
        load(path, {})

    said = str(caught.value)
    assert mistake.says in said
    assert f"{path}:{mistake.line}" in said or f"line {mistake.line}" in said


def test_paths_are_relative_to_the_file(tmp_path: Path):
    """Wherever the command is run, a worker's paths mean the same."""
    settings = load(_write(tmp_path, GOOD), {})

    assert settings.workers["decode"].script == str(tmp_path / "serve.sh")
    assert settings.store.path == str(tmp_path / "state" / "runs.sqlite")


def test_the_environment_stands_before_the_file(tmp_path: Path):
    """A model can be named for one call without editing the file."""
    environ = {"PRUDENT_MODEL_URL": "http://127.0.0.1:9/v1", "PRUDENT_MODEL": "small"}

    settings = load(_write(tmp_path, GOOD), environ)

    assert settings.reasoner is not None
    assert (settings.reasoner.base_url, settings.reasoner.model) == ("http://127.0.0.1:9/v1", "small")


def test_a_mistake_in_the_environment_is_named_by_its_variable(tmp_path: Path):
    """A wrong value that the file does not hold is not blamed on a line of the file."""
    with pytest.raises(BadSettings, match="PRUDENT_MODEL_URL"):
        load(_write(tmp_path, GOOD), {"PRUDENT_MODEL_URL": "nowhere", "PRUDENT_MODEL": "small"})


def test_an_unknown_worker_is_answered_with_the_nearest(tmp_path: Path):
    """A slip of the finger is met with the name that was meant."""
    with pytest.raises(UnknownWorker, match="Did you mean 'decode'"):
        load(_write(tmp_path, GOOD), {}).worker("decoed")


def test_settings_are_found_in_a_folder_above(tmp_path: Path):
    """The command works anywhere below the settings file, and says what to do where there is none."""
    path = _write(tmp_path, GOOD)
    (tmp_path / "a" / "b").mkdir(parents=True)

    assert find(tmp_path / "a" / "b", {}) == path
    assert find(tmp_path, {"PRUDENT_SETTINGS": "elsewhere.toml"}) == Path("elsewhere.toml")
    with pytest.raises(BadSettings, match="prudent lab up"):
        find(Path("/proc"), {})


def test_a_side_of_a_pair_is_loaded_through_its_entry(tmp_path: Path):
    """What is sent to one side alone proves nothing about the pair."""
    pair = GOOD.replace('engine = "sglang"', 'engine = "sglang"\nrole = "decode"\nentry = "http://127.0.0.1:8000/"')

    assert load(_write(tmp_path, GOOD), {}).workers["decode"].load == "http://127.0.0.1:31000"
    assert load(_write(tmp_path, pair), {}).workers["decode"].load == "http://127.0.0.1:8000"


def test_paths_on_another_machine_stay_as_they_are_written(tmp_path: Path):
    """Only what lies on this machine is relative to the settings file."""
    text = GOOD.replace('engine = "sglang"', 'engine = "sglang"\nhost = "gpu7"')
    text = text.replace('"serve.sh"', '"/srv/serve.sh"').replace('"run/worker.log"', '"/srv/worker.log"')
    text += '\n[hosts.gpu7]\nidentity = "keys/id"\n'

    settings = load(_write(tmp_path, text), {})

    assert (settings.workers["decode"].script, settings.workers["decode"].directory) == (
        "/srv/serve.sh",
        ".prudent/host",
    )
    assert settings.hosts["gpu7"].identity == str(tmp_path / "keys" / "id")
