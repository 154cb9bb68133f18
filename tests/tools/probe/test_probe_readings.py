"""The agent's side: checks become readings, whatever the worker does."""

from __future__ import annotations

import json
import socket
from collections import Counter

import pytest

from agent.domain import Check, CheckName, Reading, Sequential
from agent.errors import NoAnswer
from tools.host import Completed
from tools.local import LocalHost
from tools.probe import canary, live_requests, run_check
from tools.scripted import ScriptedHost


def check_of(name: CheckName, concurrency: tuple[int, ...] = (8,), count: int = 20, tokens: int = 128) -> Check:
    """A check as policy would demand it."""
    return Check(name=name, concurrency=concurrency, count=count, tokens=tokens, why="a test")


def ask(host: object, url: str, check: Check, limit: float = 60, seed: int = 3) -> dict[str, Reading]:
    """Run a check; readings by metric, those with single runs by metric and concurrency."""
    told: list[tuple[str, float | None]] = []
    readings = run_check(
        host,  # type: ignore[arg-type]
        base_url=url,
        check=check,
        phase="candidate",
        seed=seed,
        limit_seconds=limit,
        tell=lambda sentence, share: told.append((sentence, share)),
    )
    assert all(share is None or 0 <= share <= 1 for _, share in told)
    assert all(reading.phase == "candidate" and reading.source for reading in readings)
    return {
        f"{reading.metric}@{reading.concurrency}" if reading.values else reading.metric: reading for reading in readings
    }


