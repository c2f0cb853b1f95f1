"""/metrics: clean by promtool, exact counts, bounded labels."""

import shutil
import subprocess

import pytest


def test_exact_counts(start):
    s = start()
    for i in range(10):
        s.complete(f"Number {i}", max_tokens=5, ignore_eos=True)
    assert s.metric("whet_time_to_first_token_seconds_count") == 10
    assert s.metric("whet_inter_token_latency_seconds_count") == 40
    assert s.metric("whet_generation_tokens_total") == 50
    assert s.metric("whet_queue_seconds_count") == 10
    text = s.get("/metrics").text
    assert 'whet_requests_total{route="/v1/completions",code="200"} 10\n' in text
    assert 'whet_request_duration_seconds_count{route="/v1/completions"} 10\n' in text
    s.post("/v1/completions", {"prompt": 3})
    s.stream("/completions", {"prompt": "x", "max_tokens": 1})
    s.get("/no/such/" + "x" * 50)
    text = s.get("/metrics").text
    assert 'whet_requests_total{route="/v1/completions",code="400"} 1\n' in text
    assert 'whet_requests_total{route="/v1/completions",code="200"} 11\n' in text
    assert 'whet_requests_total{route="other",code="404"} 1\n' in text
    assert "xxxx" not in text
    assert s.metric("whet_time_to_first_token_seconds_count") == 11


def test_the_promised_names_are_there(server):
    server.complete("Hi")
    text = server.get("/metrics").text
    for name in ("request_duration_seconds", "time_to_first_token_seconds",
                 "inter_token_latency_seconds", "queue_seconds", "prompt_tokens_total",
                 "generation_tokens_total", "requests_total", "requests_running",
                 "requests_waiting", "kv_pages_used", "kv_pages", "step_seconds", "step_tokens",
                 "preemptions_total", "prefix_cache_hit_tokens_total", "kernel_launches_total",
                 "region_seconds", "region_roofline_ratio", "hot_path_compiles_total"):
        assert f"# TYPE whet_{name} " in text, name
    for name in ("cpu_seconds_total", "resident_memory_bytes", "open_fds", "max_fds",
                 "start_time_seconds"):
        assert f"\nprocess_{name} " in text, name
    assert 'le="0.0005"' in text
    answer = server.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")


def test_no_name_is_declared_twice(server):
    heads = [line for line in server.get("/metrics").text.splitlines() if line.startswith("# TYPE")]
    assert len(heads) == len({h.split()[2] for h in heads})


@pytest.mark.skipif(not shutil.which("promtool"), reason="promtool is not installed")
def test_promtool_finds_nothing(server):
    server.complete("Hi")
    text = server.get("/metrics").text
    run = subprocess.run(["promtool", "check", "metrics"], input=text, capture_output=True,
                         text=True)
    assert run.returncode == 0 and not run.stdout and not run.stderr, run.stdout + run.stderr
