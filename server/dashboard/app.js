/* SPDX-License-Identifier: Apache-2.0 */
/* app.js - asks the server every second, says what state it is in, and carries out what the
 * operator presses.
 *
 * The key lives in one variable of this file: not in the address, not in storage, not in a cookie.
 * Reading may need a key too (server.api_keys); an admin key opens both, so there is one variable.
 * What a press changes is drawn from the server's next answer, never from what we hoped for.
 */
"use strict";

const EVERY_MS = 1000, PATIENCE_MS = 15000, RETRIES_MS = [1000, 2000, 3000, 5000];

let key = "";         /* "" or the key in use */
let unlocked = false; /* the server took it as an admin key */
let last = null;      /* the last whole answer */
let heard = 0;        /* when, in ms */
let failures = 0, timer = 0, asking = false;

/* ---- talking to the server ------------------------------------------------------------------- */

class Refusal extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

/* Paths are relative, so that a proxy may put the server below any prefix. */
async function call(method, path, body) {
  const headers = key ? {Authorization: "Bearer " + key} : {};
  if (body !== undefined) headers["Content-Type"] = "application/json";
  const answer = await fetch(path, {
    method,
    headers,
    cache: "no-store",
    signal: AbortSignal.timeout(PATIENCE_MS),
    body: body === undefined ? undefined : JSON.stringify(body)
  });
  const text = await answer.text();
  let json = null;
  try {
    json = JSON.parse(text);
  } catch {
    throw new Refusal(answer.status, `the server's answer is not JSON (status ${answer.status})`);
  }
  if (!answer.ok) throw new Refusal(answer.status, json.error ? json.error.message : text);
  return json;
}

/* ---- what state it is in --------------------------------------------------------------------- */

const DOING = {
  waiting: ["warn", "Starting"],
  held_back: ["bad", "Held back"],
  restoring: ["warn", "Restoring"],
  searching: ["good", "Searching"],
  asleep: ["good", "Idle"], /* judge(): or converged */
  builds_spent: ["warn", "Builds used up"],
  paused: ["warn", "Paused"],
  frozen: ["warn", "Frozen"],
  no_compiler: ["warn", "No compiler"],
  yielding: ["good", "Waiting for idle"],
  off: ["", "Off"]
};

const NOTES = {
  held_back: [
    "The specializer is held back.",
    "The last processes ended before stored kernels were back. Eager kernels serve; Search lets it go on."
  ],
  paused: ["Paused.", "Nothing new is searched for; active kernels serve and stay watched."],
  frozen: ["Frozen.", "The kernels there are keep serving; no engine time is lent. Audits go on."],
  no_compiler: ["No compiler.", "Stored kernels serve; nothing new can be built."],
  builds_spent: [
    "The builds of this hour are used up.",
    "The search goes on with the next hour (specializer.builds_per_hour)."
  ],
  off: [
    "The specializer is off.",
    "The eager kernels serve (specializer.enabled, or a backend without templates)."
  ],
};

/* [tone, word in the head, title and text of the notice or none]. */
function judge(doc) {
  const server = doc.server, s = doc.specializer;
  if (server.state === "loading") return ["warn", "Loading", "Loading the model.", server.message];
  if (server.state === "failed")
    return ["bad", "Failed", "The model could not be loaded.", server.message];
  if (server.state === "lost")
    return [
      "bad", "Device lost", "The device is gone.", "New requests get 503: restart the server."
    ];
  if (server.state === "draining")
    return [
      "warn", "Draining", "Draining.", "Requests that run are finished; new ones are refused."
    ];
  if (!s)
    return [
      "bad", "No specializer", "The specializer is not running.",
      "Its store could not be opened; the log says why. Serving goes on."
    ];
  const doing = s.mode === "freeze"         ? "frozen" :
    s.mode === "pause" && s.doing !== "off" ? "paused" :
                                              s.doing;
  const [tone, usual] = DOING[doing] || ["", doing];
  const word = doing === "asleep" && s.converged ? "Converged" : usual;
  const [title, text] = NOTES[doing] || ["", ""];
  if (doing === "frozen" && s.numerics === "frozen")
    return [tone, word, title, "By the configuration: specializer.numerics = frozen."];
  return [tone, word, title, text];
}