class TestSessions:
    def test_a_sound_model(self, serve, host) -> None:
        """Right calls in every turn are no corruption, and the detail says how many were in flight."""
        served = serve()

        readings = ask(host, served.url, check_of("sessions"))

        corrupted, failed = readings["corrupted_sessions"], readings["failed_requests"]
        assert (corrupted.value, corrupted.n, corrupted.bad) == (0.0, 20, 0)
        assert (failed.value, failed.n, failed.bad) == (0.0, 60, 0)
        assert "0 of 20 sessions corrupted at 8 in flight" in corrupted.detail
        assert served.seen()["peak"] == 8

    @pytest.mark.parametrize("script", [{"think": 20}, {"dribble": True}], ids=["thinks first", "chunks in crumbs"])
    def test_what_is_no_fault(self, serve, host, script) -> None:
        """Reasoning before the call, and events torn over many packets, change nothing."""
        readings = ask(host, serve(**script).url, check_of("sessions"))

        assert (readings["corrupted_sessions"].n, readings["corrupted_sessions"].bad) == (20, 0)

    def test_every_way_to_be_wrong_is_seen(self, serve, host) -> None:
        """A session with a wrong reply is counted once, with the kind of its fault; the others stay good."""
        faults = {
            "other_fact": "wrong arguments",
            "invented": "wrong arguments",
            "number": "wrong arguments",
            "extra_argument": "wrong arguments",
            "other_session": "mixed sessions",
            "other_session_in_text": "mixed sessions",
            "other_tool": "wrong tool",
            "no_call": "no call",
            "malformed": "malformed json",
            "list": "malformed json",
            "empty": "empty arguments",
            "empty_object": "empty arguments",
            "loop": "repetition",
            "loop_then_call": "repetition",
            "twice": "repetition",
            "two_calls": "extra call",
            "garbled": "garbled text",
            "endless": "never ended",
        }
        served = serve(faults=list(faults), first=0.002, gap=0.0005)

        corrupted = ask(host, served.url, check_of("sessions", count=40))["corrupted_sessions"]

        assert (corrupted.n, corrupted.bad) == (40, len(faults))
        kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(Counter(faults.values()).items()))
        assert f"; {kinds}; the first in turn 2: wanted set_" in corrupted.detail

    @pytest.mark.parametrize(
        ("fault", "kind"),
        [("other_session", "mixed sessions"), ("malformed", "malformed json"), ("loop", "repetition")],
    )
    def test_the_first_bad_one_is_shown(self, serve, host, fault, kind) -> None:
        """The detail shows what was wanted and what came instead, on one printable line."""
        served = serve(fault=fault, every=5, first=0.2)

        corrupted = ask(host, served.url, check_of("sessions"))["corrupted_sessions"]

        assert (corrupted.n, corrupted.bad, corrupted.value) == (20, 4, 0.2)
        assert f"; 4 {kind}; the first in turn 2: wanted set_" in corrupted.detail
        assert corrupted.detail.isprintable()

    def test_a_lost_correction_is_seen(self, serve, host) -> None:
        """A model that answers with a value that the user has replaced has lost a fact."""
        served = serve(fault="old_value", every=1)

        corrupted = ask(host, served.url, check_of("sessions", count=40))["corrupted_sessions"]

        assert corrupted.bad
        assert f"{corrupted.bad} lost fact;" in corrupted.detail

    @pytest.mark.parametrize(
        ("script", "says"),
        [
            ({"http": 503}, "status 503"),
            ({"cut": "error"}, "503 The request queue is full."),
            ({"cut": "close"}, "without a finish reason"),
            ({"cut": "reset"}, "cut"),
        ],
        ids=["busy", "error in the stream", "stream ends early", "connection reset"],
    )
    def test_a_failed_request_is_no_corruption(self, serve, host, script, says) -> None:
        """What the worker did not answer is counted apart; the session has not been judged."""
        served = serve(every=12, **script)

        readings = ask(host, served.url, check_of("sessions"))

        corrupted, failed = readings["corrupted_sessions"], readings["failed_requests"]
        assert failed.bad
        assert served.seen()["requests"] == failed.n
        assert failed.bad == failed.n // 12
        assert says in failed.detail
        # Two sessions, and no more, are sent in place of failed ones.
        assert failed.bad > 2
        assert (corrupted.n, corrupted.bad) == (20 + 2 - failed.bad, 0)
        assert "could not be judged" in corrupted.detail

    def test_one_hiccup(self, serve, host) -> None:
        """One failed request leaves the sample whole: another session takes the place of the one that it cost."""
        readings = ask(host, serve(http=503, only=7).url, check_of("sessions"))

        assert (readings["corrupted_sessions"].n, readings["corrupted_sessions"].bad) == (20, 0)
        assert readings["failed_requests"].bad == 1

    def test_nobody_there(self, host) -> None:
        """Without a server there is no corruption reading, and every request that was tried failed."""
        readings = ask(host, f"http://127.0.0.1:{free_port()}", check_of("sessions", count=500))

        assert readings["corrupted_sessions"].value is None
        assert "no session could be judged: the last" in str(readings["corrupted_sessions"].no_data)
        assert readings["failed_requests"].value == 1.0
        assert readings["failed_requests"].n < 100

    def test_when_the_time_is_up(self, serve, host) -> None:
        """A run that is out of time judges what it has, and what was cut short did not fail."""
        served = serve(first=0.2)

        readings = ask(host, served.url, check_of("sessions", concurrency=(2,), count=100), limit=1.6)

        corrupted, failed = readings["corrupted_sessions"], readings["failed_requests"]
        assert 0 < corrupted.n < 100
        assert "the time was up" in corrupted.detail
        assert failed.bad == 0

    def test_seeds(self, serve, host) -> None:
        """The same seed sends the same conversations, another one none of them, and no two sessions are alike."""
        sent = []
        for seed in (1, 1, 2):
            served = serve()
            ask(host, served.url, check_of("sessions", count=10), seed=seed)
            sent.append(set(served.seen()["prompts"]))

        assert sent[0] == sent[1]
        assert not sent[0] & sent[2]
        assert len(sent[0]) == 30

    def test_a_server_that_says_nothing(self, serve, host) -> None:
        """Requests that our own deadline cut short neither failed nor went well: there is no data on either."""
        readings = ask(host, serve(first=60).url, check_of("sessions", count=8), limit=1)

        assert "the time was up" in str(readings["corrupted_sessions"].no_data)
        assert readings["failed_requests"].value is None


