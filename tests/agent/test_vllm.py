"""vLLM is an engine of equal rank: what is asked of a vLLM worker is carried end to end."""

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


def test_a_change_of_a_vllm_worker_is_forecast_proven_and_kept(quick_vllm):
    """Read from its log, checked by its own help, live in the new process, with as much memory free as was foreseen."""
    assert "max-num-seqs" in {knob["name"] for knob in quick_vllm.say("knobs", "--json").document}

    said = quick_vllm.ask("bump cuda graphs to 96")
    record = said.record
    readings = {each["metric"]: each for each in record["readings"] if each["phase"] == "candidate"}
    evidence = " ".join(each["what"] for each in record["evidence"])
    free = record["plan"]["forecast"]["free_after_capture"]

    assert (said.status, record["verdict"]["decision"], record["verdict"]["state"]) == (0, "kept", "new"), said.err
    assert record["change"]["summary"] == "max-cudagraph-capture-size 32 -> 96"
    assert quick_vllm.argv()[quick_vllm.argv().index("--max-cudagraph-capture-size") + 1] == "96"
    assert (readings["effective_matches"]["value"], readings["identity_proven"]["value"]) == (1.0, 1.0)
    assert "cudagraph-capture-sizes moved from 1,2,4,8,16,24,32 to" in readings["effective_matches"]["detail"]
    assert "coupled with max-cudagraph-capture-size, which was changed" in readings["effective_matches"]["detail"]
    assert free["low"] <= readings["free_after_capture_gb"]["value"] <= free["high"]
    assert "engine version 0.24.0" in evidence
    assert "the word of the --help of the installed 0.24.0" in evidence


def test_what_a_vllm_would_refuse_is_seen_before_anybody_is_asked(quick_vllm):
    """Sizes that contradict each other keep it from starting; the looks show why, and nothing is touched."""
    script = quick_vllm.ground.script
    text = script.read_text(encoding="utf-8")
    script.write_text(text.replace("--max-num-seqs 256", "--cudagraph-capture-sizes 1 2 4 32 --max-num-seqs 256"))
    quick_vllm.restart()
    before = script.read_bytes()

    said = quick_vllm.ask("set max-cudagraph-capture-size to 96", decide=())
    explained = quick_vllm.say("explain", "max-cudagraph-capture-size").out
    forecast = quick_vllm.say("forecast", "--set", "gpu-memory-utilization=0.95").out

    assert (said.status, said.record["verdict"]["refusal"]) == (39, "EngineRefuses"), said.record["verdict"]
    assert "the largest of cudagraph-capture-sizes, 32, differ" in said.record["verdict"]["why"]
    assert "now          32; in the script 32" in explained
    assert "--max-cudagraph-capture-size in the --help of the installed 0.24.0" in explained
    assert "with cudagraph-capture-sizes = 1,2,4,32" in explained
    assert "does not fit" in forecast
    assert "W weights, K KV pool" in forecast
    assert script.read_bytes() == before
