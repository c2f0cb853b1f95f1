# SPDX-License-Identifier: Apache-2.0
"""What the docs say is what the program does: metric names, routes, options, links."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import requests

from conftest import BINARY, MODEL, ROOT, Server

pytestmark = pytest.mark.once
DOCS = ROOT / "docs"
PAGES = sorted(DOCS.glob("*.md")) + sorted(ROOT.glob("*.md"))
LAB = sorted((DOCS / "lab").glob("*.md"))  # dated notebooks: of these only the links must hold
METRIC = re.compile(r"\b(?:whet|process)_[a-z0-9_]+")
# Kernels under a name of their own: there is nothing to show before the first swap.
ONLY_SPECIALIZED = {"whet_kernel_active_info", "whet_kernel_gain_ratio"}


def samples(text):
    """Names that a page of /metrics has: declared ones, and the samples of histograms."""
    declared = set(re.findall(r"^# TYPE (\S+) ", text, re.M))
    written = set(re.findall(r"^([a-z_0-9]+)[{ ]", text, re.M))
    return declared | written


def label_values(text, name):
    """{label: values} over all samples of one name."""
    found = {}
    for labels in re.findall(rf"^{name}\{{(.*)\}} ", text, re.M):
        for key, value in re.findall(r'(\w+)="([^"]*)"', labels):
            found.setdefault(key, set()).add(value)
    return found


@pytest.fixture(scope="module")
def open_server(tmp_path_factory):
    """A server with its specializer and an admin key, after some traffic."""
    key = tmp_path_factory.mktemp("keys") / "admin.key"
    key.write_text("operator\n")
    s = Server("--specializer-enabled=true", "--specializer-paused=true",
               f"--server-admin-key-file={key}")
    try:
        s.complete("Once upon a time")
        s.wait_metric("whet_specializer_compiler_available", 1)
        yield s
    finally:
        s.stop()


@pytest.fixture(scope="module")
def page(open_server):
    return open_server.get("/metrics").text


def grafana_expressions():
    board = json.loads((DOCS / "grafana.json").read_text())
    found = [t["expr"] for p in board["panels"] for t in p.get("targets", [])]
    found += [a["expr"] for a in board["annotations"]["list"]]
    return found + [v["query"]["query"] for v in board["templating"]["list"]
                    if isinstance(v["query"], dict)]


def alert_expressions():
    return re.findall(r"^ +expr: (.*)$", (DOCS / "alerts.yml").read_text(), re.M)


def test_the_fields_of_a_slot_are_on_the_page():
    """What slot_json_locked() writes, and `tried` beside it: docs/operating.md, *Of a slot*."""
    source = (ROOT / "specializer" / "admin.c").read_text()
    body = re.search(r"^cJSON \*slot_json_locked\(.*?^}", source, re.M | re.S).group()
    written = set(re.findall(r'cJSON_Add\w+\(o, "(\w+)"', body)) | {"tried"}
    assert len(written) > 20
    table = (DOCS / "operating.md").read_text().split("\nOf a slot:\n\n")[1].split("\n\n")[0]
    named = set(re.findall(r"`(\w+)`", " ".join(r.split("|")[1] for r in table.splitlines())))
    assert named == written, "a row of docs/operating.md, *Of a slot*, names each field"


def test_every_metric_of_the_dashboard_is_served(page):
    named = {m for e in grafana_expressions() for m in METRIC.findall(e)}
    assert len(named) > 30
    assert named <= samples(page), named - samples(page)


def test_every_metric_of_a_page_is_served(page):
    for path in PAGES:
        named = set(METRIC.findall(path.read_text())) - {"whet_kernel", "whet_store"}
        assert named <= samples(page), (path.name, named - samples(page))


def test_the_metrics_page_has_every_metric_in_the_servers_words(page):
    rows = re.findall(r"^\| `(\w+)` \| (\w+) \| ([\w, ]*)\| (.*) \|$",
                      (DOCS / "metrics.md").read_text(), re.M)
    types = dict(re.findall(r"^# TYPE (\S+) (\S+)$", page, re.M))
    words = {(n, types[n], text) for n, text in re.findall(r"^# HELP (\S+) (.*)$", page, re.M)}
    assert {(n, kind, text) for n, kind, _, text in rows} == words
    for name, kind, labels, _ in rows:
        known = set(label_values(page, name + ("_bucket" if kind == "histogram" else "")))
        if name not in ONLY_SPECIALIZED:
            assert known - {"le"} == set(re.findall(r"\w+", labels)), name


def test_the_alerts_are_those_of_the_page(page):
    table = (DOCS / "operating.md").read_text().split("## Metrics worth an alert")[1]
    promql = re.findall(r"^\| [^|]+ \| `([^`]+)` \|", table.split("\n## ")[0], re.M)
    assert promql and promql == alert_expressions()
    for expression in promql:
        assert set(METRIC.findall(expression)) <= samples(page), expression


def test_selected_labels_exist(page):
    """reason="audit" in a query is a reason that the metric has (codes: any of our statuses)."""
    looked = 0
    for expression in grafana_expressions() + alert_expressions():
        for name, selector in re.findall(r"((?:whet|process)_\w+)\{([^}]*)\}", expression):
            for label, value in re.findall(r'(\w+)="([^"]*)"', selector):
                known = label_values(page, name)
                assert label in known, (name, label)
                assert label == "code" or value in known[label], (name, label, value)
                looked += 1
    assert looked >= 3


def test_grouping_labels_exist(page):
    for expression in grafana_expressions():
        for labels in re.findall(r"by \(([^)]*)\)", expression):
            for label in labels.replace(" ", "").split(","):
                bare = [re.sub(r"_(bucket|sum|count)$", "", m) for m in METRIC.findall(expression)]
                assert any(label in label_values(page, n + end) for n in bare
                           for end in ("", "_bucket")), (expression, label)


def test_metrics_of_specialized_slots_are_declared(page):
    assert ONLY_SPECIALIZED <= samples(page)


def test_every_route_of_the_pages_is_there(server):
    """A route that is not there says so before it asks for a body or a model."""
    text = "".join(p.read_text() for p in PAGES)
    routes = set(re.findall(r"\b(GET|POST|DELETE) (/[a-z/1-9]+[a-z])(?=[`\s])", text))
    assert ("POST", "/v1/completions") in routes
    for method, path in routes:
        answer = server.raw(f"{method} {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
                            .encode())
        status = int(answer.split(b" ", 2)[1])
        assert b"there is no route" not in answer and status != 405, (method, path, answer)


def test_every_route_of_the_server_is_on_a_page():
    """By the table of routes: clients' in http.md, operators' in operating.md."""
    text = (ROOT / "server/router.c").read_text()
    rows = re.findall(r'^    \{"(\w+)",\s+"[^"]+",\s+"([^"]+)"', text, re.M)
    assert len(rows) == len(re.findall(r'^    \{"', text, re.M)) > 25
    clients, operators = ((DOCS / f"{page}.md").read_text() for page in ("http", "operating"))
    for method, path in rows:
        if path.startswith("/admin"):
            for name, example in (("slot", "mlp_in/m1"), ("id", "ID"), ("mode", "pause")):
                path = path.replace(f"{{{name}}}", example)
            said = re.findall(rf"curl -s (?:-X (\w+) )?[^|\n]*?\$U{path}(?=[\s\"`?])", operators)
            assert method in {m or "GET" for m in said}, (method, path)
        else:
            assert f"{path}`" in clients, (method, path)


def names_of(table, file):
    """The first words of the rows of an X macro."""
    text = re.search(rf"#define {table}\(.*?(?:\n\n|\Z)", (ROOT / file).read_text(), re.S)[0]
    names = re.findall(r"^    \w+\((?:t, \d+, )?(\w+),", text, re.M)
    assert len(names) > 4, text
    return names


def test_sampling_parameters_and_weight_formats_are_on_their_pages():
    http, running = ((DOCS / f"{page}.md").read_text() for page in ("http", "running"))
    for name in names_of("SAMPLING_NUMBERS", "kernels/sampling.h"):
        assert f"`{name}`" in http, name
    said = re.search(r"GGUF formats:(.*?),\s+computed\s+on\s+as\s+they\s+are", running, re.S)[1]
    assert sorted(re.findall(r"\w+", said) + ["F8"]) == sorted(names_of("DTYPES", "kernels/args.h"))
    gpu = " ".join((DOCS / "gpu.md").read_text().split())  # wherever its lines end
    kept = re.search(r"Weights in ([^.]*?) \(what FP8 checkpoints become\)", gpu)[1]
    becomes = re.search(r"that matrix becomes bf16, and so does everything in (.*?)\. ", gpu)[1]
    on_gpus = re.findall(r"\b[A-Z]\w+", f"{kept} {becomes}") + ["BF16"]
    assert sorted(on_gpus) == sorted(names_of("DTYPES", "kernels/args.h"))
    for method in re.findall(r'^        \{"([\w-]+)", read_', (ROOT / "engine/hf_quant.c").read_text(), re.M):
        assert f"`{method}`" in running, method


def test_architectures_are_on_their_page():
    said = re.search(r"^Architectures: .*?\.(?= )", (DOCS / "running.md").read_text(), re.M | re.S)[0]
    names = re.findall(r'\.gguf = "(\w+)"', (ROOT / "engine/arch.c").read_text())
    assert len(names) > 2
    for name in names:
        assert name in said.lower(), name


def test_the_sdk_example_runs_as_it_stands(server):
    code = re.search(r"```python\n(.*?)```", (DOCS / "running.md").read_text(), re.S)[1]
    code = code.replace("http://127.0.0.1:8080", server.url)
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert run.returncode == 0 and run.stdout.strip(), run.stderr


def test_every_call_of_the_operating_page_is_there(open_server):
    """With the key, on names that exist nowhere: refused for that, not for the route."""
    text = (DOCS / "operating.md").read_text()
    calls = set(re.findall(r'curl -s (?:-X (\w+) )?[^|\n]*?\$U(/[^\s"`]+)', text))
    assert len(calls) >= 14
    for method, path in calls:
        if path.endswith(("/resume", "/pause", "/freeze")):
            path = path.rsplit("/", 1)[0] + "/pause"
        path = path.replace("/ID", "/none").replace("/m1", "/none")
        answer = requests.request(method or "GET", open_server.url + path, data="{}",
                                  headers={"Authorization": "Bearer operator",
                                           "Content-Type": "application/json"}, timeout=60)
        assert answer.status_code in (200, 400, 404, 409), (method, path, answer.text)
        assert "there is no route" not in answer.text, (method, path)


def test_relative_links_lead_somewhere():
    missing = []
    for path in PAGES + LAB:
        for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", path.read_text()):
            if not re.match(r"[a-z]+:", target) and not (path.parent / target).exists():
                missing.append(f"{path.name}: {target}")
    assert not missing, missing


def anchors(path):
    """What #... may name in a page: its headings, lower case, without punctuation."""
    text = re.sub(r"^```.*?^```", "", path.read_text(), flags=re.M | re.S)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
            for heading in re.findall(r"^#+ (.*)$", text, re.M)}


