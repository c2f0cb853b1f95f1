# SPDX-License-Identifier: Apache-2.0
"""/admin: the operator's view and hands, on a real specializer that is paused."""

import json
import time

import pytest
import requests

from conftest import PATIENCE

KEY = {"authorization": "Bearer boss"}


@pytest.fixture(scope="module")
def admin(tmp_path_factory):
    from conftest import Server
    folder = tmp_path_factory.mktemp("admin")
    (folder / "key").write_text("boss\n")
    s = Server("--server-admin-key-file", str(folder / "key"), "--specializer-enabled=true",
               "--specializer-paused=true")
    s.folder = folder
    end = time.time() + PATIENCE
    while not any(row["slot"] == "mlp_in/m1" for row in slots(s)):  # listed once it was used
        assert time.time() < end
        s.complete("The capital of France is")
        time.sleep(0.1)
    yield s
    s.stop()


def get(s, path, status=200, **more):
    answer = s.get(path, headers={**KEY, **more})
    assert answer.status_code == status, answer.text
    return answer


def send(s, method, path, body=None, status=200):
    answer = requests.request(method, s.url + path, json=body, headers=KEY, timeout=60)
    assert answer.status_code == status, answer.text
    return answer.json()


def slots(s):
    answer = s.get("/admin/slots", headers=KEY)
    return answer.json()["slots"] if answer.status_code == 200 else []


def test_slots_are_listed_and_shown(admin):
    listed = slots(admin)
    names = {s["slot"] for s in listed}
    assert any(n.startswith("head/m1") for n in names), names
    one = get(admin, "/admin/slots/mlp_in/m1").json()
    assert one["slot"] == "mlp_in/m1" and one["region"] == "mlp_in" and one["m"] == 1
    assert one["kernel"]["id"] == "eager" and "tried" in one
    assert get(admin, "/admin/slots/mlp_in%2Fm1").json()["slot"] == "mlp_in/m1"


def test_unknown_things_are_404(admin):
    for path in ("/admin/slots/nothing/m1", "/admin/kernels/0123456789abcdef"):
        error = get(admin, path, 404).json()["error"]
        assert error["type"] == "not_found_error" and error["message"]
    send(admin, "POST", "/admin/slots/nothing/m1/pin", {"kernel": "eager"}, 404)
    send(admin, "POST", "/admin/slots/mlp_in/m1/pin", {"kernel": "0123456789abcdef"}, 404)
    send(admin, "POST", "/admin/kernels/0123456789abcdef/disable", {"reason": "x"}, 404)
    send(admin, "POST", "/admin/specializer/dance", status=404)
    get(admin, "/admin/nothing", 404)


def test_wrong_bodies_are_400(admin):
    for body in ({}, {"kernel": 5}, {"kernel": None}):
        error = send(admin, "POST", "/admin/slots/mlp_in/m1/pin", body, 400)["error"]
        assert error["param"] == "kernel"
    answer = requests.post(admin.url + "/admin/slots/mlp_in/m1/pin", data=b"{", headers={
        **KEY, "content-type": "application/json"})
    assert answer.status_code == 400
    send(admin, "POST", "/admin/store/import", {"not": "an export"}, 400)


def test_wrong_methods_are_405(admin):
    answer = requests.get(admin.url + "/admin/slots/mlp_in/m1/pin", headers=KEY)
    assert answer.status_code == 405
    assert "POST" in answer.headers["allow"] and "DELETE" in answer.headers["allow"]


