# SPDX-License-Identifier: Apache-2.0
"""/metrics: clean by promtool, exact counts, bounded labels."""

import re
import resource
import shutil
import subprocess
from pathlib import Path

import pytest
import requests


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


def test_no_sample_is_there_twice(server):
    """Routes that share a label (`/models` and `/v1/models`) are one series."""
    rows = [line.rsplit(" ", 1)[0] for line in server.get("/metrics").text.splitlines() if line[:1] != "#"]
    assert len(rows) == len(set(rows)), {r for r in rows if rows.count(r) > 1}
    assert "(null)" not in "".join(rows)


def test_the_process_is_told_when_it_has_no_descriptors_left(start):
    s = start()
    pid, session = s.process.pid, requests.Session()

    def process():
        rows = (line.rsplit(" ", 1) for line in session.get(s.url + "/metrics").text.splitlines())
        return {name: float(value) for name, value in rows if name.startswith("process_")}

    before = process()
    assert before["process_open_fds"] > 3
    soft, hard = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (3, hard))  # whichever of its own it closes
    try:
        now = process()
    finally:
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (soft, hard))
    assert now["process_max_fds"] == 3 < now["process_open_fds"]
    assert now["process_cpu_seconds_total"] >= before["process_cpu_seconds_total"] > 0
    assert now["process_resident_memory_bytes"] > 0 and now["process_virtual_memory_bytes"] > 0
    assert now["process_start_time_seconds"] == before["process_start_time_seconds"]


@pytest.mark.skipif(not shutil.which("promtool"), reason="promtool is not installed")
def test_promtool_finds_nothing(server):
    server.complete("Hi")
    text = server.get("/metrics").text
    run = subprocess.run(["promtool", "check", "metrics"], input=text, capture_output=True,
                         text=True)
    assert run.returncode == 0 and not run.stdout and not run.stderr, run.stdout + run.stderr


PRODUCT_SHARE_LEAST = 1 / 3  # of engine/cpu/machine.c


def test_a_slow_library_of_products_is_said(start, monkeypatch):
    """SSE3 kernels on a processor with more: a warning in the log, and what was measured. How slow
    they are is the machine's business, and how idle it was: the warning has to agree with that."""
    flags = Path("/proc/cpuinfo").read_text()
    if " avx2 " not in flags or " fma " not in flags:
        pytest.skip("the oldest kernels may be the right ones here")
    monkeypatch.setenv("OPENBLAS_CORETYPE", "Prescott")
    s = start()
    text = s.get("/metrics").text
    product = re.search(r'^whet_machine_product_flops\{core="(\w+)"\} (\S+)$', text, re.M)
    if product.group(1) != "Prescott":
        pytest.skip("this OpenBLAS has one core only")
    share = float(product.group(2)) / s.metric("whet_machine_peak_flops")
    assert share > 0
    assert "products: core Prescott, " in s.text()
    said = "with OpenBLAS core Prescott (as OPENBLAS_CORETYPE says)" in s.text()
    assert said == (share < PRODUCT_SHARE_LEAST)


def test_the_core_of_products_is_chosen(start, monkeypatch):
    """Without the user's word, none is named in the log as theirs, and no kernel for any x86 runs."""
    monkeypatch.delenv("OPENBLAS_CORETYPE", raising=False)
    s = start()
    core = re.search(r'^whet_machine_product_flops\{core="(\w+)"\}', s.get("/metrics").text, re.M)
    assert f"products: core {core.group(1)}," in s.text()
    assert "OPENBLAS_CORETYPE" not in s.text()
    flags = Path("/proc/cpuinfo").read_text()
    if " avx2 " in flags and " fma " in flags:
        assert core.group(1) != "Prescott"
