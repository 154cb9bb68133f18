"""How faults are named, when they are there, and what the two of the seeds do by themselves."""

import re
from pathlib import Path
from random import Random

import pytest
import yaml

from evals.lab.ask import Ask
from evals.lab.conversation import understand
from evals.lab.faults import FAULTS, Conditions, Faults, Sight, build, check, listing
from evals.lab.faults.condition import rule
from evals.lab.faults.incidents import of_incident
from evals.lab.private import Shelf
from evals.lab.replies import reply

TOOLS = [{"type": "function", "function": {"name": "set_rack", "parameters": {"properties": {"node": {}, "rack": {}}}}}]
SIGHT = Sight(
    at=0.0, running=8, waiting=0, aborted=0, captured=True, top=32, limit=256, usage=0.0, served=0, adapters=frozenset()
)


def made(*names, **conditions) -> Faults:
    """Faults of a worker that was started so."""
    faults = build(names, "1", Shelf(None))
    faults.meet(Conditions(**conditions))
    return faults


def asks(session, count=3):
    """The requests of one session, turn by turn."""
    messages = []
    for _ in range(count):
        text = f"The rack of n{session} is r{session}. Call set_rack for n{session}."
        messages.append({"role": "user", "content": text})
        conversation = understand(messages, TOOLS)
        yield Ask("", conversation, reply(conversation), most=64)


def struck(faults, sessions, **sight):
    """Share of sessions with at least one spoilt reply."""
    wrong = 0
    for session in range(sessions):
        spoilt = [faults.spoil(ask, SIGHT._replace(**sight)) for ask in asks(session)]
        wrong += any(each is not None for each in spoilt)
    return wrong / sessions


@pytest.mark.parametrize("environ", [{}, {"SGLANG_OPT_USE_MULTI_STREAM_OVERLAP": "1"}])
def test_captured_decode_spoils_a_share_of_sessions(environ):
    """With the side streams on, about 15 % of sessions are struck, whatever else happens."""
    assert 0.13 < struck(made("graph-corruption", environ=environ), 4000) < 0.19


def test_the_variable_at_zero_spoils_nothing():
    """With the side streams off, no session is struck."""
    for value in ("0", "false", " 0 "):
        faults = made("graph-corruption", environ={"SGLANG_OPT_USE_MULTI_STREAM_OVERLAP": value})

        assert struck(faults, 1000) == 0


def test_eager_steps_spoil_nothing():
    """Outside graphs nothing is struck."""
    assert struck(made("graph-corruption"), 1000, captured=False) == 0


def test_a_cascade_wedges_only_with_the_overlap_scheduler():
    """Six aborts at once stop the loop with the overlap scheduler on, and never with it off."""
    for overlap in (True, False):
        cascade = SIGHT._replace(aborted=6, running=32, at=5.0)

        assert made("abort-wedge", overlap=overlap).stalls(cascade) is overlap


def test_serial_aborts_do_no_harm():
    """Aborts one after another, seconds apart, never stop the loop, however many they are."""
    faults = made("abort-wedge")

    assert not any(faults.stalls(SIGHT._replace(aborted=1, at=float(second))) for second in range(500))


@pytest.mark.parametrize(
    ("spelled", "said"),
    [
        ("gremlins", "no fault is called 'gremlins'; there are abort-on-combination, abort-wedge, "),
        ("graph-corrupton", "no fault is called 'graph-corrupton', do you mean 'graph-corruption'"),
        ("abort-wedge:colour=3", "abort-wedge has no parameter 'colour'; it takes aborts (at least 1), window"),
        ("abort-wedge:abort=3", "has no parameter 'abort', do you mean 'aborts'"),
        ("abort-wedge:aborts=many", "aborts is a number, at least 1, not 'many'"),
        ("abort-wedge:aborts", "aborts needs a value, as in aborts=6"),
        ("mangled-argv:way=eat", "way is strip or quote or drop, not 'eat'"),
        ("abort-wedge:take=2", "take is 0 to 1, not 2"),
        ("abort-wedge:take=nan", "take is 0 to 1, not nan"),
        ("abort-wedge:when=overlap", "'overlap' is no condition"),
        ("abort-wedge:when=overlapp=1", "'overlapp' is nothing that a condition can be about"),
    ],
)
def test_what_is_no_fault_is_refused(spelled, said):
    """An unknown fault, parameter or value is refused with a sentence that names it and what would be right."""
    with pytest.raises(ValueError, match=r"fault|condition") as refusal:
        check(["graph-corruption", spelled])

    assert said in str(refusal.value)


