# SPDX-License-Identifier: Apache-2.0
"""ranks.py PROGRAM... -- MODEL,... RANKS,... [--search SECONDS] [--hosts] [option...]: one process and several.

Starts `PROGRAM... serve` once for each number of ranks and each model, asks the same questions
greedily and compares tokens and log-probabilities. Several ranks on one GPU sum through the host's
memory (engine/cuda/collective_host.c), so this holds everything but NCCL against one rank.

--search: after that the most ranks serve for so long while kernels are searched for; says how many
slots got one, with what table each rank's last step ran, and how the answers compare; then a rank
is killed while it computes, and how and when the server ended is said.

--hosts: several ranks are started one by one with the variables of a launcher, each with a GPU that
it alone sees, and all but rank 0 as on a machine of their own: in namespaces with another boot id
and another host name, by which whet and NCCL tell machines apart. So sums go over sockets, and
kernels to other ranks in messages. Needs root.
"""
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request

PROMPTS = ["sharp tools", "The river is wide and the boat is small. " * 12, "a"]
TOKENS = 48
OTHER_MACHINE = ["unshare", "--mount", "--uts", "sh", "-ec",
                 'mount --bind "$1" /proc/sys/kernel/random/boot_id; hostname "$2"; shift 2; exec "$@"', "sh"]


def launched(rank, world, port):
    """The environment of a rank that a launcher started on a machine with one GPU."""
    gpus = os.environ.get("CUDA_VISIBLE_DEVICES") or ",".join(map(str, range(world)))
    return {**os.environ, "RANK": str(rank), "WORLD_SIZE": str(world), "LOCAL_RANK": "0",
            "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "CUDA_VISIBLE_DEVICES": gpus.split(",")[rank],
            "NCCL_SOCKET_IFNAME": "lo", "NCCL_IB_DISABLE": "1"}


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Server:
    def __init__(self, program, model, ranks, options, search=False, hosts=False):
        self.folder = tempfile.TemporaryDirectory()
        command = [*program, "serve", "--model", model, "--port", "0",
                   f"--specializer-enabled={'true' if search else 'false'}"]
        hosts, port, self.others, env = hosts and ranks > 1, free_port(), [], None
        if hosts:
            env = launched(0, ranks, port)
            options = ["--engine-ranks=env", *options]
        else:
            options = [f"--engine-ranks={ranks}", *options]
        self.process = subprocess.Popen([*command, "--store", self.folder.name + "/s.db", *options],
                                        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env)
        self.log = []
        threading.Thread(target=lambda: self.log.extend(self.process.stderr), daemon=True).start()
        for rank in range(1, ranks) if hosts else ():
            boot = os.path.join(self.folder.name, f"boot{rank}")
            with open(boot, "w") as f:
                f.write(f"{rank:08d}-0000-4000-8000-000000000000\n")
            self.others.append(subprocess.Popen(
                [*OTHER_MACHINE, boot, f"host{rank}", *command, "--store",
                 f"{self.folder.name}/s{rank}.db", *options],
                stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=launched(rank, ranks, port)))
        found = re.search(r"http://\S+", self.process.stdout.readline())
        if not found:
            raise RuntimeError("".join(self.log)[-1500:])
        self.url = found.group(0)
        while True:
            try:
                urllib.request.urlopen(self.url + "/ready", timeout=10)
                return
            except OSError:
                if self.process.poll() is not None:
                    raise RuntimeError("".join(self.log)[-1500:]) from None
                time.sleep(0.1)

    def get(self, path):
        return urllib.request.urlopen(self.url + path, timeout=20).read().decode()

    def ask(self, prompt, tokens=TOKENS):
        body = {"prompt": prompt, "max_tokens": tokens, "temperature": 0, "logprobs": 1,
                "ignore_eos": True, "return_token_ids": True}
        request = urllib.request.Request(self.url + "/v1/completions", json.dumps(body).encode(),
                                         {"Content-Type": "application/json"})
        choice = json.load(urllib.request.urlopen(request, timeout=60))["choices"][0]
        return choice["token_ids"], choice["logprobs"]["token_logprobs"]

    def together(self):
        got = [None] * len(PROMPTS)

        def one(i):
            got[i] = self.ask(PROMPTS[i])
        threads = [threading.Thread(target=one, args=(i,)) for i in range(len(PROMPTS))]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        return got

    def stop(self):
        self.process.terminate()
        return max([self.process.wait(30), *(p.wait(30) for p in self.others)])


