/* Servers, clients, refusals, cards. */

import { bind, copy, each } from "./bind.js";
import { picture } from "./draw.js";
import { clock, format, language, number, say, sentence, word } from "./text.js";

/* What a server is for people: held back, or up and not yet taken, or its state. */
function state(server) {
  if (server.held) return "held";
  if (server.state === "ready" && !server.ready) return "opening";
  return server.state;
}

export function servers(status) {
  const container = document.getElementById("servers");
  each(container, status.backends, (one) => one.name, () => copy("t-server"), (element, server, index) => {
    const is = state(server);
    const chip = element.querySelector("[data-state]");
    chip.dataset.state = is;
    say(chip, word(`state_${is}`) || is);
    const engine = server.engine_version && `SGLang ${server.engine_version}`;
    const context = server.context_tokens && sentence("context", { n: format("int", server.context_tokens) }).join("");
    say(element.querySelector("[data-meta]"), [engine, server.models[0], context, server.url].filter(Boolean).join(" · "));
    trouble(element.querySelector(".trouble"), server, is);
    bind(element, status, `backends.${index}`);
    say(element.querySelector(".legend .reserved dt"), word(server.forecast_tokens === null ? "reserved" : "reserved_likely"));
    picture(element.querySelector(".pool"), server);
    // What it had is not what it has once it is gone.
    const there = ["ready", "stalled"].includes(server.state);
    element.classList.toggle("away", !there);
    element.querySelector(".engine").hidden = server.engine === null || server.loads_stale || !there;
    element.id = `server-${server.name}`;
    each(element.querySelector(".notes ul"), server.notes, (note) => note, () => document.createElement("li"), say);
  });
}

/* Servers that need somebody, beside how it looks as a whole. */
export function attention(status) {
  const troubled = status.backends.filter((one) => state(one) !== "ready");
  const line = document.getElementById("attention");
  line.hidden = troubled.length === 0;
  each(line.lastElementChild, troubled, (one) => one.name, () => document.createElement("a"), (link, server, index) => {
    link.href = `#server-${server.name}`;
    say(link, `${server.name} (${word(`state_${state(server)}`)})${index < troubled.length - 1 ? ", " : ""}`);
  });
}

function trouble(box, server, is) {
  box.hidden = is === "ready";
  if (box.hidden) return;
  const what = box.querySelector(".what");
  what.lang = "en"; // the gate's own words, as in its log
  what.hidden = !(server.held ?? server.error);
  say(what, server.held ?? server.error ?? "");
  const steps = word(`do_${is}`) || word("do_connecting");
  each(box.querySelector("ul"), steps, (step) => step, () => document.createElement("li"), say);
}

export function clients(status) {
  const table = document.getElementById("clients");
  const busiest = Math.max(1, ...status.clients.map((one) => one.held_tokens));
  const order = status.clients.map((client, index) => ({ client, index }));
  order.sort((a, b) => b.client.held_tokens - a.client.held_tokens || a.index - b.index);
  table.hidden = order.length === 0;
  document.getElementById("no-clients").hidden = order.length > 0;
  each(table.tBodies[0], order, (one) => one.client.name, () => copy("t-client"), (row, { client, index }) => {
    bind(row, status, `clients.${index}`);
    row.querySelector(".fill").style.width = `${(100 * client.held_tokens) / busiest}%`;
  });
}

const FIRST = 6; // refusals shown without asking for more

export function refusals(status) {
  const all = status.refusals.map((refusal, index) => ({ refusal, index }));
  document.getElementById("no-refusals").hidden = all.length > 0;
  document.getElementById("more-refusals").hidden = all.length <= FIRST;
  list(document.getElementById("refusals"), all.slice(0, FIRST), status);
  list(document.querySelector("#more-refusals ol"), all.slice(FIRST), status);
}

function list(container, items, status) {
  const keyed = (one) => `${one.refusal.id} ${language}`;
  each(container, items, keyed, () => copy("t-refusal"), (item, { refusal, index }) => {
    bind(item, status, `refusals.${index}`);
    const when = new Date(refusal.at);
    const time = item.querySelector("time");
    time.dateTime = refusal.at;
    say(time, clock(when));
    say(item.querySelector("[data-code]"), refusal.code ?? (refusal.outcome === "failed" ? "failed" : `HTTP ${refusal.upstream_status}`));
    item.querySelector("[data-code]").dataset.own = "";
    explain(item.querySelector("p"), refusal, index);
  });
}

function explain(paragraph, refusal, index) {
  const at = `refusals.${index}`;
  const signature = JSON.stringify([refusal, index, language]);
  if (paragraph.dataset.signature === signature) return;
  paragraph.dataset.signature = signature;
  const parts = [word(refusal.code ? `code_${refusal.code}` : refusal.outcome === "failed" ? "code_failed" : "code_upstream")];
  if (refusal.reason) {
    const reason = document.createElement("span");
    reason.lang = "en";
    reason.dataset.own = "";
    reason.textContent = ` ${refusal.reason}${/[.!?]$/.test(refusal.reason) ? "" : "."}`;
    parts.push(reason);
  }
  // Not all that is free can be used by one request: where enough seems free, the two explain nothing.
  if (refusal.available !== null && refusal.needed > refusal.available) {
    const needed = number(`${at}.needed`, "int", refusal.needed);
    const available = number(`${at}.available`, "int", refusal.available);
    parts.push(...sentence("needed", { needed, available }));
  }
  if (refusal.queue_ms !== null) {
    parts.push(...sentence("waited", { waited: number(`${at}.queue_ms`, "ms", refusal.queue_ms) }));
  }
  if (refusal.retry_after_s !== null) {
    parts.push(...sentence("again", { again: number(`${at}.retry_after_s`, "seconds", refusal.retry_after_s) }));
  }
  paragraph.replaceChildren(...parts);
}

/* Cards, where the history knows any; its last minute. */
export function cards(history) {
  const gpus = history?.minutes?.at(-1)?.gpus ?? [];
  const section = document.getElementById("gpus");
  section.hidden = gpus.length === 0;
  const make = () => document.createElement("article");
  each(section.querySelector(".cards"), gpus, (gpu) => gpu.index, make, (element, gpu, index) => {
    const heading = document.createElement("h3");
    heading.dataset.own = "";
    heading.textContent = `${gpu.index} · ${gpu.name}`;
    const at = `gpus.${index}`;
    const busy = number(`${at}.utilisation`, "hundred", gpu.utilisation);
    const used = number(`${at}.memory_used`, "gib", gpu.memory_used);
    const all = number(`${at}.memory_total`, "gib", gpu.memory_total);
    for (const one of [busy, used, all]) one.dataset.from = "history";
    const line = document.createElement("p");
    line.append(`${word("gpu_busy")} `, busy, ` · ${word("gpu_memory")} `, used, ` ${word("of")} `, all);
    const rail = document.createElement("span");
    rail.className = "rail";
    const fill = document.createElement("span");
    fill.className = "fill";
    fill.style.width = `${gpu.utilisation ?? 0}%`;
    rail.append(fill);
    element.replaceChildren(heading, rail, line);
  });
}