function notice(tone, title, text, more = {}) {
  byId("notice").hidden = !title;
  byId("notice").dataset.tone = tone;
  setText(byId("notice-title"), title || "");
  setText(byId("notice-text"), text || "");
  byId("notice-key").hidden = !more.key;
  byId("notice-progress").hidden = more.progress === undefined;
  if (more.progress !== undefined) byId("notice-progress").value = more.progress;
}

function showState(tone, word) {
  byId("state").dataset.tone = tone;
  setText(byId("state-text"), word);
}

/* ---- drawing --------------------------------------------------------------------------------- */

function drawHead(doc) {
  const server = doc.server, s = doc.specializer;
  const parts = [server.model, server.device, s && s.numerics !== "tolerance" ? s.numerics : ""];
  setText(byId("model"), parts.filter(Boolean).join(" \u00b7 "));
  document.title = (server.model || "whet") + " \u2013 whet";
  const mode = s ? s.mode : "", fixed = !s || s.numerics === "frozen" || !actions.possible();
  for (const [id, name] of [
         ["mode-run", "run"], ["mode-pause", "pause"], ["mode-freeze", "freeze"]]) {
    byId(id).setAttribute("aria-pressed", String(mode === name));
    byId(id).disabled = fixed;
  }
  setText(byId("key-button"), unlocked ? "Lock" : "Unlock");
  byId("key-button").disabled = !server.admin;
  byId("key-button").title = server.admin ?
    "Controls ask for the admin key" :
    "Controls are closed: the server has no server.admin_key_file";
  setText(
    byId("foot"),
    `whet ${server.version}, up ${seconds(server.uptime_s)}` +
      (s ? `, strategy ${s.strategy}, ${s.compiler || "no compiler"}, ${
             count(s.counts.store_errors)} store errors` :
           "") +
      (server.admin ? "" : ". Controls are closed: no server.admin_key_file"));
}

function draw(doc) {
  const [tone, word, title, text] = judge(doc);
  showState(tone, word);
  notice(tone, title, text, doc.server.state === "loading" ? {progress: doc.server.progress} : {});
  drawHead(doc);
  const known = Array.isArray(doc.engine.regions);
  byId("main").hidden = !known;
  if (!known) return;
  drawTiles(doc);
  drawStep(doc);
  charts.update(doc);
  for (const node of document.querySelectorAll("#slots, .two, [aria-labelledby=trace-title]"))
    node.hidden = !doc.specializer;
  if (!doc.specializer) return;
  drawSlots(doc);
  drawFunnel(doc);
  drawAdviser(doc);
  drawFleet(doc);
  drawTrace(doc);
}

/* ---- polling --------------------------------------------------------------------------------- */

function lost(error) {
  failures++;
  document.body.classList.toggle("stale", Boolean(last));
  if (error.status === 401) {
    showState("warn", "Locked");
    notice(
      "warn", "This server needs a key.", "A user key shows, the admin key also changes.",
      {key: true});
    return;
  }
  showState("bad", error.status ? "Error" : "Connection lost");
  const when = last ? ago(heard / 1000, Date.now() / 1000) : "";
  const shown = last ? ` Shown is what was heard ${when === "now" ? "just now" : when}.` : "";
  notice(
    "bad", error.status ? "The server refused." : "Connection lost.",
    (error.status ? error.message + "." : "Trying again.") + shown);
}

function take(doc) {
  if (last && doc.server.uptime_s < last.server.uptime_s) { /* another process answers */
    series.clear();
    stepHistory.seen = [];
  }
  last = doc;
  heard = Date.now();
  failures = 0;
  document.body.classList.remove("stale");
  draw(doc);
}