def agree(want, got):
    """Tokens up to the first that differs, and the largest difference of a log-probability there."""
    tokens = next((i for i, (a, b) in enumerate(zip(want[0], got[0])) if a != b), len(want[0]))
    return tokens, max([abs(a - b) for a, b in zip(want[1][:tokens], got[1][:tokens])] or [0])


def killed(s):
    """A rank that dies while it computes: the server's exit status, and seconds until then."""
    rank = int(re.search(r"rank 1 of \d+ is here: process (\d+)", "".join(s.log)).group(1))

    def one():
        try:
            s.ask(PROMPTS[2], 4000)
        except urllib.error.HTTPError as answer:
            answer.close()
    thread = threading.Thread(target=one, daemon=True)
    thread.start()
    time.sleep(0.5)
    begun, busy = time.time(), thread.is_alive()
    os.kill(rank, signal.SIGKILL)
    rc = s.process.wait(60)
    return f"rank 1 killed while it computes ({busy}): exit {rc} after {time.time() - begun:.2f} s"


def search(program, model, ranks, seconds, options, want, hosts):
    s = Server(program, model, ranks, options, search=True, hosts=hosts)
    end, took, tables = time.time() + seconds, [], {}
    while time.time() < end:
        t0 = time.time()
        got = [s.ask(p) for p in PROMPTS]
        took.append(len(PROMPTS) * TOKENS / (time.time() - t0))
        tables = dict(re.findall(r'whet_rank_table_version\{rank="(\d+)"\} (\d+)', s.get("/metrics")))
    slots = json.loads(s.get("/specializer"))["specializer"]["slots"]
    active = [x["slot"] for x in slots if x["state"] == "active"]
    for x in slots:
        if x["region"] == "reduce" and x["candidates"]:
            print(f"    {x['slot']}: share {x['share']:.3f}, {x['candidates']} candidates, {x['kernel']['name']}, "
                  f"{x.get('why') or x.get('bench')}", flush=True)
    same = ["%d tokens, %.4f" % agree(a, b) for a, b in zip(want, got)]
    print(f"{model} x{ranks}, {seconds} s of search: {len(active)} slots have kernels: {' '.join(active)}; "
          f"tables {tables}; {took[0]:.0f} -> {took[-1]:.0f} tokens/s one by one; {'; '.join(same)}", flush=True)
    print("   ", killed(s))
    for text in s.log[-6:]:
        print("   ", text.split("Z ", 1)[-1].strip()[:200])


def main():
    at = sys.argv.index("--")
    program, (models, ranks, *options) = sys.argv[1:at], sys.argv[at + 1:]
    seconds = 0
    if "--search" in options:
        where = options.index("--search")
        seconds = int(options[where + 1])
        del options[where:where + 2]
    hosts = "--hosts" in options
    if hosts:
        options.remove("--hosts")
    for model in models.split(","):
        said = {}
        for n in map(int, ranks.split(",")):
            try:
                s = Server(program, model, n, options, hosts=hosts)
                t0 = time.time()
                said[n] = [s.ask(p) for p in PROMPTS]
                took = time.time() - t0
                said[n] += s.together()
                rc = s.stop()
            except (RuntimeError, OSError, TypeError) as wrong:
                print(f"{model} x{n}: FAIL {wrong}")
                continue
            line = [f"{model} x{n}: rc {rc}, {len(PROMPTS) * TOKENS / took:.0f} tokens/s one by one;"]
            for want, got in zip(said[min(said)], said[n]):
                line.append("%d tokens, %.4f" % agree(want, got))
            print(" ".join(line), flush=True)
            for text in s.log:
                if "memory plan" in text or "rank 1" in text or "through" in text or "NCCL" in text:
                    print("   ", text.split("Z ", 1)[-1].strip()[:170])
        if seconds:
            search(program, model, max(said), seconds, options, said[min(said)], hosts)


main()