def test_links_to_a_heading_lead_to_one():
    looked, missing = 0, []
    for path in PAGES + LAB:
        for page, name in re.findall(r"\]\(([\w./-]*\.md)?#([^)\s]+)\)", path.read_text()):
            looked += 1
            if name not in anchors(path.parent / page if page else path):
                missing.append(f"{path.name}: {page}#{name}")
    assert looked > 5 and not missing, missing


@pytest.mark.skipif(" avx2 " not in Path("/proc/cpuinfo").read_text(), reason="its point is AVX2")
def test_a_kernel_can_be_put_before_the_probe_as_the_page_says(tmp_path):
    text = (DOCS / "adding-a-kernel.md").read_text().split("## Put it before the probe")[1]
    script = re.search(r"```sh\n(.*?)```", text, re.S)[1]
    script = script.replace("/tmp/", f"{tmp_path}/").replace("build-fast/whet", BINARY)
    script = re.sub(r'"\$HOME/[^"]*"', lambda _: json.dumps(MODEL), script)
    run = subprocess.run(["sh", "-ec", script], cwd=ROOT, capture_output=True, text=True)
    assert json.loads(run.stdout)["verdict"] == "pass", run.stdout + run.stderr


def test_the_version_is_the_same_everywhere(server):
    version = re.search(r"^  version: '([\d.]+)'", (ROOT / "meson.build").read_text(), re.M)[1]
    said = subprocess.run([BINARY, "--version"], capture_output=True, text=True)
    assert said.stdout == f"whet {version}\n"
    assert server.get("/version").json() == {"version": version}
    released = re.findall(r"^## ([\d.]+) \(\d{4}-\d\d-\d\d\)$",
                          (ROOT / "CHANGELOG.md").read_text(), re.M)
    assert released[0] == version