class TestThroughput:
    def test_every_concurrency_has_its_reading(self, serve, host) -> None:
        """One reading for each concurrency with every run in it, over prompts that are all different."""
        served = serve(gap=0.01)

        readings = ask(host, served.url, check_of("throughput", (2, 8), count=2, tokens=40))

        few, many = readings["throughput_tokens_per_second@2"], readings["throughput_tokens_per_second@8"]
        assert (few.n, many.n) == (len(few.values), len(many.values))
        assert few.n == 2 or "not valid: the client" in few.detail
        assert few.value is not None
        assert few.value == pytest.approx(sum(few.values) / few.n)
        assert many.value is not None
        assert many.value > 2 * few.value
        assert readings["failed_requests"].value == 0.0
        seen = served.seen()
        assert seen["peak"] == 8
        assert len(set(seen["prompts"])) == seen["requests"] >= 3 * (2 + 8)

    def test_foreign_traffic(self, serve, host) -> None:
        """A measurement that others touched is no measurement."""
        readings = ask(host, serve(foreign=2000).url, check_of("throughput", (4,), count=2, tokens=40))

        assert readings["throughput_tokens_per_second"].value is None
        assert "of others" in str(readings["throughput_tokens_per_second"].no_data)

    def test_others_in_flight_before(self, serve, host) -> None:
        """Somebody else's running request is foreign traffic, even though it never ends."""
        readings = ask(host, serve(loads=3).url, check_of("throughput", (4,), count=1, tokens=20))

        assert "3 requests of others" in str(readings["throughput_tokens_per_second"].no_data)

    def test_the_engine_behind_a_router_counts(self, serve, engine, host) -> None:
        """Load that takes the entry of a pair is weighed with what the worker behind it counts."""
        wide = {"check": check_of("throughput", (4,), count=1, tokens=20), "phase": "candidate", "seed": 3}
        url = serve(loads=0).url

        alone = run_check(host, base_url=url, limit_seconds=60, tell=lambda _, __: None, **wide)
        behind = run_check(
            host, base_url=url, counters_url=engine.url, limit_seconds=60, tell=lambda _, __: None, **wide
        )

        assert "of others" not in str(alone[0].no_data)
        assert "3 requests of others" in str(behind[0].no_data)
        assert engine.seen()["requests"] == 0

    def test_failed_requests_spoil_a_run(self, serve, host) -> None:
        """A burst in which requests failed has no rate; the failures have a reading of their own."""
        readings = ask(host, serve(http=503, every=1).url, check_of("throughput", (4,), count=2, tokens=20))

        assert "4 requests failed" in str(readings["throughput_tokens_per_second"].no_data)
        assert readings["failed_requests"].value == 1.0

    def test_a_server_that_counts_too_few(self, serve, host) -> None:
        """Where the server's usage is less than what came, neither number is believed."""
        readings = ask(host, serve(usage=0.5).url, check_of("throughput", (4,), count=1, tokens=20))

        assert "count fewer tokens than came" in str(readings["throughput_tokens_per_second"].no_data)

    def test_a_server_without_usage(self, serve, host) -> None:
        """Without usage the chunks are counted."""
        readings = ask(host, serve(usage=0, gap=0.03).url, check_of("throughput", (4,), count=1, tokens=20))

        assert readings["throughput_tokens_per_second@4"].n == 1


class TestAborts:
    def test_a_worker_that_survives(self, serve, host) -> None:
        """Storms at three fractions cut streams off for real, and a canary gets its tokens after each."""
        served = serve(gap=0.003)

        wedged = ask(host, served.url, check_of("aborts", (24,), count=24, tokens=80))["wedged_storms"]

        assert (wedged.value, wedged.n, wedged.bad) == (0.0, 3, 0)
        assert "a canary got its first token" in wedged.detail
        assert served.seen()["disconnects"] > 20

    def test_nobody_there(self, host) -> None:
        """A worker that did not answer before the first storm was not wedged by one."""
        wedged = ask(host, f"http://127.0.0.1:{free_port()}", check_of("aborts"))["wedged_storms"]

        assert wedged.value is None
        assert "before the first storm" in str(wedged.no_data)


