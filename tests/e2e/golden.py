# SPDX-License-Identifier: Apache-2.0
"""What transformers writes in float32 from the default model's file, and who must write the same."""

import json
from pathlib import Path

GREEDY = json.loads((Path(__file__).resolve().parents[1] / "golden" /
                     "smollm2-greedy.json").read_text())["prompts"]


def assert_writes(server, case, tie=1e-3):
    """The server continues the prompt of `case` as transformers did, up to the first near tie: where the two best
    logits are closer than what it computes them by."""
    body = {"prompt": case["ids"], "max_tokens": len(case["tokens"]), "temperature": 0,
            "ignore_eos": True, "return_token_ids": True, "add_special_tokens": False}
    got = server.post("/v1/completions", body).json()["choices"][0]["token_ids"]
    for i, (want, have) in enumerate(zip(case["tokens"], got)):
        if want != have:
            # A near tie may turn; what follows is another text.
            assert case["gap"][i] <= tie, f"token {i}: {have}, not {want}"
            break
    else:
        assert len(got) == len(case["tokens"])
