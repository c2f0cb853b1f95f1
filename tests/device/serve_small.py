#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""whet serve on the GPU against whet serve on the CPU, over HTTP.

    serve_small.py WHET TOKENIZER_DIR|MODEL.gguf [BACKEND [option of the second server...]]

A folder: a small seeded model that uses its tokenizer (tests/golden/tiny-qwen3); needs torch. A
file: itself. Greedy completions of both servers must be the same until the CPU's two best tokens
are closer than TIE (log-probability), which is what bf16 activations can turn. Of a file neither may
any such gap before that, up to NEAR, be another by more than TIE. How many seeded draws do not depend
on who else is served is said: a GPU's kernels differ with the number of sequences.
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

TIE = 0.2
NEAR = 2.0  # gaps up to here are compared: farther apart, what is not the best is small and inexact
QUESTIONS = ("What is the capital of France?", "Write a haiku about rivers.", "Explain how a bicycle stays upright.",
             "List three uses of a sharp knife.", "Translate to French: The cat sleeps on the roof.",
             "Write a C function that reverses a string.", "Why is the sky blue?", "Tell a short story about a lighthouse.")


def make(source, target):
    import torch  # pylint: disable=import-outside-toplevel
    from transformers import Qwen3Config, Qwen3ForCausalLM  # pylint: disable=import-outside-toplevel
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
    def __init__(self, whet, model, backend, options=()):
        self.p = subprocess.Popen(
            [whet, "serve", "--model", model, "--backend", backend, "--port", "0",
             "--model-name", "m",
             "--specializer-enabled", "false", "--engine-kv-mib", "256", *options],
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
    """Index of the first token that differs, or None; the gap of the best two there in a; and by how much the
    gap between a's best two is another in b, at most, before that."""
    error = 0.0
    for i, (x, y) in enumerate(zip(a["tokens"], b["tokens"])):
        here, there = a["top_logprobs"][i], b["top_logprobs"][i]
        two = sorted(here, key=here.get, reverse=True)[:2]
        gap = here[two[0]] - here[two[1]] if len(two) == 2 else 99.0
        if x != y:
            return i, gap, error
        if gap < NEAR and all(t in there for t in two):
            error = max(error, abs(gap - there[two[0]] + there[two[1]]))
    return None, 0.0, error


def prompts_for(model):
    """48 of different lengths; a real model's are questions it was trained to answer."""
    if os.path.isdir(model):
        return [f"Once {'upon a time ' * (i % 30)}number {i}" for i in range(48)]
    return [f"<|im_start|>user\n{'Be brief and kind. ' * (i // 8 * 3)}{QUESTIONS[i % 8]}<|im_end|>\n<|im_start|>assistant\n"
            for i in range(48)]


def answers(server, prompts, pool):
    """Greedy ones of all prompts; whether draws alone are those among others."""
    def greedy(prompt):
        return server.complete(prompt=prompt, max_tokens=32, temperature=0, ignore_eos=True, logprobs=2)["logprobs"]

    def draw(i):
        return server.complete(prompt=prompts[i], max_tokens=24, temperature=0.8, top_p=0.9, seed=7,
                               ignore_eos=True)["text"]
    texts = list(pool.map(greedy, prompts))
    together, alone = list(pool.map(draw, range(16))), [draw(i) for i in range(16)]
    return texts, sum(a == b for a, b in zip(together, alone))


def compare(whet, model, other, options):
    prompts, texts, ended = prompts_for(model), [], []
    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        for backend, more in (("cpu", []), (other, options)):
            s = Server(whet, model, backend, more)
            got, same = answers(s, prompts, pool)
            texts.append(got)
            ended.append(s.stop())
            print(f"{backend}: seeded draws alone as among others: {same} of 16; ends with {ended[-1]}")
    parts = [parted(a, b) for a, b in zip(*texts)]
    error = max(e for _, _, e in parts)
    print(f"greedy texts of {len(prompts)}: {sum(i is None for i, _, _ in parts)} the same; the others part at ties of at most "
          f"{max(gap for _, gap, _ in parts):.3f}; gaps below {NEAR} differ by {error:.3f} at most")
    wide = error > TIE and not os.path.isdir(model)  # drawn weights are as far apart as they are
    bad = sum(gap > TIE for _, gap, _ in parts) + sum(status != 0 for status in ended) + wide
    print(f"{len(parts) + len(ended) + 1} checks, {bad} failed")
    return bad > 0


def main():
    whet, source = map(os.path.abspath, sys.argv[1:3])
    other, options = (sys.argv[3] if len(sys.argv) > 3 else "cuda"), sys.argv[4:]
    if not os.path.isdir(source):
        return compare(whet, source, other, options)
    with tempfile.TemporaryDirectory() as d:
        make(source, d)
        return compare(whet, d, other, options)


if __name__ == "__main__":
    sys.exit(main())