class TestCanary:
    def test_an_answer(self, serve, host) -> None:
        """One request through the entry that is answered is 1."""
        reading = canary(host, base_url=serve().url, phase="restored", limit_seconds=20)

        assert (reading.metric, reading.value, reading.n) == ("entry_answers", 1.0, 1)

    @pytest.mark.parametrize(
        "script", [{"http": 503}, {"wedge_after": 0}, {"cut": "close"}], ids=["busy", "silent", "cut off"]
    )
    def test_no_answer(self, serve, host, script) -> None:
        """An entry that is busy, silent or breaks off does not answer, whatever its status code."""
        reading = canary(host, base_url=serve(**script).url, phase="restored", limit_seconds=1.5)

        assert reading.value == 0.0
        assert reading.detail.startswith("no answer")

    def test_nobody_there(self, host) -> None:
        """Nobody listening is no answer: that has been measured."""
        reading = canary(host, base_url=f"http://127.0.0.1:{free_port()}", phase="restored", limit_seconds=5)

        assert reading.value == 0.0


class TestLiveRequests:
    @pytest.mark.parametrize(
        ("script", "live"),
        [
            ({}, 0),
            ({"loads": 7}, 7),
            ({"gauge": 160}, 0),
            ({"gauge": 160, "loads": False}, None),
            ({"gauge": 0, "loads": False}, 0),
            ({"gauge": 5, "loads": False, "foreign": 100}, 5),
            ({"loads": False, "metrics": False}, None),
            ({"gauge": 0, "foreign": 100}, 1),
        ],
        ids=[
            "idle",
            "the scheduler counts seven",
            "a stale gauge against the scheduler",
            "a stale gauge alone",
            "an idle gauge alone",
            "a gauge and tokens that move",
            "no counter at all",
            "requests too short for the scheduler's snapshot",
        ],
    )
    def test_who_is_believed(self, serve, host, script, live) -> None:
        """The scheduler's word counts, a gauge only with tokens that move, and what nobody knows is None."""
        assert live_requests(host, base_url=serve(**script).url, limit_seconds=1.2) == live

    def test_nobody_there(self, host) -> None:
        """Without a worker nobody has been counted."""
        assert live_requests(host, base_url=f"http://127.0.0.1:{free_port()}", limit_seconds=1) is None


class TestTheProbeItselfFails:
    @pytest.mark.parametrize("name", ["sessions", "throughput", "aborts"])
    def test_a_host_that_does_not_answer(self, name) -> None:
        """A broken link is a reason for having no data, never an exception."""
        host = ScriptedHost(answer=broken)

        readings = ask(host, "http://127.0.0.1:1", check_of(name))

        assert all(reading.value is None and "the link broke" in str(reading.no_data) for reading in readings.values())

    def test_a_host_without_python(self, serve, tmp_path) -> None:
        """An interpreter that is not there is a reason too."""
        host = LocalHost(tmp_path, python="/nowhere/python3")

        reading = canary(host, base_url=serve().url, phase="baseline", limit_seconds=5)

        assert reading.value is None
        assert reading.no_data

    def test_a_url_that_is_none(self, host) -> None:
        """A base URL that cannot be used is said to be so."""
        readings = ask(host, "127.0.0.1:31000", check_of("throughput", (4, 8)))

        assert "not an http or https URL" in str(readings["throughput_tokens_per_second"].no_data)


def rest(**told: float | None) -> dict[str, float | None]:
    """A look at a worker at rest."""
    calm = {"running": 0.0, "waiting": 0.0, "kv": 0.0, "kv_now": 0.0, "settled_after": 0.1}
    return {**calm, "rate": 100.0, "first_token": 0.05, **told}


