# SPDX-License-Identifier: Apache-2.0
"""Where a process cannot be sealed, no kernel that a language model wrote is run, and it is said."""

import sys
import time

import pytest

from agentic import Model
from conftest import PATIENCE, Server
from load import Load

# A sanitized build can seal nothing to begin with, and its search takes minutes.
pytestmark = pytest.mark.once

# Runs a command under a filter in which seccomp(2) itself is not permitted, as some containers are.
UNSEALABLE = r"""
import ctypes, os, platform, struct, sys
nr = {"x86_64": 317, "aarch64": 277}[platform.machine()]
LOAD, JEQ, RET = 0x20, 0x15, 0x06
code = struct.pack("HBBI" * 4, LOAD, 0, 0, 0, JEQ, 0, 1, nr, RET, 0, 0, 0x00050001,
                   RET, 0, 0, 0x7fff0000)  # errno EPERM; allow
buffer = ctypes.create_string_buffer(code)
program = struct.pack("HxxxxxxP", 4, ctypes.addressof(buffer))
libc = ctypes.CDLL(None, use_errno=True)
assert libc.prctl(38, 1, 0, 0, 0) == 0 and libc.prctl(22, 2, program, 0, 0) == 0
os.execv(sys.argv[1], sys.argv[1:])
"""


def test_texts_are_refused_where_nothing_can_be_sealed(tmp_path):
    (tmp_path / "key").write_text("boss\n")
    model = Model(["static int x;"] * 9)
    s = Server("--server-admin-key-file", str(tmp_path / "key"), "--specializer-enabled=true",
               "--adviser-url", model.url, "--adviser-model", "writer",
               "--specializer-agentic", "on", prefix=(sys.executable, "-c", UNSEALABLE))
    load = Load(s)
    try:
        end = time.time() + PATIENCE
        while s.metric("whet_specializer_candidates_total") == 0:  # templates are searched for all the same
            assert time.time() < end and s.process.poll() is None, s.text()
            time.sleep(0.2)
        assert "specializer.agentic is refused" in s.text()
        assert "probed unsealed" in s.text()
        assert not [a for a in model.asked if a["task"] in ("plan", "code")]
        assert s.metric("whet_agentic_questions_total") == 0
    finally:
        load.end()
        s.stop()
        model.close()
