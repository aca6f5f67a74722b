/* Language, and how numbers are written. */

import { WORDS } from "./words.js";

const KEY = "kvgate-language";

function remembered() {
  try {
    return localStorage.getItem(KEY);
  } catch {
    return null; // storage switched off
  }
}

function initial() {
  const asked = new URLSearchParams(location.search).get("lang") ?? remembered();
  return asked in WORDS ? asked : document.documentElement.lang.slice(0, 2);
}

export let language = initial() in WORDS ? initial() : "en";

export function choose(name) {
  language = name;
  try {
    localStorage.setItem(KEY, name);
  } catch {
    /* then only for this visit */
  }
}

export const word = (key) => WORDS[language][key] ?? WORDS.en[key] ?? "";

/* A sentence with values in it: text and nodes in the order of this language. */
export function sentence(key, values) {
  return word(key)
    .split(/\{(\w+)\}/)
    .map((part, index) => (index % 2 ? values[part] : part));
}

/* Set text only where it changed: a screen reader must not be told the same again each second. */
export function say(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

export const UNLIMITED = 2 ** 30; // as /status writes a limit that nobody set
const locale = () => (language === "zh" ? "zh-CN" : "en");
const plain = (value, digits) =>
  value.toLocaleString(locale(), { maximumFractionDigits: digits, minimumFractionDigits: 0 });

function seconds(value) {
  if (value >= 3600) return `${plain(value / 3600, 1)} h`;
  if (value >= 100) return `${plain(value / 60, 1)} min`;
  return `${plain(value, value < 10 ? 1 : 0)} s`;
}

const FORMATS = {
  int: (value) => plain(value, 0),
  number: (value) => plain(value, 1),
  rate: (value) => plain(value, value < 10 ? 1 : 0),
  percent: (value) => `${plain(value * 100, 0)} %`,
  hundred: (value) => `${plain(value, 0)} %`,
  seconds,
  ms: (value) => (value < 1000 ? `${plain(value, value < 10 ? 1 : 0)} ms` : seconds(value / 1000)),
  limit: (value) => (value >= UNLIMITED ? word("none") : plain(value, 0)),
  gib: (value) => `${plain(value / 2 ** 30, 1)} GiB`,
};

export const format = (kind, value) =>
  value === null || value === undefined ? "–" : FORMATS[kind](value);

/* A <data> element with a number of /status: its value as it is there, its text for people. */
export function put(element, path, value) {
  element.dataset.path = path;
  const raw = value === null || value === undefined ? "" : String(value);
  if (element.getAttribute("value") !== raw) element.setAttribute("value", raw);
  say(element, format(element.dataset.f, value));
}

export function number(path, kind, value) {
  const element = document.createElement("data");
  element.dataset.f = kind;
  put(element, path, value);
  return element;
}

export const clock = (date) =>
  date.toLocaleTimeString(locale(), { hour: "2-digit", minute: "2-digit", second: "2-digit", hour12: false });
