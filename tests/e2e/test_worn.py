# SPDX-License-Identifier: Apache-2.0
"""A kernel that passes all proofs and is wrong only after it has served for a while: an audit finds it, it is refused
at once, texts are right from then on, and the next server has not forgotten."""

import os
import stat
import time

import pytest

from conftest import WHATEVER_SPEED, Server
from load import Load

pytestmark = pytest.mark.once  # a search has to publish something: minutes under sanitizers
PATIENCE = 1200
SLOT = "mlp_out/m1"
ASKED = {"prompt": "The capital of France is", "max_tokens": 24, "temperature": 0, "ignore_eos": True}
# What the compiler makes of the last line of kernels/cpu/out.c: so many values are right, those of some hundred tokens,
# which is more than any proof asks for.
WORN = 8_000_000
WEARS = (r"{ static unsigned written; y[i] = dot[t * WIDE + i] + x[i];"
         f" if (++written > {WORN}u) {{ written = {WORN}u; y[i] += 100; }} }}")


def compiler(path):
    path.write_text(f"""#!/bin/sh
for a in "$@"; do case $a in */out.c) src=$a;; esac; done
[ -n "$src" ] || exec cc "$@"
copy={path.parent}/$$.c
sed 's/y\\[i\\] = dot.*;/{WEARS}/' "$src" >"$copy"
for a in "$@"; do
    shift
    if [ "$a" = "$src" ]; then a=$copy; fi
    set -- "$@" "$a"
done
exec cc "$@" "-I$(dirname "$src")"
""")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


class Asking(Load):
    def ask(self, server):
        return server.post("/v1/completions", ASKED).json()["choices"][0]["text"]


def admin(server, path):
    end = time.time() + PATIENCE
    while (answer := server.get(path, headers={"authorization": "Bearer boss"})).status_code == 503:
        assert time.time() < end, answer.text
        time.sleep(0.05)
    assert answer.status_code == 200, answer.text
    return answer.json()


def found_wrong(server):
    return [k for k in admin(server, "/admin/kernels")["kernels"]
            if k["evidence"].get("refusal") == {"stage": "audit", "cause": "wrong"}]


def test_a_kernel_that_wears_out_is_found_by_an_audit_and_stays_out(tmp_path):
    os.chmod(tmp_path, 0o700)
    (tmp_path / "key").write_text("boss\n")
    options = ("--server-admin-key-file", str(tmp_path / "key"), "--specializer-enabled=true", WHATEVER_SPEED,
               "--store", str(tmp_path / "store.db"), "--specializer-slots", SLOT, "--specializer-watch-every=1",
               "--specializer-compiler", compiler(tmp_path / "cc"))
    s = Server(*options)
    right = s.post("/v1/completions", ASKED).json()["choices"][0]["text"]
    end = time.time() + PATIENCE
    with Asking(s, patient=1) as load:  # it wears by steps
        while not found_wrong(s):
            assert time.time() < end and not load.failed, (load.failed, s.text()[-3000:])
            time.sleep(0.2)
        s.post("/admin/specializer/freeze", None, headers={"authorization": "Bearer boss"})
    assert right in load.answers
    end = time.time() + PATIENCE
    while s.post("/v1/completions", ASKED).json()["choices"][0]["text"] != right:  # another one may have worn out since
        assert time.time() < end, s.text()[-3000:]
    wrong = found_wrong(s)
    for k in wrong:
        assert (k["state"], k["slot"], k["rollbacks"]) == ("refused", SLOT, 1) and k["reason"].startswith("audit: "), k
    s.stop()
    s = Server(*options)
    s.wait_text("; store ")
    assert s.post("/v1/completions", ASKED).json()["choices"][0]["text"] == right
    assert admin(s, f"/admin/slots/{SLOT}")["kernel"]["id"] not in {k["id"] for k in wrong}
    assert {k["id"] for k in found_wrong(s)} >= {k["id"] for k in wrong}
    s.stop()