class TestWhatCannotBeCompared:
    @pytest.mark.parametrize(
        "rests",
        [
            [rest(rate=None), rest(rate=5.0)],
            [rest(settled_after=None, running=9.0), rest()],
            [rest(running=None, waiting=None), rest(running=None, waiting=None)],
        ],
        ids=["no rate before", "users before", "no counter"],
    )
    def test_a_worker_that_nobody_knew_before_has_not_come_back(self, rests) -> None:
        """Without a look at what it was, a worker after a storm is neither sound nor worse."""
        result = {"event": "result", "storms": [], "rests": rests, "stopped": None}

        readings = ask(told(result), "http://127.0.0.1:1", check_of("aborts"))

        assert readings["lingering_storms"].value is None
        assert readings["lingering_storms"].no_data

    @pytest.mark.parametrize(
        ("after", "said"),
        [
            ({"kv_now": 0.03}, "3.0% of the KV pool"),
            ({"first_token": 0.6}, "a first token took 0.60 s"),
            ({"rate": 70.0}, "ran at 70 tokens/s"),
            ({"settled_after": None, "waiting": 4.0}, "0 requests ran and 4 waited"),
        ],
        ids=["pool", "latency", "rate", "queue"],
    )
    def test_what_has_to_be_again_as_it_was(self, after, said) -> None:
        """Pool, first token, rate and queue at rest are each compared with before the first storm."""
        result = {"event": "result", "storms": [], "rests": [rest(), rest(), rest(**after)], "stopped": None}

        reading = ask(told(result), "http://127.0.0.1:1", check_of("aborts"))["lingering_storms"]

        assert (reading.n, reading.bad) == (2, 1)
        assert said in reading.detail

    def test_a_gauge_of_the_pool_may_be_old(self) -> None:
        """Where only a gauge tells the use of the pool it is no sign by itself: it stays as it was for a while."""
        result = {"event": "result", "storms": [], "rests": [rest(kv_now=None), rest(kv=0.3, kv_now=None)]}

        reading = ask(told({**result, "stopped": None}), "http://127.0.0.1:1", check_of("aborts"))["lingering_storms"]

        assert reading.bad == 0

    def test_an_overload_of_a_worker_that_nobody_knew(self) -> None:
        """What it ran at before is missing: that it answers afterwards proves nothing."""
        one = {"stuck": None, "turned_away": 0, "rate_before": None, "rate_after": 5.0}

        readings = ask(
            told({"event": "result", "overloads": [one], "stopped": None}), "http://x:1", check_of("overload")
        )

        assert readings["stuck_overloads"].value is None

    def test_a_soak_that_was_cut_short(self) -> None:
        """Its counts are counts, but a minute without a stall says nothing about the hour that was asked for."""
        result = soak_of(windows=[50] * 60, rests=[rest()], stopped="the time was up")

        readings = ask(told(result), "http://x:1", check_of("soak").model_copy(update={"seconds": 3600.0}))

        assert readings["corrupted_in_soak"].n == 40
        for metric in ("stalled_seconds", "memory_growth_gb_per_hour", "card_growth_gb_per_hour", "rate_decay"):
            assert readings[metric].value is None
            assert "60 of 3600 s" in str(readings[metric].no_data)


def soak_of(**more: object) -> dict[str, object]:
    """What a soak of a sound worker brings home."""
    return {
        "event": "result",
        "windows": [50, 51] * 30,
        "memory": [[float(at), 1.0] for at in range(60)],
        "cards": {"samples": [[5.0 * at, 40.0] for at in range(12)], "of": "its processes", "why_not": None},
        "rests": [rest(), rest()],
        "sessions": {"n": 40, "bad": 0, "failed": 0},
        "first_bad": None,
        "requests": {"n": 120, "bad": 0, "first": None},
        "stopped": None,
        "silent": None,
        **more,
    }