async function poll() {
  clearTimeout(timer);
  if (asking) return;
  asking = true;
  try {
    take(await call("GET", "specializer?history=" + series.wanted(Date.now() / 1000)));
  } catch (error) {
    if (!(error instanceof Refusal || error.name === "TypeError" || error.name === "TimeoutError"))
      console.error(error);
    lost(error);
  }
  asking = false;
  const wait = failures ? RETRIES_MS[Math.min(failures, RETRIES_MS.length) - 1] : EVERY_MS;
  if (!document.hidden) timer = setTimeout(poll, wait);
}

/* ---- dialogs --------------------------------------------------------------------------------- */

let saidTimer = 0;

function say(text, tone = "") {
  byId("said").dataset.tone = tone;
  byId("said").hidden = false;
  setText(byId("said"), text);
  clearTimeout(saidTimer);
  saidTimer = setTimeout(() => (byId("said").hidden = true), 6000);
}

/* Opens a dialog with a form; resolves with read() when it is submitted, null when it is left. */
function askIn(dialog, form, read) {
  return new Promise((resolve) => {
    const submit = (e) => {
      e.preventDefault();
      dialog.returned = read();
      dialog.close();
    };
    dialog.returned = null;
    form.addEventListener("submit", submit);
    dialog.addEventListener("close", () => {
      form.removeEventListener("submit", submit);
      resolve(dialog.returned);
    }, {once: true});
    dialog.showModal();
  });
}

async function askKey(why) {
  setText(byId("key-why"), why);
  const given =
    await askIn(byId("key-dialog"), byId("key-form"), () => byId("key-input").value.trim());
  byId("key-input").value = "";
  return given;
}

/* True with an admin key in hand: asks until the server takes one or the operator gives up. */
async function unlock(why) {
  while (!unlocked) {
    const given = await askKey(why);
    if (!given) return false;
    const before = key;
    key = given;
    try {
      await call("GET", "admin/trace?since=9999999999");
      unlocked = true;
    } catch (error) {
      key = before;
      if (error.status !== 401 && error.status !== 403) {
        say(error.message, "bad");
        return false;
      }
      why = "The server did not take that key as its admin key.";
    }
  }
  return true;
}

async function ask(title, text, button, reason) {
  setText(byId("ask-title"), title);
  setText(byId("ask-text"), text);
  setText(byId("ask-do"), button);
  byId("ask-field").hidden = !reason;
  byId("ask-input").value = "";
  return askIn(byId("ask-dialog"), byId("ask-form"), () => byId("ask-input").value.trim() || " ");
}

/* ---- what operators can do ------------------------------------------------------------------- */

async function change(what, method, path, body) {
  if (!(await unlock(`To ${what}.`))) return null;
  try {
    const answer = await call(method, path, body);
    say(`Done: ${what}.`);
    poll();
    return answer;
  } catch (error) {
    if (error.status === 401 || error.status === 403) unlocked = false;
    say(`Could not ${what}: ${error.message || "no answer"}.`, "bad");
    return null;
  }
}

const slotPath = (slot) => "admin/slots/" + encodeURIComponent(slot);
const kernelPath = (id) => "admin/kernels/" + encodeURIComponent(id);

