#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""whet serve on the GPU against whet serve on the CPU, over HTTP.

    serve_small.py WHET TOKENIZER_DIR [BACKEND]

A small seeded model that uses the tokenizer of tests/golden/tiny-qwen3. Greedy completions of both
servers must be the same until the CPU's two best tokens are closer than TIE (log-probability),
which is what bf16 activations can turn; seeded sampling must not depend on who else is served.
"""
import concurrent.futures
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import urllib.request

import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

TIE = 0.2


def make(source, target):
    torch.manual_seed(3)
    shutil.copytree(source, target, dirs_exist_ok=True)
    vocab = json.load(open(f"{source}/config.json"))["vocab_size"]
    old = json.load(open(f"{source}/config.json"))
    cfg = Qwen3Config(num_hidden_layers=3, hidden_size=256, num_attention_heads=8,
                      num_key_value_heads=4, head_dim=64, intermediate_size=704, vocab_size=vocab,
                      max_position_embeddings=2048, tie_word_embeddings=False,
                      eos_token_id=old.get("eos_token_id"), bos_token_id=old.get("bos_token_id"))
    model = Qwen3ForCausalLM(cfg).bfloat16()
    with torch.no_grad():
        for p in model.parameters():
            if p.dim() == 2:
                p.normal_(0, 0.15)
    model.save_pretrained(target, safe_serialization=True)


class Server:
    def __init__(self, whet, model, backend):
        self.p = subprocess.Popen(
            [whet, "serve", "--model", model, "--backend", backend, "--port", "0",
             "--model-name", "m",
             "--specializer-enabled", "false", "--engine-kv-mib", "256"],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self.log, self.port = "", None
        for line in self.p.stdout:
            self.log += line
            m = re.search(r":(\d+)\b", line) if "listen" in line.lower() else None
            self.port = self.port or (m and int(m.group(1)))
            if self.port and "server: ready" in line:
                break
        if not self.port:
            raise SystemExit(f"whet serve --backend {backend} ended:\n{self.log}")

    def complete(self, **body):
        r = urllib.request.Request(f"http://127.0.0.1:{self.port}/v1/completions",
                                   json.dumps(dict(body, model="m")).encode(),
                                   {"Content-Type": "application/json"})
        return json.load(urllib.request.urlopen(r, timeout=60))["choices"][0]

    def stop(self):
        self.p.terminate()
        self.p.communicate(timeout=30)
        return self.p.returncode


def parted(a, b):
    """Index of the first token that differs, or None, and the gap of the best two there in a."""
    for i, (x, y) in enumerate(zip(a["tokens"], b["tokens"])):
        if x != y:
            best = sorted(a["top_logprobs"][i].values(), reverse=True)
            return i, best[0] - best[1] if len(best) > 1 else 99.0
    return None, 0.0


def main():
    whet, source = map(os.path.abspath, sys.argv[1:3])
    other = sys.argv[3] if len(sys.argv) > 3 else "cuda"
    prompts = [f"Once {'upon a time ' * (i % 30)}number {i}" for i in range(48)]
    with tempfile.TemporaryDirectory() as d, concurrent.futures.ThreadPoolExecutor(16) as pool:
        make(source, d)
        texts, ended = {}, []
        for turn, backend in enumerate(("cpu", other)):
            s = Server(whet, d, backend)
            run = lambda p: s.complete(prompt=p, max_tokens=32, temperature=0, ignore_eos=True,
                                       logprobs=2)["logprobs"]
            texts[turn] = list(pool.map(run, prompts))
            draw = lambda i: s.complete(prompt=prompts[i], max_tokens=24, temperature=0.8,
                                        top_p=0.9, seed=7, ignore_eos=True)["text"]
            together, alone = list(pool.map(draw, range(16))), [draw(i) for i in range(16)]
            same = sum(a == b for a, b in zip(together, alone))
            ended.append(s.stop())
            print(f"{backend}: seeded draws alone as among others: {same} of 16; "
                  f"ends with {ended[-1]}")
        parts = [parted(a, b) for a, b in zip(texts[0], texts[1])]
        same = sum(i is None for i, _ in parts)
        worst = max(gap for _, gap in parts)
        print(f"greedy texts of {len(prompts)}: {same} the same; the others part at ties of at most "
              f"{worst:.3f}")
        bad = sum(gap > TIE for _, gap in parts) + sum(status != 0 for status in ended)
        print(f"{len(parts) + len(ended)} checks, {bad} failed")
        return bad > 0


if __name__ == "__main__":
    sys.exit(main())