class TestWhatThePassesSay:
    @pytest.mark.parametrize(
        ("passes", "captured", "exposure"),
        [
            ({"eager": 0.0, "captured": 100.0}, True, 0.9),
            ({"eager": 50.0, "captured": 50.0}, True, 0.4),
            ({"eager": 100.0, "captured": 0.0}, True, 0.0),
            ({"eager": 50.0, "captured": 50.0}, False, 0.9),
            (None, True, 0.9),
        ],
        ids=["all replayed", "half of them eager", "none replayed", "where eager is the change", "no counter"],
    )
    def test_eager_passes_are_no_exposure_to_graphs(self, passes, captured, exposure) -> None:
        """A worker that says it has the graphs and does not use them has not been tried with them."""
        result = {
            "event": "result",
            "sessions": {"planned": 100, "n": 100, "bad": 0, "failed": 0, "kinds": {}},
            "depths": [{"tokens": 0, "n": 100, "bad": 0}],
            "texts": {"asked": 0, "long": 0},
            "exposure": 0.9,
            "passes": passes,
            "decoded": 9600,
            "requests": {"n": 300, "bad": 0, "first": None},
            "in_flight": {"peak": 96, "mean": 77.0, "tokens_above": {}},
            "stopped": None,
        }
        check = check_of("sessions").model_copy(update={"acts": (32, 96)})

        readings = run_check(
            told(result), base_url="http://x:1", check=check, phase="candidate", seed=1, limit_seconds=5,
            tell=lambda _, __: None, captured=captured,
        )  # fmt: skip

        assert readings[0].exposure == pytest.approx(exposure)


class TestWhatASoakSees:
    def _ask(self, **more: object) -> dict[str, Reading]:
        check = check_of("soak").model_copy(update={"seconds": 60.0})
        return ask(told(soak_of(**more)), "http://x:1", check)

    def test_a_worker_that_stays_what_it_was(self) -> None:
        """Neither growth nor loss is claimed of steady samples."""
        found = self._ask()

        assert found["card_growth_gb_per_hour"].value == pytest.approx(0.0)
        assert found["rate_decay"].value is not None
        assert found["rate_decay"].value < 0.05

    def test_a_leak_of_the_cards(self) -> None:
        """What grows by 72 MB a minute is told at its lower end, and whose memory it is."""
        samples = [[5.0 * at, 40.0 + 0.006 * at] for at in range(12)]
        found = self._ask(cards={"samples": samples, "of": "all processes on the cards", "why_not": None})

        assert found["card_growth_gb_per_hour"].value == pytest.approx(4.32, abs=0.01)
        assert "all processes on the cards" in found["card_growth_gb_per_hour"].detail

    def test_cards_that_nobody_can_ask(self) -> None:
        """Without the driver's word there is no reading: a leak there would go unseen."""
        found = self._ask(cards={"samples": [], "of": "its processes", "why_not": "there is no nvidia-smi"})

        assert found["card_growth_gb_per_hour"].value is None
        assert "no nvidia-smi" in str(found["card_growth_gb_per_hour"].no_data)

    def test_a_loss_that_came_at_once(self) -> None:
        """A worker that was slow before the first third was over is compared with what it was before the soak."""
        found = self._ask(rests=[rest(rate=400.0), rest(rate=200.0)])

        assert found["rate_decay"].value == pytest.approx(0.5)

    def test_a_silence_that_ended_the_soak(self) -> None:
        """It was measured, though nothing else of the soak was."""
        why = "no stream got a token for 90 s"
        found = self._ask(windows=[50] * 10 + [0] * 90, rests=[rest()], stopped=why, silent=why)

        assert found["stalled_seconds"].value == 90
        assert found["card_growth_gb_per_hour"].value is None

    @pytest.mark.parametrize("after", [[], [rest(rate=None)], [rest(settled_after=None, running=3.0)]])
    def test_a_rest_that_nobody_saw(self, after) -> None:
        """Where the worker was not at rest afterwards, or did not answer, nobody knows what it has lost."""
        assert self._ask(rests=[rest(), *after])["rate_decay"].value is None


