/* The page: hears the gate once a second and shows what it says. */

import { bind, look, translate } from "./bind.js";
import { Trend } from "./draw.js";
import { attention, cards, clients, refusals, servers } from "./lists.js";
import { choose, format, language, say, sentence, word } from "./text.js";

const STALE_S = 4; // three documents missed
const HISTORY_S = 15;
const HIDDEN_S = 30; // a tab that nobody looks at stops listening

const trend = new Trend();
const live = document.getElementById("live");
let source = null;
let status = null;
let history = null;
let heard = 0;

/* Of several processes the one that was asked for; its numbers come from where the page did. */
const worker = new URLSearchParams(window.location.search).get("worker");

function mine(path) {
  if (worker === null) return path;
  return `${path}${path.includes("?") ? "&" : "?"}worker=${encodeURIComponent(worker)}`;
}

/* ---- showing ---- */

function show() {
  if (status === null) return;
  document.getElementById("main").hidden = false;
  bind(document.getElementById("main"), status);
  say(document.querySelector(".version [data-x]"), status.version);
  level();
  verdict();
  widths();
  attention(status);
  servers(status);
  clients(status);
  refusals(status);
  const at = word(`level_${status.now.level}`);
  document.title = `${at} · kvgate`;
}

function level() {
  const name = status.now.level;
  document.body.dataset.level = name;
  say(document.getElementById("level"), word(`level_${name}`));
  say(document.getElementById("level-why"), word(`why_${name}`));
  for (const one of document.querySelectorAll("[data-hot]")) {
    one.classList.toggle("hot", look(status, one.dataset.hot) > 0);
  }
}

/* The last whole minute's verdict, where the gate gives one. */
function verdict() {
  const given = status.verdict ?? null;
  document.getElementById("verdict").hidden = given === null;
  if (given === null) return;
  const change = given.change?.[language] ?? "";
  say(document.getElementById("verdict-sentence"), given.sentence?.[language] ?? "");
  document.getElementById("verdict-change").hidden = change === "";
  say(document.getElementById("verdict-change"), word("change") + change);
}

function widths() {
  for (const one of document.querySelectorAll("[data-w]")) {
    const share = look(status, one.dataset.w);
    one.closest(".gauge").hidden = share === null;
    one.style.width = `${Math.min(100 * (share ?? 0), 100)}%`;
    one.classList.toggle("full", share >= 0.95);
  }
  for (const one of document.querySelectorAll("[data-g]")) one.style.flexGrow = look(status, one.dataset.g);
}

function words() {
  document.documentElement.lang = language === "zh" ? "zh-Hans" : "en";
  translate(document);
  for (const link of document.querySelectorAll("[data-lang]")) {
    if (link.dataset.lang === language) link.setAttribute("aria-current", "true");
    else link.removeAttribute("aria-current");
  }
  alive();
  trend.draw();
  if (history) cards(history);
  show();
}

/* ---- hearing ---- */

function alive() {
  const quiet = (performance.now() - heard) / 1000;
  const state = heard === 0 ? "connecting" : quiet < STALE_S ? "live" : "stale";
  live.dataset.state = state;
  document.body.classList.toggle("old", state === "stale");
  // By the minute, so that it is not read aloud each second.
  const minutes = Math.floor(quiet / 60);
  const late = state === "stale" && minutes > 0;
  const told = late ? sentence("stale_for", { time: format("seconds", 60 * minutes) }).join("") : word(state);
  say(document.getElementById("live-words"), told);
}

function take(event) {
  const { status: newest, row } = JSON.parse(event.data);
  const gap = heard === 0 || performance.now() - heard > 1000 * STALE_S;
  status = newest;
  if (gap) {
    fetchTrend();
    fetchHistory();
  }
  heard = performance.now();
  trend.add(row);
  show();
  alive();
}

async function json(path) {
  const answer = await fetch(mine(path), { cache: "no-store" });
  return answer.ok ? answer.json() : null;
}

async function fetchTrend() {
  const document_ = await json("trend").catch(() => null);
  if (document_) trend.load(document_);
}

/* Where verdicts are given there is a history, and in it the cards. */
async function fetchHistory() {
  if (document.hidden || status === null || !("verdict" in status)) return;
  history = (await json("history?minutes=1").catch(() => null)) ?? history;
  if (history) cards(history);
}

function listen() {
  source?.close();
  const opened = new EventSource(mine("events"));
  opened.addEventListener("message", take);
  opened.addEventListener("error", () => {
    const refused = opened.readyState === EventSource.CLOSED; // as many pages are open as may be
    if (refused && source === opened) setTimeout(listen, 5000);
  });
  source = opened;
}

let away = null;
document.addEventListener("visibilitychange", () => {
  clearTimeout(away);
  if (document.hidden) {
    away = setTimeout(() => {
      source?.close();
      source = null;
    }, 1000 * HIDDEN_S);
  } else if (source === null) {
    listen();
  }
});

for (const link of document.querySelectorAll("[data-lang]")) {
  link.addEventListener("click", (event) => {
    event.preventDefault();
    choose(link.dataset.lang);
    window.history.replaceState(null, "", mine(`?lang=${link.dataset.lang}`));
    words();
  });
}

words();
listen();
setInterval(alive, 1000);
setInterval(fetchHistory, 1000 * HISTORY_S);