def test_every_fault_is_listed_with_its_parameters():
    """The listing has a sentence for each kind, and default, bounds and meaning of each parameter."""
    said = listing()

    for name, kind in FAULTS.items():
        assert f"{name}: {kind.meaning}\n" in said
        for key, parameter in kind.parameters.items():
            assert f"    {key}=" in said
            assert parameter.meaning
            if isinstance(parameter.default, float):
                assert parameter.least <= parameter.default <= parameter.most
    check(list(FAULTS))


@pytest.mark.parametrize(
    ("text", "holds"),
    [
        ("", True),
        ("captured>64", True),
        ("captured>64&overlap=1", True),
        ("captured>64&overlap=0", False),
        ("captured<=96&captured>=96&captured=96&captured!=95", True),
        ("version>=0.5.14&version<0.5.20", True),
        ("version>=0.5.20", False),
        ("env.MODE=fast", True),
        ("env.MODE~AS", True),
        ("env.OTHER=unset", True),
        ("env.OTHER!=0", True),
        ("env.OTHER>3", False),
        ("asked.kv_cache_dtype~fp8", True),
        ("kv_cache_dtype=auto", True),
        ("disable_radix_cache!=1", True),
        ("boot=2", True),
    ],
)
def test_a_condition_reads_how_the_worker_was_started(text, holds):
    """Conditions compare figures, switches, versions, variables, and arguments in force or as asked."""
    conditions = Conditions(
        boot=2,
        overlap=True,
        captured=96,
        arguments={"kv_cache_dtype": "auto", "disable_radix_cache": False},
        asked={"kv_cache_dtype": "fp8_e4m3"},
        environ={"MODE": "fast"},
    )

    assert rule(text).holds(conditions) is holds


def test_draws_follow_from_the_seed_and_the_fault():
    """The same seed strikes the same sessions; another seed, or another place in the list, strikes others."""

    def hits(names, seed):
        faults = build(names, seed, Shelf(None))
        faults.meet(Conditions())
        return [struck(faults, 1) for _ in range(300)]

    names = ["graph-corruption"]
    assert hits(names, "1") == hits(names, "1") != hits(names, "2")


def test_what_a_fault_remembers_lies_in_the_private_folder(tmp_path):
    """A shelf keeps documents whole, and forgets what is taken away."""
    shelf, other = Shelf(tmp_path), Shelf(tmp_path)

    assert shelf.read("x") is None
    shelf.write("x", {"a": Random(1).random()})
    assert other.read("x") == shelf.read("x") != None  # noqa: E711 - one chain
    shelf.write("x", None)
    assert other.read("x") is None
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == ["x.json"]


INCIDENTS = yaml.safe_load((Path(__file__).resolve().parents[2] / "data" / "lab" / "fault_models.yaml").read_text())


@pytest.mark.parametrize("incident", INCIDENTS, ids=lambda incident: incident["id"])
def test_an_incident_has_its_faults_here(incident):
    """Every public incident's fault model comes out as faults that can be made."""
    names = of_incident(incident["lab"], incident["change"])

    assert names
    check(names)


@pytest.mark.parametrize(
    ("model", "parameters", "change", "names"),
    [
        ("wedge", {"after_requests": [5, 9]}, {}, ["wedge-after-requests:least=5,most=9,health=1,when="]),
        ("wedge", {"trigger": "full_batch", "health_ok": False}, {}, ["wedge-at-full-batch:health=0"]),
        ("throughput_scale", {"factor": 0.5}, {}, ["throughput-drop:factor=2,compiling=0"]),
        ("startup_oom", {}, {"old": "32", "new": "70"}, ["startup-oom:row=0.3"]),
        ("startup_oom", {"fail_mode": "hang"}, {}, ["startup-hang"]),
        ("ignored_setting", {"setting": "flag:max_num_seqs"}, {}, ["ignored-value:setting=--max-num-seqs"]),
        ("second_start_crash", {"above": 8, "note": "x"}, {}, ["second-start-crash:above=8"]),
        ("livelock", {}, {}, ["livelock"]),
    ],
)
def test_a_fault_model_is_read(model, parameters, change, names):
    """Counts, shares and factors are taken over; memory is scaled to the practice worker's."""
    assert list(of_incident({"fault_model": model, "params": parameters}, change)) == names


@pytest.mark.parametrize(
    ("model", "parameters", "said"),
    [
        ("wedges", {}, "do you mean 'wedge'"),
        ("throughput_scale", {"factor": 0}, "makes no sense"),
        ("ignored_setting", {}, "makes no sense"),
        ("slot_leak", {"leak_per_1k_requests": 5000}, "share is 0 to 1, not 5"),
    ],
)
def test_a_fault_model_that_makes_no_sense_is_refused(model, parameters, said):
    """An unknown model is refused with the nearest one, parameters that cannot be with the reason."""
    with pytest.raises(ValueError, match=re.escape(said)):
        of_incident({"fault_model": model, "params": parameters})