def test_options_that_pages_name_exist():
    table = (DOCS / "configuration.md").read_text()
    options = set(re.findall(r"^\| `([a-z]+\.[a-z_]+)` \|", table, re.M))
    assert len(options) > 40
    for path in PAGES:
        named = set(re.findall(r"`((?:engine|server|specializer|adviser|log)\.[a-z_]+)(?=[`\s])",
                               path.read_text()))
        wrong = {n for n in named - options if not n.endswith((".c", ".h", ".db"))}
        assert not wrong, (path.name, wrong)


def test_configuration_page_is_generated():
    run = subprocess.run([str(ROOT / "scripts" / "gen-docs"), "--check"], capture_output=True,
                         text=True, env={**os.environ, "WHET_BINARY": BINARY})
    assert run.returncode == 0, run.stdout + run.stderr


@pytest.mark.skipif(not shutil.which("promtool"), reason="promtool is not installed")
def test_promtool_finds_nothing_with_a_specializer(page):
    run = subprocess.run(["promtool", "check", "metrics"], input=page, capture_output=True,
                         text=True)
    assert run.returncode == 0 and not run.stdout and not run.stderr, run.stdout + run.stderr


# What each alert is there for, as Prometheus test series over half an hour, a sample a minute.
GROWS = "0+5x30"
FIRES = {
    "WhetServerIsGone": [('up{job="whet"}', "0x30")],
    "WhetNotServing": [("whet_ready", "0x30")],
    "WhetRequestsFail": [('whet_requests_total{route="/v1/completions",code="503"}', GROWS)],
    # The first ones, all at once, and none after them.
    "WhetRequestBroke": [('whet_requests_total{route="/v1/completions",code="500"}', "0x25 7x5")],
    "WhetClientsAreTurnedAway": [('whet_requests_total{code="429"}', GROWS)],
    "WhetStepsFail": [("whet_failed_steps_total", GROWS)],
    "WhetKvCacheIsShort": [("whet_preemptions_total", "0+60x30")],
    "WhetFirstTokenIsLate": [('whet_time_to_first_token_seconds_bucket{le="5"}', "0x30"),
                             ('whet_time_to_first_token_seconds_bucket{le="10"}', GROWS),
                             ('whet_time_to_first_token_seconds_bucket{le="+Inf"}', GROWS)],
    "WhetTokensStutter": [('whet_inter_token_latency_seconds_bucket{le="0.5"}', "0x30"),
                          ('whet_inter_token_latency_seconds_bucket{le="1"}', GROWS),
                          ('whet_inter_token_latency_seconds_bucket{le="+Inf"}', GROWS)],
    "WhetKernelWasWrong": [('whet_kernel_rollbacks_total{reason="audit"}', GROWS)],
    "WhetTextBroke": [('whet_kernel_rollbacks_total{reason="executor"}', GROWS)],
    "WhetKernelGotSlow": [('whet_kernel_rollbacks_total{reason="drift"}', GROWS)],
    "WhetStoreFails": [("whet_store_errors_total", GROWS)],
    "WhetAdviserIsShutOut": [("whet_adviser_breaker_state", "2x90")],
    "WhetNothingIsSharpened": [("whet_specializer_compiler_available", "0x30")],
    "WhetPromiseBroken": [("whet_hot_path_compiles_total", "1x30")],
}
QUIET = [('up{job="whet"}', "1x90"), ('up{job="other"}', "0x90"), ("whet_ready", "1x90"),
         ('whet_requests_total{route="/v1/completions",code="500"}', "0x90"),
         # What asks for /ready and /health while servers restart, one after the other.
         ('whet_requests_total{route="/ready",code="503"}', "0+60x90"),
         ('whet_requests_total{route="/health",code="503"}', "0+60x90"),
         ('whet_requests_total{code="200"}', "0+60x90"), ("whet_store_errors_total", "0x90"),
         ('whet_kernel_rollbacks_total{reason="operator"}', "0+1x90"),
         ("whet_adviser_breaker_state", "0x90"), ("whet_hot_path_compiles_total", "0x90"),
         ("whet_specializer_compiler_available", "1x90")]


