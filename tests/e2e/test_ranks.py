# SPDX-License-Identifier: Apache-2.0
"""One model computed by several processes: the same text, one exit status for all ways to end, and no
process that stays behind."""

import contextlib
import os
import re
import signal
import socket
import subprocess
import tempfile
import threading
import time
from pathlib import Path

import pytest
import requests

from broken_memory import FAULTS, overwrite_kernels
from conftest import BINARY, MODEL, PATIENCE, WHATEVER_SPEED, Server
from golden import GREEDY, assert_writes
from load import Load

TINY = "random:tiny"
LOST = 3  # engine/ranks.h


def others(s):
    """Process ids of the ranks that joined, by rank."""
    found = re.findall(r"rank (\d+) of \d+ is here: process (\d+)", s.text())
    return {int(rank): int(pid) for rank, pid in found}


def gone(pid):
    """Whether there is no such process any more; one that nobody has waited for counts as gone."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return True
    return state in "ZX"


def wait_gone(pids):
    end = time.time() + PATIENCE
    while not all(gone(pid) for pid in pids):
        assert time.time() < end, f"still there: {[p for p in pids if not gone(p)]}"
        time.sleep(0.02)


@pytest.fixture
def ranks():
    """Starts a server of so many ranks; whatever it leaves behind is a failure."""
    started = []

    def begin(n, *options, model=TINY, **more):
        s = Server(f"--engine-ranks={n}", "--engine-backend=cpu", *options, model=model, **more)
        started.append(s)
        return s

    yield begin
    for s in started:
        s.stop()
        wait_gone(others(s).values())


def all_shared_memory():
    return {p.name for p in Path("/dev/shm").glob("whet-*") if not p.name.startswith("whet-test")}


BEFORE = all_shared_memory()


def shared_memory():
    """What servers of this run have or left: neither unit tests nor what was there before count."""
    return all_shared_memory() - BEFORE


def wait_no_shared_memory():
    """A server that starts beside this test has some until its ranks have met; what one left stays."""
    end = time.time() + PATIENCE
    while left := shared_memory():
        assert time.time() < end, left
        time.sleep(0.02)


# ---- the same text ------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def three():
    """SmolLM2's nine heads and three KV heads on three ranks."""
    s = Server("--engine-ranks=3", "--engine-backend=cpu", "--engine-kv-pages=64")
    yield s
    s.stop()
    assert s.process.returncode == 0, s.text()
    wait_gone(others(s).values())


@pytest.mark.parametrize("case", GREEDY[:6], ids=lambda c: c["name"])
def test_three_ranks_write_what_transformers_writes(three, case):
    assert_writes(three, case)


