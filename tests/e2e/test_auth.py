# SPDX-License-Identifier: Apache-2.0
"""Keys: who may call what; reload by SIGHUP; CORS."""

import re
import signal
import time
from pathlib import Path

import pytest
import requests

from conftest import PATIENCE

BODY = {"prompt": "x", "max_tokens": 1}
ROUTER = Path(__file__).resolve().parents[2] / "server/router.c"
OPEN = ["/health", "/ready", "/version", "/dashboard"]


def bearer(key):
    return {"authorization": "Bearer " + key}


@pytest.fixture(scope="module")
def keyed(tmp_path_factory):
    from conftest import Server
    folder = tmp_path_factory.mktemp("keys")
    (folder / "keys").write_text("# users\nsk-one\nsk-two\n")
    (folder / "admin").write_text("boss\n")
    s = Server("--server-api-keys", str(folder / "keys"), "--server-admin-key-file",
               str(folder / "admin"), "--server-metrics-open=false",
               "--server-cors-origins", "https://app.example")
    s.folder = folder
    yield s
    s.stop()


def rows():
    """(method, a path that the row's pattern matches, who may call it) of every route."""
    text = ROUTER.read_text()
    found = re.findall(r'^    \{"(\w+)", "([^"]+)",\s+"[^"]+",\s+ACCESS_(\w+)', text, re.M)
    assert len(found) == len(re.findall(r'^    \{"', text, re.M)) > 25
    return [(method, pattern.replace("*", "x"), access) for method, pattern, access in found]


def test_the_open_routes_are_those_of_the_table():
    assert sorted(OPEN) == sorted(path for _, path, access in rows() if access == "OPEN")


def test_the_open_routes_are_those_that_the_page_on_keys_names():
    page = (ROUTER.parents[1] / "docs/operating.md").read_text()
    sentence = re.search(r"every route\s+but (.*?) needs `Authorization", page, re.S)[1]
    assert sorted(OPEN) == sorted(re.findall(r"`(/[^`]*)`", sentence))


@pytest.mark.parametrize("path", OPEN)
def test_open_routes(keyed, path):
    assert keyed.get(path).status_code == 200


@pytest.mark.parametrize("method,path", [("GET", "/nowhere")] + [
    (method, path) for method, path, access in rows() if access != "OPEN"])
@pytest.mark.parametrize("key", [None, "sk-on", "sk-one ", "SK-ONE", ""])
def test_every_other_route_needs_a_key(keyed, method, path, key):
    headers = {} if key is None else bearer(key)
    if key == "sk-one ":
        headers = bearer("sk-onex")
    answer = requests.request(method, keyed.url + path, json=BODY, headers=headers)
    assert answer.status_code == 401
    assert answer.headers["www-authenticate"] == "Bearer"
    assert answer.json()["error"]["code"] == "invalid_api_key"


@pytest.mark.parametrize("key", ["sk-one", "sk-two"])
def test_keys_open(keyed, key):
    assert keyed.post("/v1/completions", BODY, headers=bearer(key)).status_code == 200
    assert keyed.get("/metrics", headers=bearer(key)).status_code == 200


def test_user_keys_never_open_admin(keyed):
    for method, path, access in rows():
        answer = requests.request(method, keyed.url + path, json={}, headers=bearer("sk-one"))
        assert (answer.status_code == 403) == (access == "ADMIN"), (method, path)
    end = time.time() + PATIENCE
    while (status := keyed.get("/admin/slots", headers=bearer("boss")).status_code) == 503:
        assert time.time() < end  # its other half is set up beside the first requests
        time.sleep(0.02)
    assert status == 200


def test_admin_is_closed_without_an_admin_key(server):
    for headers in ({}, bearer("boss"), bearer("")):
        answer = server.get("/admin/slots", headers=headers)
        assert answer.status_code == 403
        assert "server.admin_key_file" in answer.json()["error"]["message"]
    assert requests.post(server.url + "/admin/specializer/pause").status_code == 403


def test_sighup_reloads_keys(keyed):
    def wait(key, status):
        end = time.time() + PATIENCE
        while keyed.get("/v1/models", headers=bearer(key)).status_code != status:
            assert time.time() < end
            time.sleep(0.02)

    (keyed.folder / "keys").write_text("sk-three\nsk-one\n")
    keyed.signal(signal.SIGHUP)
    wait("sk-three", 200)
    assert keyed.get("/v1/models", headers=bearer("sk-two")).status_code == 401
    (keyed.folder / "keys").write_text("")  # a broken file leaves the keys as they are
    keyed.signal(signal.SIGHUP)
    end = time.time() + PATIENCE
    while "holds no key" not in keyed.text():
        assert time.time() < end
        time.sleep(0.02)
    assert keyed.get("/v1/models", headers=bearer("sk-three")).status_code == 200
    (keyed.folder / "keys").write_text("sk-one\nsk-two\n")
    keyed.signal(signal.SIGHUP)
    wait("sk-two", 200)


def test_sighup_with_a_broken_key_file_changes_nothing(start, tmp_path):
    keys, config = tmp_path / "keys", tmp_path / "whet.conf"

    def write(key, level):
        keys.write_text(key + "\n")
        config.write_text(f"[log]\nlevel = {level}\n[server]\napi_keys = {keys}\n")

    write("sk-one", "info")
    s = start("--config", str(config))
    write("a bad line", "error")
    s.signal(signal.SIGHUP)
    s.wait_text("nothing changed")
    assert s.get("/v1/models", headers={**bearer("sk-one"), "x-request-id": "still-logged"}).status_code == 200
    s.wait_text("still-logged GET /v1/models 200")
    write("sk-two", "error")
    s.signal(signal.SIGHUP)
    s.wait_text("SIGHUP: 1 API keys")
    end = time.time() + PATIENCE
    while s.get("/v1/models", headers=bearer("sk-two")).status_code != 200:
        assert time.time() < end
    before = s.text()
    s.get("/v1/models", headers=bearer("sk-two"))
    assert s.text() == before


def test_keys_are_never_logged(keyed):
    keyed.post("/v1/completions", BODY, headers=bearer("sk-one"))
    keyed.post("/v1/completions", BODY, headers=bearer("sk-secret-wrong"))
    assert "sk-" not in keyed.text() and "boss" not in keyed.text()


def test_preflight_needs_no_key_and_names_the_origin(keyed):
    answer = requests.options(keyed.url + "/v1/completions", headers={
        "origin": "https://app.example", "access-control-request-method": "POST"})
    assert answer.status_code == 204
    assert answer.headers["access-control-allow-origin"] == "https://app.example"
    assert "authorization" in answer.headers["access-control-allow-headers"]
    other = requests.options(keyed.url + "/v1/completions", headers={"origin": "https://evil"})
    assert "access-control-allow-origin" not in other.headers


def test_cors_is_off_by_default(server):
    answer = server.get("/version", headers={"origin": "https://app.example"})
    assert not [h for h in answer.headers if h.lower().startswith("access-control")]
