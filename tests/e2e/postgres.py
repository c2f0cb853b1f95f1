# SPDX-License-Identifier: Apache-2.0
"""A real PostgreSQL of a test's own: Debian's programs, a folder of its own, a Unix socket and a port
of the loopback. initdb and postgres refuse to be root; root becomes somebody else for them."""

import contextlib
import glob
import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile


def program(name):
    """The newest of what Debian keeps apart, or what is on PATH; None: there is none."""
    found = sorted(glob.glob(f"/usr/lib/postgresql/*/bin/{name}"), key=lambda p: int(p.split("/")[4]))
    return found[-1] if found else shutil.which(name)


def user():
    """Who runs it: ourselves, unless we are root."""
    if os.geteuid() != 0:
        return None
    for name in ("postgres", "nobody"):
        try:
            return pwd.getpwnam(name)
        except KeyError:
            pass
    return None


class Postgres:
    def __init__(self, primary=None):
        """With a primary: its standby, as it is at this moment, which follows it until it is promoted."""
        if not program("initdb") or not program("postgres") or not shutil.which("psql"):
            raise FileNotFoundError("there is no PostgreSQL (Debian: postgresql)")
        self.folder = tempfile.mkdtemp(prefix="whet-pg-")
        self.as_user = user()
        if self.as_user:
            os.chown(self.folder, self.as_user.pw_uid, self.as_user.pw_gid)
        self.data = self.folder + "/data"
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            self.port = s.getsockname()[1]
        if primary:
            self.run_as([program("pg_basebackup"), "-D", self.data, "-d", primary.uri, "-R", "-X", "stream",
                         "-c", "fast"])
        else:
            self.run_as([program("initdb"), "-D", self.data, "-U", "whet", "-A", "trust", "-N",
                         "--no-locale", "-E", "UTF8"])
        self.process = None
        self.start()
        self.uri = f"postgresql://whet@127.0.0.1:{self.port}/postgres"

    def options(self):
        if not self.as_user:
            return {}
        return {"user": self.as_user.pw_uid, "group": self.as_user.pw_gid, "extra_groups": []}

    def run_as(self, command):
        done = subprocess.run(command, capture_output=True, text=True, cwd=self.folder, timeout=120,
                              **self.options())
        assert done.returncode == 0, done.stderr

    def start(self):
        """Until it answers; a start after stop() finds what was there."""
        self.log = open(self.folder + "/log", "a")
        self.process = subprocess.Popen(
            [program("postgres"), "-D", self.data, "-k", self.folder, "-p", str(self.port),
             "-c", "listen_addresses=127.0.0.1", "-c", "fsync=off", "-c", "shared_buffers=8MB"],
            stdout=self.log, stderr=self.log, cwd=self.folder, **self.options())
        ready = program("pg_isready")
        for _ in range(600):
            if subprocess.run([ready, "-h", "127.0.0.1", "-p", str(self.port)],
                              capture_output=True).returncode == 0:
                return
            assert self.process.poll() is None, open(self.folder + "/log").read()
            try:
                self.process.wait(0.1)
            except subprocess.TimeoutExpired:
                pass
        raise AssertionError("PostgreSQL does not answer")

    def stop(self, how=signal.SIGINT):
        """As an operator stops it (fast): connections are cut."""
        if self.process.poll() is None:
            self.process.send_signal(how)
            self.process.wait(60)
        self.log.close()

    def freeze(self, on):
        """It is there and says nothing: the process of every connection stands still."""
        ids = [self.process.pid] + [int(p) for p in subprocess.run(
            ["pgrep", "-P", str(self.process.pid)], capture_output=True, text=True).stdout.split()]
        for pid in ids:
            with contextlib.suppress(ProcessLookupError):  # one that goes on may end before the next is told to
                os.kill(pid, signal.SIGSTOP if on else signal.SIGCONT)

    def sql(self, text, uri=None):
        """Rows as lists of text."""
        done = subprocess.run(["psql", "-X", "-q", "-A", "-t", "-F", "\x1f", "-v", "ON_ERROR_STOP=1",
                               "-d", uri or self.uri, "-c", text],
                              capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
        return [line.split("\x1f") for line in done.stdout.splitlines()]

    def one(self, text):
        rows = self.sql(text)
        return rows[0][0] if rows else None

    def close(self):
        self.stop()
        shutil.rmtree(self.folder, ignore_errors=True)