def told(result: dict[str, object]) -> ScriptedHost:
    """A host whose load ends with this."""
    return ScriptedHost(answer=lambda *_: Completed(0, json.dumps(result).encode() + b"\n", b""))


def broken(*_: object) -> Exception:
    """A link that does not hold."""
    return NoAnswer("far", ("probe",), None, "the link broke")


def free_port() -> int:
    """A port on which nobody listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class TestSequentialSessions:
    TEST = Sequential(ok=0.001, bad=0.03, error=0.05, cap=300)

    def _ask(self, host, url: str, **fields) -> Reading:
        check = check_of("sessions", (16,), count=fields.pop("count", 100)).model_copy(
            update={"sequential": self.TEST, "stop_at": 2, **fields}
        )
        return ask(host, url, check)["corrupted_sessions"]

    def test_it_ends_when_enough_are_clean(self, serve, host) -> None:
        """As many as tell an acceptable share from a bad one are sent, and those that were in flight."""
        reading = self._ask(host, serve().url)

        assert reading.bad == 0
        assert 100 <= reading.n < 132

    def test_it_ends_at_the_second_bad_one(self, serve, host) -> None:
        """Nothing is gained by sending on when it is decided, and what was in flight still counts."""
        reading = self._ask(host, serve(fault="other_fact", every=5, first=0.4).url)

        assert reading.bad is not None
        assert 2 <= reading.bad <= 8
        assert reading.n < 60

    def test_one_bad_one_makes_it_go_on(self, serve, host) -> None:
        """A sample that would have settled it does not after a bad one; it goes on until it is settled or its cap."""
        mild = Sequential(ok=0.005, bad=0.03, error=0.05, cap=300)
        reading = self._ask(host, serve(faults=["other_fact"]).url, sequential=mild)

        assert reading.bad == 1
        assert 186 <= reading.n < 220
        assert "could not be judged" not in reading.detail

    def test_strata_of_depth(self, serve, host) -> None:
        """Sessions are spread over the depths, and how each of them went is told."""
        served = serve()
        reading = self._ask(host, served.url, count=12, sequential=None, stop_at=None, depths=(0, 400, 1200))

        assert reading.n == 12
        assert "0 of 4 at 0, 0 of 4 at 400, 0 of 4 at 1200" in reading.detail
        lengths = sorted(len(prompt.split()) for prompt in served.seen()["prompts"])
        assert lengths[-1] > lengths[0] + 800

    def test_long_texts_have_to_stay_text(self, serve, host) -> None:
        """After right calls, a long text that collapses into one sign is corrupted, and a sound one is not."""
        sound = self._ask(host, serve().url, count=4, sequential=None, texts=3)
        collapsed = self._ask(host, serve(collapse=40).url, count=4, sequential=None, texts=3)

        assert (sound.n, sound.bad) == (7, 0)
        assert (collapsed.n, collapsed.bad) == (7, 3)
        assert "a long text" in collapsed.detail

    def test_texts_that_end_early_prove_nothing(self, serve, host) -> None:
        """Where no text became long, nobody has seen what comes after its first words."""
        reading = self._ask(host, serve(brief=30).url, count=4, sequential=None, texts=3)

        assert reading.value is None
        assert "none of 3 texts" in str(reading.no_data)

    def test_exposure_is_counted_where_the_change_acts(self, serve, host) -> None:
        """The share of the tokens that came while so many decoded at once; small batches are none."""
        wide = self._ask(host, serve(gap=0.01).url, count=32, sequential=None, stop_at=None, acts=(4, 16))
        none = self._ask(host, serve(gap=0.01).url, count=32, sequential=None, stop_at=None, acts=(32, 96))

        assert wide.exposure is not None
        assert wide.exposure > 0.5
        assert none.exposure == 0.0