def alert_fires(tmp_path, name, series):
    """Whether the alert fires at the end of what the series describe."""
    test = {"rule_files": [str(DOCS / "alerts.yml")], "evaluation_interval": "1m", "tests": [{
        "interval": "1m", "input_series": [{"series": s, "values": v} for s, v in series],
        "promql_expr_test": [{
            "expr": f'count(ALERTS{{alertname="{name}",alertstate="firing"}})',
            "eval_time": "75m" if "90" in series[0][1] else "28m",
            "exp_samples": [{"labels": "{}", "value": 1}]}]}]}
    file = tmp_path / f"{name}.json"
    file.write_text(json.dumps(test))  # JSON is YAML
    return subprocess.run(["promtool", "test", "rules", str(file)], capture_output=True,
                          text=True).returncode == 0


@pytest.mark.skipif(not shutil.which("promtool"), reason="promtool is not installed")
def test_every_alert_fires_for_what_it_is_there_for(tmp_path):
    names = re.findall(r"- alert: (\w+)", (DOCS / "alerts.yml").read_text())
    assert sorted(names) == sorted(FIRES)
    for name in names:
        assert alert_fires(tmp_path, name, FIRES[name]), name
        assert not alert_fires(tmp_path, name, QUIET), name


@pytest.mark.skipif(not shutil.which("promtool"), reason="promtool is not installed")
@pytest.mark.parametrize("job", ["whet", "default/whet"])
def test_a_server_that_is_gone_is_missed_whoever_names_the_job(tmp_path, job):
    """The Prometheus operator puts the namespace before it; deploy/kubernetes/podmonitor.yaml says what is behind."""
    assert alert_fires(tmp_path, "WhetServerIsGone", [(f'up{{job="{job}",pod="whet-1"}}', "0x30")])
    monitor = (ROOT / "deploy" / "kubernetes" / "podmonitor.yaml").read_text()
    label, value = re.search(r"jobLabel: (\w+)", monitor)[1], re.search(r"matchLabels: {(\w+): (\w+)}", monitor)
    assert value.groups() == (label, "whet")


