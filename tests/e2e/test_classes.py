# SPDX-License-Identifier: Apache-2.0
"""A model whose layers differ in their formats, as most files that people download: the slots of each
format class get kernels of their own, and nothing else changes."""

import time

import pytest

from conftest import PATIENCE, WHATEVER_SPEED
from load import Load
from test_admin import get, send, slots

pytestmark = pytest.mark.once  # the search has to get somewhere: minutes under sanitizers

# Attention's v and ffn_down of 14 of the 30 layers have more bits.
MIXED = "random:smollm2-135m:q4_0+q8_0"
CLASSES = ["mlp_out/m1/q8_0", "mlp_out/m1/q4_0", "attn_in/m1/q4_0-q4_0-q8_0", "attn_in/m1/q4_0"]
PROMPTS = ["The capital of France is", "A kernel is proven", "0 1 1 2 3 5 8"]


def answers(s):
    return [s.complete(p, max_tokens=12)["choices"][0]["text"] for p in PROMPTS]


def active(s):
    return {row["slot"]: row["kernel"] for row in slots(s) if row["state"] == "active"}


def wait_active(s, wanted):
    """Until all of them have a kernel, which they keep: nothing new comes from then on. Who has one is pinned to
    it meanwhile, or slower ones would take turns there (WHATEVER_SPEED) while another slot waits for minutes."""
    end, pinned = time.time() + 4 * PATIENCE, {}
    send(s, "POST", "/admin/specializer/resume")
    with Load(s) as load:
        while not set(wanted) <= set(pinned):
            assert time.time() < end and not load.failed, (pinned, load.failed, s.text()[-2000:])
            for name, kernel in active(s).items():
                if name in wanted and name not in pinned:
                    send(s, "POST", f"/admin/slots/{name}/pin", {"kernel": kernel["id"]})
                    pinned[name] = kernel
            time.sleep(0.1)
    send(s, "POST", "/admin/specializer/freeze")
    for name in pinned:
        send(s, "DELETE", f"/admin/slots/{name}/pin")
    assert {name: k["id"] for name, k in active(s).items() if name in pinned} == \
        {name: k["id"] for name, k in pinned.items()}


def test_each_format_class_gets_kernels_and_answers_stay(start, tmp_path):
    (tmp_path / "key").write_text("boss\n")
    options = ["--server-admin-key-file", str(tmp_path / "key"), "--specializer-enabled=true",
               "--specializer-slots", "mlp_out/m1,attn_in/m1", WHATEVER_SPEED, "--store", str(tmp_path / "kept.db")]
    plain = start(model=MIXED)
    want = answers(plain)
    plain.stop()

    first = start(*options, model=MIXED)
    wait_active(first, CLASSES)
    assert answers(first) == want
    rows = {row["slot"]: row for row in slots(first)}
    assert not set(rows) & {"mlp_out/m1", "attn_in/m1"} and "mlp_in/m1" in rows
    assert [rows[name]["formats"] for name in CLASSES] == [name.split("/")[2] for name in CLASSES]
    for few, many in zip(CLASSES[::2], CLASSES[1::2]):
        assert (rows[few]["layers"], rows[many]["layers"]) == (14, 16)
    assert "layers" not in rows["mlp_in/m1"]
    assert get(first, "/admin/slots").json()["layers_without_slots"] == []
    unknown = get(first, "/admin/slots/mlp_out/m1", 404).text
    assert "but mlp_out/m1/q8_0, mlp_out/m1/q4_0" in unknown
    kernels = {name: get(first, f"/admin/slots/{name}").json()["kernel"] for name in CLASSES}
    assert len({k["id"] for k in kernels.values()}) == len(CLASSES)
    metrics = first.get("/metrics").text
    for name, k in kernels.items():
        assert f'whet_kernel_active_info{{slot="{name}",kernel="{k["id"]}"' in metrics
        assert f'whet_kernel_gain_ratio{{slot="{name}"}}' in metrics
    trace = get(first, f"/admin/trace?slot={CLASSES[0]}").json()["trace"]
    assert any(row["event"] == "active" for row in trace), trace

    send(first, "POST", f"/admin/slots/{CLASSES[0]}/pin", {"kernel": "eager"})
    assert CLASSES[0] not in active(first) and CLASSES[1] in active(first)
    assert answers(first) == want
    send(first, "DELETE", f"/admin/slots/{CLASSES[0]}/pin")
    send(first, "POST", f"/admin/kernels/{kernels[CLASSES[1]]['id']}/disable", {"reason": "a test"})
    assert active(first).get(CLASSES[1]) != kernels[CLASSES[1]]
    send(first, "POST", f"/admin/kernels/{kernels[CLASSES[1]]['id']}/enable")
    wait_active(first, CLASSES)
    served = {name: k["id"] for name, k in active(first).items() if name in CLASSES}
    first.stop()

    second = start(*options, "--specializer-paused=true", model=MIXED)
    second.wait_metric("whet_kernel_swaps_total", len(CLASSES))  # all of them restored
    assert {name: k["id"] for name, k in active(second).items()} == served
    assert answers(second) == want