def test_pin_and_unpin_are_idempotent_and_traced(admin):
    for _ in range(2):
        state = send(admin, "POST", "/admin/slots/mlp_in/m1/pin", {"kernel": "eager"})
        assert state["state"] == "pinned" and state["pinned"] == "eager"
    send(admin, "POST", "/admin/slots/mlp_in/m1/rollback", status=409)
    for _ in range(2):
        assert send(admin, "DELETE", "/admin/slots/mlp_in/m1/pin")["pinned"] is None
    answer = requests.post(admin.url + "/admin/slots/mlp_in/m1/pin", json={"kernel": "eager"},
                           headers={**KEY, "x-request-id": "who-pinned-this"})
    assert answer.status_code == 200
    rows = get(admin, "/admin/trace?slot=mlp_in/m1").json()["trace"]
    assert any("who-pinned-this" in json.dumps(r) for r in rows)
    lines = get(admin, "/admin/trace?format=jsonl").text.splitlines()
    assert lines and all(isinstance(json.loads(line), dict) for line in lines)
    assert get(admin, "/admin/trace?since=9999999999").json()["trace"] == []
    get(admin, "/admin/trace?since=yesterday", 400)
    send(admin, "DELETE", "/admin/slots/mlp_in/m1/pin")


def test_modes(admin):
    """Freeze is not pause under another name: it is shown, and counted, as what it is."""
    for word, doing, frozen in (("freeze", "frozen", 1), ("pause", "paused", 0)):
        for _ in range(2):
            assert send(admin, "POST", f"/admin/specializer/{word}")["mode"] == word
        end = time.time() + PATIENCE
        while (now := admin.get("/specializer").json()["specializer"])["doing"] != doing:
            assert time.time() < end, now["doing"]
        assert now["mode"] == word
        assert admin.metric("whet_specializer_frozen") == frozen
        assert admin.metric("whet_specializer_searching") == 0


def test_rollback_may_name_what_must_go(admin):
    state = send(admin, "POST", "/admin/slots/mlp_in/m1/rollback", {"from": "0123456789abcdef"})
    assert state["slot"] == "mlp_in/m1" and state["kernel"]["id"] == "eager"
    error = send(admin, "POST", "/admin/slots/mlp_in/m1/rollback", {"from": 5}, 400)["error"]
    assert error["param"] == "from"
    send(admin, "POST", "/admin/slots/mlp_in/m1/rollback", {"from": "eager"}, 409)


def test_changes_are_logged_with_their_request_id(admin):
    answer = requests.post(admin.url + "/admin/kernels/head/disable", json={"reason": "test"},
                           headers={**KEY, "x-request-id": "operator-7"})
    assert answer.json() == {"kernel": "head", "disabled": True}
    send(admin, "POST", "/admin/kernels/head/enable")
    end = time.time() + PATIENCE
    while "operator-7 POST /admin/kernels/head/disable" not in admin.text():
        assert time.time() < end, admin.text()
        time.sleep(0.02)


def test_history_is_as_long_as_asked(admin):
    def history(query):
        return admin.get("/specializer" + query).json()["history"]["generated"]

    end = time.time() + PATIENCE
    while len(history("?history=900")) < 4:
        assert time.time() < end
        time.sleep(0.2)
    assert len(history("?history=2")) == 2
    for nothing in ("?history=0", "?history=-5", "?history=soon"):
        assert history(nothing) == []
    assert len(history("?history=99999999999999999999")) <= 900


def test_kernels_and_export(admin):
    assert isinstance(get(admin, "/admin/kernels").json()["kernels"], list)
    exported = get(admin, "/admin/store/export").json()
    send(admin, "POST", "/admin/store/import", exported)


def test_specializer_json_has_both_halves(admin):
    both = admin.get("/specializer").json()
    assert isinstance(both["engine"], dict) and isinstance(both["specializer"], dict)


def test_pins_survive_a_restart(start, tmp_path):
    (tmp_path / "key").write_text("boss\n")
    options = ["--server-admin-key-file", str(tmp_path / "key"), "--specializer-enabled=true",
               "--specializer-paused=true", "--store", str(tmp_path / "kept.db")]

    def ready(s):
        end = time.time() + PATIENCE
        while s.get("/admin/slots/mlp_in/m1", headers=KEY).status_code != 200:
            assert time.time() < end
            time.sleep(0.05)

    first = start(*options)
    ready(first)
    send(first, "POST", "/admin/slots/mlp_in/m1/pin", {"kernel": "eager"})
    first.stop()
    second = start(*options)
    ready(second)
    assert get(second, "/admin/slots/mlp_in/m1").json()["pinned"] == "eager"