const actions = {
  possible: () => Boolean(last && last.server.admin && last.server.state === "ready"),
  redraw: () => last && draw(last),

  mode(word) {
    const what = {resume: "search", pause: "pause", freeze: "freeze"}[word];
    return change(what, "POST", "admin/specializer/" + word);
  },
  pin: (slot, id) => change(`pin ${slot} to ${id}`, "POST", slotPath(slot) + "/pin", {kernel: id}),
  unpin: (slot) => change(`unpin ${slot}`, "DELETE", slotPath(slot) + "/pin"),
  enable: (id) => change(`enable ${id}`, "POST", kernelPath(id) + "/enable"),

  async rollback(slot, kernel) {
    const text =
      `${kernel.name} leaves; the kernel before it, or eager, serves from the next step. ` +
      "Two rollbacks refuse a kernel until it is enabled again.";
    if ((await ask(`Roll ${slot} back?`, text, "Roll back", false)) === null) return null;
    return change(`roll ${slot} back`, "POST", slotPath(slot) + "/rollback", {from: kernel.id});
  },

  async disable(id, name) {
    const reason = await ask(
      "Disable this kernel?",
      `${name} leaves every slot now and is not tried again until it is enabled.`, "Disable", true);
    if (reason === null) return null;
    return change(`disable ${id}`, "POST", kernelPath(id) + "/disable", {reason: reason.trim()});
  },

  async showKernel(id) {
    if (!(await unlock("To read source text and build logs."))) return;
    try {
      const k = await call("GET", kernelPath(id));
      setText(byId("kernel-title"), k.name || id);
      drawFacts(byId("kernel-facts"), [
        ["Id", k.id], ["Slot", k.slot], ["State", k.state], ["Origin", k.origin],
        ["Template", k.template], ["Knobs", k.knobs || NONE],
        ["Bit for bit eager's", k.bit_equal ? "yes" : "no"],
        ["Built in", seconds(k.evidence.build_s)], ["Reason", k.reason || NONE],
        ["Disabled", k.disabled ? k.disabled_reason : "no"]
      ]);
      setText(byId("kernel-source"), k.source || "not kept");
      setText(byId("kernel-log"), k.log || "empty: the compiler had nothing to say");
      byId("kernel-dialog").showModal();
    } catch (error) {
      say(error.message, "bad");
    }
  },

  /* The slot's candidates, with the buttons that their state allows. */
  async showTried(slot, row) {
    if (!(await unlock("To list what was tried."))) return;
    try {
      drawTried(row.tried, (await call("GET", slotPath(slot))).tried);
    } catch (error) {
      say(error.message, "bad");
    }
  },
};

function drawTried(box, rows) {
  const table = el(
    "table", {class: "tried"}, el("caption", {class: "unseen", text: "Candidates of this slot"}),
    el(
      "thead", {},
      el(
        "tr", {},
        ...["Kernel", "State", "Why", ""].map((t) => el("th", {scope: "col", text: t})))));
  const body = table.createTBody();
  for (const k of rows) {
    const tag = el("span"), b = el("td", {class: "n"});
    setTag(tag, k.state.replace("_", " "), EVENT_TONES[k.state]);
    const add = (text, run) => b.append(el(
      "button",
      {type: "button", class: "bare", text, "aria-label": `${text} ${k.id}`, click: run}));
    if (["canary", "active", "retired"].includes(k.state))
      add("Pin", () => actions.pin(k.slot, k.id));
    add("Show", () => actions.showKernel(k.id));
    body.append(el(
      "tr", {}, el("td", {class: "mono", text: k.name}), el("td", {}, tag),
      el("td", {text: k.reason || ""}), b));
  }
  box.replaceChildren(
    rows.length ? table : el("p", {class: "empty", text: "Nothing was tried here yet."}));
}

/* ---- the beginning --------------------------------------------------------------------------- */

for (const [id, word] of [
       ["mode-run", "resume"], ["mode-pause", "pause"], ["mode-freeze", "freeze"]])
  byId(id).addEventListener("click", () => actions.mode(word));
byId("key-button").addEventListener("click", async () => {
  if (unlocked) {
    key = "";
    unlocked = false;
    say("The key is forgotten.");
  } else {
    await unlock("It unlocks the controls of this page.");
  }
  actions.redraw();
});
byId("notice-key").addEventListener("click", async () => {
  const given =
    await askKey("Any key of this server shows this page; the admin key also changes things.");
  if (given) key = given;
  poll();
});
byId("slots-all").addEventListener("click", () => {
  showQuiet = !showQuiet;
  actions.redraw();
});
byId("trace-slot").addEventListener("change", () => actions.redraw());
for (const button of document.querySelectorAll("dialog .cancel"))
  button.addEventListener("click", () => button.closest("dialog").close());
document.addEventListener("visibilitychange", () => !document.hidden && poll());
charts.open();
poll();