def test_failures_of_every_route_are_counted_from_the_start(open_server):
    """WhetRequestBroke would miss the first 500 of a series that begins with it."""
    text = open_server.get("/metrics").text
    table = re.findall(r'^    \{"[A-Z]+", "[^"]+", "([^"]+)"', (ROOT / "server/router.c").read_text(), re.M)
    begun = re.findall(r'^whet_requests_total\{route="([^"]+)",code="500"\} 0$', text, re.M)
    assert len(table) > 20 and set(table) <= set(begun), set(table) - set(begun)


@pytest.mark.skipif(not shutil.which("promtool"), reason="promtool is not installed")
def test_promtool_accepts_the_examples():
    for kind, name in (("config", "prometheus.yml"), ("rules", "alerts.yml")):
        run = subprocess.run(["promtool", "check", kind, str(DOCS / name)], capture_output=True,
                             text=True)
        assert run.returncode == 0, run.stdout + run.stderr


def test_scripts_serve_fetches_a_model_only_if_none_is_named(tmp_path):
    conf = tmp_path / "whet.conf"
    conf.write_text("[server]\nport = 1\n[engine]\nmodel_name = a\nmodel = /models/b.gguf\n")
    for words, env, model in (([], {}, "the default model"),
                              (["--config", str(conf)], {}, "/models/b.gguf"),
                              ([f"--config={conf}", "--model", "c"], {}, "c"),
                              ([], {"WHET_ENGINE_MODEL": "d"}, "d")):
        said = subprocess.run([ROOT / "scripts/serve", *words], capture_output=True, text=True,
                              env={**os.environ, "WHET_DRY_RUN": "1", **env})
        assert said.returncode == 0, said.stderr
        assert f"would serve {model} on " in said.stdout + said.stderr


def test_scripts_serve_knows_where_the_server_will_listen(tmp_path):
    """Where it looks for /ready, and what it tells people to try."""
    conf = tmp_path / "whet.conf"
    conf.write_text("[engine]\nmodel = m\nport = 1\n\n[server]\nport = 9001\nhost = 0.0.0.0\n[log]\n")
    file = ["--config", str(conf)]
    for words, env, where in (([], {}, "127.0.0.1:8080"), (file, {}, "0.0.0.0:9001"),
                              (file, {"WHET_SERVER_PORT": "9002"}, "0.0.0.0:9002"),
                              (file + ["--port=9003"], {"WHET_SERVER_PORT": "9002"}, "0.0.0.0:9003"),
                              (["--host", "::1"], {}, "[::1]:8080")):
        said = subprocess.run([ROOT / "scripts/serve", *words], capture_output=True, text=True,
                              env={**os.environ, "WHET_DRY_RUN": "1", **env})
        assert said.returncode == 0, said.stderr
        assert f" on {where}\n" in said.stdout + said.stderr, said.stderr
