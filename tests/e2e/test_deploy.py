# SPDX-License-Identifier: Apache-2.0
"""deploy/: the programs that its files are for take them, and refuse them once something is wrong in them."""

import shutil
import subprocess

import pytest

from conftest import PATIENCE, ROOT

pytestmark = [pytest.mark.once,
              pytest.mark.skipif(not shutil.which("haproxy") or not shutil.which("promtool"),
                                 reason="haproxy or prometheus is not installed")]


def check(*folder):
    return subprocess.run([ROOT / "scripts" / "check-deploy", *folder], capture_output=True, text=True,
                          timeout=PATIENCE)


def test_all_of_it_is_taken():
    done = check()
    assert done.returncode == 0, done.stdout + done.stderr
    assert "4 manifests are what Kubernetes" in done.stdout


@pytest.mark.parametrize("file, right, wrong, said", [
    ("haproxy.cfg", "balance leastconn", "balance leastcon", "haproxy.cfg"),
    ("prometheus.yml", "scrape_interval: 15s", "scrape_interval: often", "often"),
    ("compose.yml", "services:", "services: one", "compose.yml"),
    ("kubernetes/whet.yaml", "readinessProbe:", "readynessProbe:", "readynessProbe"),
])
def test_a_mistake_is_found(tmp_path, file, right, wrong, said):
    copy = shutil.copytree(ROOT / "deploy", tmp_path / "deploy", ignore=shutil.ignore_patterns("secrets"))
    text = (copy / file).read_text()
    assert right in text
    (copy / file).write_text(text.replace(right, wrong, 1))
    done = check(copy)
    assert done.returncode != 0 and said in done.stdout + done.stderr, done.stdout + done.stderr