@pytest.mark.threads
def test_many_requests_at_once_of_all_kinds(three):
    """Batches, sampling, guesses, pages that run out: whatever rank 0 plans, all run."""
    texts = ["The sea", "One two three four one two three four one two", "A" * 300, "def f(x):"]
    alone = [three.complete(t, max_tokens=24)["choices"][0]["text"] for t in texts]
    together = [None] * 8

    def ask(i):
        body = {"max_tokens": 24}
        if i >= 4:
            body = {"max_tokens": 60, "temperature": 0.9, "seed": i, "top_p": 0.9, "logprobs": 3}
        elif i == 1:
            body["speculate"] = True
        together[i] = three.complete(texts[i % 4], **body)["choices"][0]["text"]

    threads = [threading.Thread(target=ask, args=(i,)) for i in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert all(together)
    assert sum(a == b for a, b in zip(alone, together)) >= 2  # a batch may turn a near tie


def test_one_two_and_four_ranks_agree(ranks):
    """Random weights leave no near ties, and four ranks of two KV heads share them."""
    said = []
    for n in (1, 2, 4):
        s = ranks(n)
        answer = s.complete("sharp tools", max_tokens=30, logprobs=2, return_token_ids=True)
        said.append(answer["choices"][0])
        s.stop()
        assert s.process.returncode == 0, s.text()
    for other in said[1:]:
        assert other["token_ids"] == said[0]["token_ids"]
        for a, b in zip(said[0]["logprobs"]["token_logprobs"], other["logprobs"]["token_logprobs"]):
            assert abs(a - b) < 1e-3


# ---- the specializer ----------------------------------------------------------------------------


def tables(s):
    """The version of each rank's dispatch table."""
    found = re.findall(r'^whet_rank_table_version\{rank="(\d+)"\} (\d+)$', s.get("/metrics").text, re.M)
    return {int(rank): int(version) for rank, version in found}


def agreed(s, least):
    """The version that all ranks have, which is `least` or later; it is told with a step, so there must be some."""
    end = time.time() + PATIENCE
    while len(set((found := tables(s)).values())) > 1 or found[0] < least:
        assert time.time() < end, f"{found}, not all {least} or later"
        s.complete("x", max_tokens=2)
    return found[0]


def slot_of(s, name):
    slots = s.get("/specializer").json()["specializer"]["slots"]
    return next((x for x in slots if x["slot"] == name), None)


class Counting(Load):
    def ask(self, server):
        return count(server)


HEADERS = {"Authorization": "Bearer " + "k" * 40}


def searching(world, slot, key_file, *options, model=None):
    """A server of so many ranks that searches one slot, and lets serve what is right, however fast."""
    key_file.write_text("k" * 40)
    key_file.chmod(0o600)
    return Server(f"--engine-ranks={world}", "--engine-backend=cpu", "--engine-kv-pages=64", "--specializer-enabled=true",
                  "--specializer-slots", slot, WHATEVER_SPEED, "--server-admin-key-file", str(key_file), *options,
                  model=model)


def sample(s, name):
    """The one sample of a metric that has these labels."""
    return float(re.search(rf"^{re.escape(name)} (\S+)$", s.get("/metrics").text, re.M)[1])


def freeze(s):
    """It goes on searching otherwise."""
    answer = s.post("/admin/specializer/freeze", None, headers=HEADERS)
    assert answer.status_code == 200, answer.text


def wait_active(s, slot, end):
    while (slot_of(s, slot) or {}).get("state") != "active":
        assert time.time() < end and s.process.poll() is None, s.text()
        time.sleep(0.1)


def count(s):
    """What it writes, greedily."""
    return s.complete("One two three four", max_tokens=60, return_token_ids=True)["choices"][0]["token_ids"]


# SmolLM2 has heads for three; for two there are made-up weights, which no other program has, in formats
# that differ between layers: the slot is one format class's, and every rank packs the weights of its layers.
# Of few weights: the search is the same, and steps do not take the cores from it.
@pytest.mark.once  # the search has to get somewhere: minutes under sanitizers
@pytest.mark.parametrize("world, model, slot", [
    (3, None, "mlp_in/m1"), (2, "random:tiny:q4_1+q8_0", "mlp_out/m1/q4_1")])
def test_a_kernel_is_published_on_all_ranks_under_load_and_disabled_on_all(tmp_path, world, model, slot):
    """The whole loop on rank 0's part, all ranks with one table; bit_equal, so that eager's tokens are a
    demand, whatever serves meanwhile."""
    end = time.time() + 2 * PATIENCE  # all these ranks on two cores that others use too
    s = searching(world, slot, tmp_path / "key", "--specializer-numerics=bit_equal", model=model)
    try:
        with Counting(s) as load:
            wait_active(s, slot, end)
        assert not load.failed and s.metric("whet_kernel_swaps_total") >= 1
        freeze(s)
        published = agreed(s, 1)
        assert {tuple(t) for t in load.answers} == {tuple(count(s))}
        for case in GREEDY[:0 if model else 3]:  # and these are what transformers writes
            assert_writes(s, case)
        kernel = slot_of(s, slot)["kernel"]["id"]
        answer = s.post(f"/admin/kernels/{kernel}/disable", {"reason": "a test"}, headers=HEADERS)
        assert answer.status_code == 200, answer.text
        assert slot_of(s, slot)["state"] == "eager"
        assert agreed(s, published + 1) == published + 1
        assert count(s) == load.answers[0]
        ranks_said = s.get("/specializer").json()["specializer"]["ranks"]
        assert ranks_said == [{"rank": i, "table": published + 1} for i in range(world)]
        s.signal(signal.SIGTERM)
        assert s.wait() == 0, s.text()
    finally:
        s.stop()
    wait_gone(others(s).values())
    wait_no_shared_memory()


@pytest.mark.once  # as above
def test_the_sum_of_ranks_is_searched_by_all_of_them(tmp_path):
    """A candidate is proven by sealed ranks, loaded and timed on all, and whatever is served then writes
    eager's tokens. Whether one is faster is for the machine to say: where one is, it is on all ranks."""
    slot, world = "reduce/m1", 2
    end = time.time() + 2 * PATIENCE
    s = searching(world, slot, tmp_path / "key", "--specializer-min-gain=0", model="random:tiny")
    timed = lambda: sum(sample(s, f'whet_specializer_candidates_total{{stage="bench",outcome="{o}"}}')
                        for o in ("pass", "refuse"))
    try:
        by_eager = count(s)
        with Counting(s) as load:
            while timed() < 1:
                assert time.time() < end and s.process.poll() is None, s.text()
                time.sleep(0.1)
        freeze(s)
        assert not load.failed
        assert sample(s, 'whet_specializer_candidates_total{stage="probe",outcome="pass"}') >= 1
        assert sample(s, 'whet_region_seconds{region="reduce"}') > 0
        if slot_of(s, slot)["state"] == "active":
            agreed(s, 1)
        assert {tuple(t) for t in load.answers} == {tuple(by_eager)} == {tuple(count(s))}
        s.process.send_signal(signal.SIGTERM)
        assert s.wait() == 0, s.text()
    finally:
        s.stop()
    wait_gone(others(s).values())
    wait_no_shared_memory()


@pytest.mark.once  # the search has to get somewhere: minutes under sanitizers
def test_a_kernel_that_faults_on_another_rank_ends_the_server_and_is_refused_after_it(tmp_path):
    """It serves on three ranks, and comes back on all of them after a restart. Then memory of rank 2 breaks:
    that rank dies of it, and rank 0 says which one and ends. Whoever starts the server again has eager there."""
    slot, store = "mlp_in/m1", str(tmp_path / "store.db")
    begin = lambda *more: searching(3, slot, tmp_path / "key", "--specializer-numerics=bit_equal", "--store", store,
                                    *more)
    end = time.time() + 3 * PATIENCE  # three ranks on two cores that others use too
    s = begin()
    try:
        by_eager = count(s)
        with Counting(s):
            wait_active(s, slot, end)
        freeze(s)
        kernel = slot_of(s, slot)["kernel"]["id"]
        s.signal(signal.SIGTERM)
        assert s.wait() == 0, s.text()
    finally:
        s.stop()
    for fault in (True, False):
        s = begin("--specializer-paused=true")
        try:
            if fault:
                wait_active(s, slot, end)
                assert slot_of(s, slot)["kernel"]["id"] == kernel
                agreed(s, 1)
            else:
                s.wait_text("the last process died of SIGILL on rank 2 with 1 kernel of the search, in its code")
            assert count(s) == by_eager
            if not fault:
                assert slot_of(s, slot)["kernel"]["id"] == "eager"
            if fault:
                victim = others(s)[2]
                overwrite_kernels(victim, FAULTS)
                try:
                    assert s.post("/v1/completions", {"prompt": "x", "max_tokens": 8}).status_code != 200
                except requests.ConnectionError:
                    pass  # it ended before it answered
                assert s.wait() == LOST, s.text()
                assert f"rank 2 (process {victim} at 127.0.0.1) is gone: it died of SIGILL" in s.text()
                assert f"SIGILL in kernel {kernel} (" in s.text()
        finally:
            s.stop()
        wait_gone(others(s).values())
        wait_no_shared_memory()


@pytest.mark.once  # as above
def test_what_a_search_of_one_ranks_part_found_is_the_ranks(tmp_path):
    """`random:tiny/2` is a rank's part of `random:tiny` as a model of its own. A winner of a search on it is
    restored on both ranks of a server that has its store, and is what a bench of both loads."""
    slot, store = "head/m1", str(tmp_path / "store.db")
    one = ["--engine-backend=cpu", "--engine-threads=1", "--store", store]
    run = lambda *command: subprocess.run([BINARY, *command], capture_output=True, text=True, timeout=PATIENCE)
    won = lambda: [line.split()[0] for line in run("kernels", "list", "--store", store).stdout.splitlines()
                   if line.split()[1:3] == ["active", slot]]
    end, seconds = time.time() + 3 * PATIENCE, 6
    while not won():  # a second or two is enough for a candidate where nobody else wants the cores
        tune = run("tune", "--model", TINY + "/2", "--slot", slot, "--seconds", str(seconds),
                   WHATEVER_SPEED, *one)
        assert tune.returncode == 0 and time.time() < end, tune.stdout + tune.stderr
        seconds = min(2 * seconds, PATIENCE // 2)
    s = searching(2, slot, tmp_path / "key", "--specializer-paused=true", *one[1:], model=TINY)
    try:
        wait_active(s, slot, end)
        assert [slot_of(s, slot)["kernel"]["id"]] == won()
        assert sample(s, 'whet_specializer_candidates_total{stage="build",outcome="pass"}') == 0
        agreed(s, 1)
        assert len(count(s)) > 0
        s.signal(signal.SIGTERM)
        assert s.wait() == 0, s.text()
    finally:
        s.stop()
    wait_gone(others(s).values())
    bench = run("bench", "decode", "--model", TINY, "--batch", "1", "--context", "40", "--pairs", "1",
                "--engine-ranks=2", *one)
    assert bench.returncode == 0, bench.stderr
    assert re.search(f"^  {slot} ", bench.stdout, re.M) and "1 slots hold winners" in bench.stdout, bench.stdout
    wait_no_shared_memory()


# ---- starting -----------------------------------------------------------------------------------


def test_a_bench_puts_points_into_the_steps_of_all_ranks(tmp_path):
    """Lines that it can measure, twice, and lines that it cannot; whatever is kept, all ranks go on together."""
    tmp_path.chmod(0o700)
    points = tmp_path / "points"
    lines = ["mlp_in/m1 mlp_in ROWS=2", "mlp_in/m1 mlp_in ROWS=1 ; mlp_out/m1 mlp_out", "mlp_in/m1 mlp_in ROWS=77",
             "reduce/m1 reduce_shm", "nowhere/m1 mlp_in", "mlp_in/m1 mlp_in ROWS=2", "mlp_in/m1 start",
             "mlp_in/m1 start ROWS=77"]
    points.write_text("\n".join(lines) + "\n")
    bench = subprocess.run([BINARY, "bench", "decode", "--model", TINY, "--batch", "1", "--context", "40", "--pairs",
                            "1", "--engine-backend=cpu", "--engine-threads=1", "--engine-ranks=2", "--store",
                            str(tmp_path / "store.db"), "--points", str(points)],
                           capture_output=True, text=True, timeout=PATIENCE)
    assert bench.returncode == 0, bench.stderr
    said = [line for line in bench.stdout.splitlines() if line.startswith("line ")]
    assert ["skipped" in line for line in said] == [False, False, True, False, True, False, False, True], bench.stdout
    assert all(text in line for text, line in zip(lines, said))
    wait_no_shared_memory()


def test_a_bench_runs_its_steps_on_all_ranks():
    batches, prompts = ["--batch", "1,3", "--context", "40"], ["--prompt", "40"]
    sizes = {"decode": batches, "prefill": prompts, "step": batches, "region": batches + prompts}
    bench = lambda mode, model=TINY, n="2": subprocess.run(
        [BINARY, "bench", mode, "--model", model, *sizes[mode],
         "--pairs", "1", "--engine-ranks", n, "--engine-backend=cpu", "--engine-threads=1"],
        capture_output=True, text=True, timeout=PATIENCE)
    for mode, lines in (("decode", ["batch 1 context 40", "batch 3 context 40"]), ("prefill", ["prompt 40"])):
        run = bench(mode)
        assert run.returncode == 0, run.stderr
        assert "rank 1 of 2 is ready" in run.stderr
        for line in lines:
            assert re.search(f"^{line} .*tok/s", run.stdout, re.M), run.stdout
    part = bench("region", TINY + "/2", "1")  # what a rank's regions take is timed on one device
    assert part.returncode == 0, part.stderr
    assert "tiny/2 with random weights" in part.stdout
    assert re.search(r"^  mlp_out +\d", part.stdout, re.M), part.stdout
    run = bench("step")
    assert run.returncode == 1 and "step measures regions, which it cannot of several ranks" in run.stderr
    assert "rank" not in run.stderr.split("whet bench: ")[0]
    wait_no_shared_memory()


def test_a_bench_of_all_ranks_has_the_starts_of_their_sum(tmp_path):
    tmp_path.chmod(0o700)
    run = subprocess.run(
        [BINARY, "bench", "decode", "--model", TINY, "--batch", "8", "--context", "40", "--pairs", "1", "--starts",
         "--store", str(tmp_path / "s.db"), "--engine-ranks", "2", "--engine-backend=cpu", "--engine-threads=1"],
        capture_output=True, text=True, timeout=PATIENCE)
    assert run.returncode == 0, run.stderr
    assert re.search("^  reduce/m8 +reduce_shm ", run.stdout, re.M), run.stdout
    assert "7 slots hold the points that searches start from" in run.stdout
    wait_no_shared_memory()


def test_a_model_that_cannot_be_cut_says_so(ranks):
    s = ranks(2, model=MODEL, wait=False)
    assert s.wait() == 1
    assert "2 ranks: 9 attention heads do not divide by them; 3 would do" in s.text()


def test_a_ranks_part_is_not_cut_again(ranks):
    s = ranks(2, model=TINY + "/2", wait=False)
    assert s.wait() == 1
    assert "random-tiny/2: is one rank's part of a model, which cannot be cut again" in s.text()
    wait_gone(others(s).values())
    wait_no_shared_memory()


def test_wrong_numbers_are_refused():
    for value, words in (("0", "engine.ranks = 0"), ("65", "engine.ranks = 65"),
                         ("two", "engine.ranks = two"), ("env", "no launcher says which rank")):
        clean = {k: v for k, v in os.environ.items() if not k.startswith(("RANK", "OMPI_", "SLURM_"))}
        run = subprocess.run([BINARY, "serve", "--model", TINY, "--port", "0", f"--engine-ranks={value}"],
                             capture_output=True, text=True, timeout=PATIENCE, env=clean, check=False)
        assert run.returncode == 1 and words in run.stderr, run.stderr


def test_gpus_that_make_no_sense_are_refused():
    for options, words in ((["--engine-gpus=two"], "engine.gpus = two"), (["--engine-gpus=0,,1"], "a list as 0,2"),
                           (["--engine-gpus=0"], "no rank is left"), (["--engine-gpus=99"], "99"),
                           (["--engine-gpus=2", "--engine-ranks=2"], "engine.gpus and engine.ranks"),
                           (["--engine-gpus=2", "--engine-backend=cpu"], "engine.backend is cpu")):
        run = subprocess.run([BINARY, "serve", "--model", TINY, "--port", "0", *options],
                             capture_output=True, text=True, timeout=PATIENCE, check=False)
        assert run.returncode == 1 and words in run.stderr, run.stderr


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Launched:
    """Ranks that a launcher starts: here, this test."""

    def __init__(self, world, variables, *options, models=None, cpus=None):
        port = free_port()
        self.store = tempfile.TemporaryDirectory(prefix="whet-e2e-")
        self.logs = [tempfile.TemporaryFile("w+") for _ in range(world)]
        self.ranks = []
        for rank in range(world):
            env = {**os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
            env |= {name: str(rank) for name in variables[0]}
            env[variables[1]] = str(world)
            model = models[rank] if models else TINY
            pinned = ["taskset", "-c", cpus[rank]] if cpus else []
            self.ranks.append(subprocess.Popen(
                [*pinned, BINARY, "serve", "--model", model, "--model-name", "smollm2", "--port", "0", "--engine-ranks=env",
                 "--engine-backend=cpu", "--store", f"{self.store.name}/store.db", *options],
                stdout=subprocess.PIPE, stderr=self.logs[rank], text=True, env=env))

    def url(self):
        line = self.ranks[0].stdout.readline()
        found = re.search(r"listening on (http://[\d.:]+)", line)
        assert found, self.text(0)
        end = time.time() + PATIENCE
        while requests.get(found.group(1) + "/ready", timeout=PATIENCE).status_code != 200:
            assert time.time() < end and self.ranks[0].poll() is None, self.text(0)
            time.sleep(0.02)
        return found.group(1)

    def text(self, rank):
        self.logs[rank].seek(0)
        return self.logs[rank].read()

    def wait(self):
        return [r.wait(PATIENCE) for r in self.ranks]

    def close(self):
        for r in self.ranks:
            if r.poll() is None:
                r.kill()
            r.wait()
        self.store.cleanup()


LAUNCHERS = {"torchrun": (["RANK", "LOCAL_RANK"], "WORLD_SIZE"),
             "mpirun": (["OMPI_COMM_WORLD_RANK"], "OMPI_COMM_WORLD_SIZE"),
             "srun": (["SLURM_PROCID", "SLURM_LOCALID"], "SLURM_NTASKS")}


@pytest.mark.parametrize("name", LAUNCHERS)
def test_ranks_of_a_launcher_serve_and_end_together(name):
    w = Launched(2, LAUNCHERS[name])
    try:
        answer = requests.post(w.url() + "/v1/completions", timeout=PATIENCE,
                               json={"prompt": "sharp", "max_tokens": 5})
        assert answer.status_code == 200 and answer.json()["usage"]["completion_tokens"] > 0
        for r in w.ranks:  # as launchers do: to all of them
            r.send_signal(signal.SIGTERM)
        assert w.wait() == [0, 0], w.text(0) + w.text(1)
    finally:
        w.close()


def threads_of(pid, name):
    """The CPUs that each thread of that name may run on."""
    status = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it has ended meanwhile
            status.append((task / "status").read_text())
    return [re.search(r"^Cpus_allowed_list:\s*(\S+)", text, re.M)[1] for text in status
            if re.match(rf"Name:\s*{name}", text)]


CPUS = sorted(os.sched_getaffinity(0))[:2]


@pytest.mark.skipif(len(CPUS) < 2, reason="two CPUs")
def test_ranks_share_cpus_that_they_have_in_common_and_keep_to_their_own():
    """Of two ranks within the same CPU each has a thread. One that a launcher gave CPUs of its own has them
    all, and its threads keep to them, whichever rank it is."""
    both = ",".join(map(str, CPUS))
    w = Launched(2, LAUNCHERS["srun"], cpus=[both, both])
    try:
        w.url()
        assert w.text(1).count(", 1 thread: reads") == 1, w.text(1)
    finally:
        w.close()
    w = Launched(2, LAUNCHERS["srun"], cpus=[str(CPUS[0]), both])
    try:
        w.url()
        assert ", 2 threads: reads" in w.text(1), w.text(1)
        end = time.time() + PATIENCE
        while [c for c in threads_of(w.ranks[1].pid, "whet-pool") if "," in c or "-" in c]:
            assert time.time() < end, w.text(1)
            time.sleep(0.02)
    finally:
        w.close()


def test_ranks_with_different_models_do_not_serve():
    w = Launched(2, LAUNCHERS["torchrun"], models=[TINY, TINY + ":q8_0"])
    try:
        assert w.wait() == [1, LOST]
        assert "rank 1 has another model" in w.text(0)
    finally:
        w.close()


def test_a_rank_that_never_comes_is_named():
    w = Launched(2, LAUNCHERS["torchrun"], "--engine-rank-join-s=2")
    try:
        w.ranks[1].kill()
        assert w.ranks[0].wait(PATIENCE) == 1
        assert "ranks that did not come within 2 s: 1" in w.text(0)
    finally:
        w.close()


FIRST = ["unshare", "--pid", "--fork", "--kill-child"]  # of a PID namespace, as in a container


@pytest.mark.skipif(subprocess.run([*FIRST, "true"], capture_output=True).returncode != 0,
                    reason="no PID namespace may be made")
def test_a_rank_that_waits_for_rank_0_in_a_container_ends_at_sigterm(tmp_path):
    """The first process of a container is spared the signals that it does not handle."""
    env = {**os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "RANK": "1", "WORLD_SIZE": "2"}
    outside = subprocess.Popen([*FIRST, BINARY, "serve", "--model", TINY, "--port", "0", "--engine-ranks=env",
                                "--engine-backend=cpu", "--engine-rank-join-s=3000", "--store", str(tmp_path / "s.db")],
                               stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=env)
    children = Path(f"/proc/{outside.pid}/task/{outside.pid}/children")
    end = time.time() + PATIENCE
    try:
        while outside.poll() is None:  # one that comes before it is whet is lost
            for pid in children.read_text().split():
                with contextlib.suppress(ProcessLookupError):  # it ends, by the last one
                    os.kill(int(pid), signal.SIGTERM)
            assert time.time() < end
            time.sleep(0.1)
        assert outside.returncode == 128 + signal.SIGTERM
    finally:
        outside.kill()
        outside.wait()


def wait_joined(s, rank):
    end = time.time() + PATIENCE
    while rank not in others(s):
        assert time.time() < end and s.process.poll() is None, s.text()


def test_a_rank_that_is_stopped_as_it_starts_ends_the_server(ranks):
    """Wherever in its start that happens to be."""
    s = ranks(3, "--engine-rank-join-s=2", "--engine-rank-step-s=2", "--engine-kv-pages=64", model=MODEL, wait=False)
    wait_joined(s, 1)
    os.kill(others(s)[1], signal.SIGSTOP)
    assert s.wait() != 0, s.text()


def test_a_reload_of_the_whole_group_of_processes_ends_no_rank(ranks):
    """As `kill -HUP -PGID` and terminals that close send it: before all are ready, and after."""
    s = ranks(2, prefix=("setsid",), wait=False)
    wait_joined(s, 1)
    os.killpg(s.process.pid, signal.SIGHUP)
    s.wait_ready()
    os.killpg(s.process.pid, signal.SIGHUP)
    end = time.time() + PATIENCE
    while s.text().count("SIGHUP: ") < 2:
        assert time.time() < end and s.process.poll() is None, s.text()
        time.sleep(0.02)
    assert s.complete("x")["usage"]["completion_tokens"] > 0
    s.signal(signal.SIGTERM)
    assert s.wait() == 0, s.text()


# ---- the end ------------------------------------------------------------------------------------


def run_for_ever(s):
    """A request that runs when this returns; the list gets how it ended."""
    end = []

    def ask():
        try:
            answer = s.post("/v1/completions", {"prompt": "x", "max_tokens": 4000, "ignore_eos": True})
            end.append((answer.status_code, answer.text))
        except requests.RequestException as lost:
            end.append((0, str(lost)))

    thread = threading.Thread(target=ask)
    thread.start()
    s.wait_metric("whet_requests_running", 1)
    return thread, end


@pytest.mark.parametrize("busy", [True, False])
def test_a_rank_that_is_killed_ends_the_server_with_the_reason(ranks, busy):
    s = ranks(4)
    thread, end = run_for_ever(s) if busy else (None, None)
    victim = others(s)[2]
    os.kill(victim, signal.SIGKILL)
    assert s.wait() == LOST, s.text()
    assert f"rank 2 (process {victim} at 127.0.0.1) is gone" in s.text() or "another rank gave up" in s.text()
    if busy:
        thread.join()
        assert end and end[0][0] != 200
    wait_gone(others(s).values())
    wait_no_shared_memory()


def test_an_idle_rank_that_stands_still_ends_the_server(ranks):
    s = ranks(2, "--engine-rank-step-s=2")
    os.kill(others(s)[1], signal.SIGSTOP)
    assert s.wait() == LOST, s.text()
    assert "does not answer (engine.rank_step_s) for 2.0 s" in s.text()
    wait_gone(others(s).values())


def test_a_rank_that_stands_still_ends_the_server_too(ranks):
    s = ranks(2, "--engine-rank-step-s=2")
    os.kill(others(s)[1], signal.SIGSTOP)
    answer = s.post("/v1/completions", {"prompt": "x", "max_tokens": 5})
    assert answer.status_code == 500, answer.text
    assert s.wait() == LOST, s.text()
    # "rank 1 did not come to ... within 2.0 s", or "does not answer for 2.0 s" if it was asked before the step.
    assert re.search(r"(within|does not answer \(engine.rank_step_s\) for) 2\.0 s", s.text()), s.text()
    wait_gone(others(s).values())


def test_when_rank_0_is_killed_the_others_end(ranks):
    s = ranks(4)
    s.process.kill()
    s.wait()
    wait_gone(others(s).values())
    wait_no_shared_memory()


def killed_as_it_began(ranks):
    """What a server of two ranks left that was killed between making their memory and the end of its name: there
    may be none where somebody else had the cores at that moment."""
    s = ranks(2, wait=False)
    while not shared_memory() and "ready after" not in s.text():
        assert s.process.poll() is None, s.text()
    s.process.kill()
    s.wait()
    return shared_memory()


def test_the_memory_of_a_server_that_was_killed_as_it_began_goes_with_the_next(ranks):
    end = time.time() + PATIENCE
    while not killed_as_it_began(ranks):
        assert time.time() < end
    ranks(2)
    wait_no_shared_memory()


@pytest.mark.threads
def test_sigterm_drains_and_ends_all(ranks):
    s = ranks(2, "--server-drain-s=1")
    thread, end = run_for_ever(s)
    s.signal(signal.SIGTERM)
    thread.join()
    assert s.wait() == 0, s.text()
    assert end
    wait_gone(others(s).values())
