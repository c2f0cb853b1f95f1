# SPDX-License-Identifier: Apache-2.0
"""ranks.py PROGRAM... -- [option...]: what a model says as one process and as several.

Starts `PROGRAM... serve` once for each number of ranks and each model, asks the same questions
greedily and compares tokens and log-probabilities. Several ranks on one GPU sum through the host's
memory (engine/cuda/collective_host.c), so this holds everything but NCCL against one rank.
"""
import json
import re
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request

PROMPTS = ["sharp tools", "The river is wide and the boat is small. " * 12, "a"]
TOKENS = 48


class Server:
    def __init__(self, program, model, ranks, options):
        self.folder = tempfile.TemporaryDirectory()
        self.process = subprocess.Popen(
            [*program, "serve", "--model", model, "--port", "0", "--specializer-enabled=false",
             "--store", self.folder.name + "/s.db", f"--engine-ranks={ranks}", *options],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.log = []
        threading.Thread(target=lambda: self.log.extend(self.process.stderr), daemon=True).start()
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

    def ask(self, prompt):
        body = {"prompt": prompt, "max_tokens": TOKENS, "temperature": 0, "logprobs": 1,
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
        return self.process.wait(30)


def agree(want, got):
    """Tokens up to the first that differs, and the largest difference of a log-probability there."""
    tokens = next((i for i, (a, b) in enumerate(zip(want[0], got[0])) if a != b), len(want[0]))
    return tokens, max([abs(a - b) for a, b in zip(want[1][:tokens], got[1][:tokens])] or [0])


def main():
    at = sys.argv.index("--")
    program, (models, ranks, *options) = sys.argv[1:at], sys.argv[at + 1:]
    for model in models.split(","):
        said = {}
        for n in map(int, ranks.split(",")):
            try:
                s = Server(program, model, n, options)
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


main()
