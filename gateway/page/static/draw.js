/* The picture of a pool, and the lines of the last quarter of an hour. */

import { clock, format, number, say, sentence, UNLIMITED, word } from "./text.js";

/* ---- the pool of one server: what is used lies inside what is reserved ---- */

function blank(box) {
  box.setAttribute("role", "img");
  for (const name of ["reserved", "used", "worst-mark"]) {
    const part = document.createElement("span");
    part.className = name;
    box.append(part);
  }
}

export function picture(box, server) {
  if (box.children.length === 0) blank(box);
  const { used, reserved, limit } = server.ledgers.kv;
  const known = limit > 0 && limit < UNLIMITED;
  const share = (tokens) => (known ? `${(100 * Math.min(Math.max(tokens, 0), limit)) / limit}%` : "0%");
  const [promised, taken, mark] = box.children;
  promised.style.width = share(Math.max(reserved, used));
  taken.style.width = share(used);
  const worst = server.worst_tokens;
  const forecast = server.forecast_tokens !== null;
  mark.hidden = !forecast || worst <= 0 || worst >= limit;
  mark.style.left = share(worst);
  const values = { name: server.name, used, reserved, worst, free: server.free_tokens };
  for (const key of ["used", "reserved", "worst", "free"]) values[key] = format("int", values[key]);
  values.limit = format("limit", limit);
  box.setAttribute("aria-label", sentence(forecast ? "picture_forecast" : "picture", values).join(""));
}

/* ---- lines on one time axis ---- */

const SVG = "http://www.w3.org/2000/svg";

function shape(name, attributes) {
  const element = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  return element;
}

const WIDE = 1000;
const PANELS = [
  { name: "requests", unit: "int", least: 4, columns: ["working", "waiting"], area: true },
  { name: "memory", unit: "int", least: 1000, columns: ["kv_reserved", "kv_used"], top: "kv_limit", area: true },
  { name: "speed", unit: "rate", least: 10, columns: ["read_per_s", "written_per_s"] },
  { name: "ttft", unit: "ms", least: 100, columns: ["ttft_p95_ms", "ttft_p50_ms"] },
  { name: "tpot", unit: "ms", least: 10, columns: ["tpot_p95_ms", "tpot_p50_ms"] },
];
const UNITS = Object.fromEntries(PANELS.flatMap((panel) => panel.columns.map((name) => [name, panel.unit])));
const HIGH = 100;
const TABLE_ROWS = 15;
const LEAST_SPAN_S = 120;

export class Trend {
  constructor() {
    this.columns = [];
    this.rows = [];
    this.kept = 180;
    this.every = 5;
    this.chosen = null; // time of the row that is read; null: the newest
    this.panels = PANELS.map((panel) => this.blank(panel));
    document.getElementById("panels").replaceChildren(...this.panels.map((panel) => panel.box));
    this.scrub = document.getElementById("scrub");
    this.axis = document.getElementById("axis-start");
    this.scrub.addEventListener("input", () => this.choose(Number(this.scrub.value)));
    this.table = document.getElementById("as-table");
    this.table.addEventListener("toggle", () => this.fillTable());
  }

  blank(panel) {
    const box = document.createElement("div");
    box.className = `panel ${panel.name}`;
    const title = document.createElement("h3");
    const reading = document.createElement("p");
    reading.className = "readout";
    const top = document.createElement("span");
    top.className = "top-tick";
    top.setAttribute("aria-hidden", "true");
    const svg = shape("svg", { viewBox: `0 0 ${WIDE} ${HIGH}`, preserveAspectRatio: "none", "aria-hidden": "true" });
    const lines = panel.columns.map((_, index) => shape("path", { class: `line line-${index}` }));
    const areas = panel.area ? panel.columns.map((_, index) => shape("path", { class: `area area-${index}` })) : [];
    const roof = shape("path", { class: "roof" });
    const cross = shape("line", { class: "cross gone", y1: 0, y2: HIGH });
    svg.append(shape("line", { class: "floor", x1: 0, x2: WIDE, y1: HIGH, y2: HIGH }), roof, ...areas, ...lines, cross);
    const chart = document.createElement("div");
    chart.className = "chart";
    chart.append(svg, top);
    chart.addEventListener("pointermove", (event) => this.point(chart, event));
    chart.addEventListener("pointerleave", () => this.choose(this.rows.length - 1));
    box.append(title, reading, chart);
    return { ...panel, box, title, reading, tick: top, lines, areas, roof, cross };
  }

  /* Everything kept by the server, at the beginning and after a break. */
  load(document) {
    this.columns = document.columns;
    this.rows = document.rows;
    this.every = document.every_s;
    this.draw();
  }

  add(row) {
    if (!row || this.columns.length === 0 || row[0] <= (this.rows.at(-1)?.[0] ?? 0)) return;
    this.rows.push(row);
    if (this.rows.length > this.kept) this.rows.shift();
    this.draw();
  }

  point(chart, event) {
    const { left, width } = chart.getBoundingClientRect();
    const wanted = this.start + ((event.clientX - left) / width) * this.span;
    let best = 0;
    this.rows.forEach((row, index) => {
      if (Math.abs(row[0] - wanted) < Math.abs(this.rows[best][0] - wanted)) best = index;
    });
    if (this.rows.length) this.choose(best);
  }

  choose(index) {
    this.chosen = index >= this.rows.length - 1 ? null : this.rows[index]?.[0] ?? null;
    this.read();
  }

  /* Seconds on the axis: what there is, two minutes at least. */
  get span() {
    const there = this.rows.length ? this.rows.at(-1)[0] - this.rows[0][0] : 0;
    return Math.min(Math.max(there, LEAST_SPAN_S), this.kept * this.every);
  }

  get start() {
    return (this.rows.at(-1)?.[0] ?? 0) - this.span;
  }

  x(row) {
    return (WIDE * (row[0] - this.start)) / this.span;
  }

  draw() {
    for (const panel of this.panels) {
      const places = panel.columns.map((name) => this.columns.indexOf(name));
      const roof = this.columns.indexOf(panel.top);
      const roofs = roof < 0 ? [] : this.rows.map((row) => row[roof]);
      const values = this.rows.flatMap((row) => places.map((place) => row[place])).concat(roofs);
      const most = nice(Math.max(panel.least, ...values.filter((value) => value !== null)));
      const y = (value) => HIGH - (HIGH * value) / most;
      places.forEach((place, index) => {
        const runs = this.runs(place, y);
        panel.lines[index].setAttribute("d", runs.map((run) => `M${run.join("L")}`).join(""));
        const below = (run) => `M${run[0].split(",")[0]},${HIGH}L${run.join("L")}L${run.at(-1).split(",")[0]},${HIGH}Z`;
        panel.areas[index]?.setAttribute("d", runs.map(below).join(""));
      });
      if (roof >= 0) panel.roof.setAttribute("d", this.runs(roof, y).map((run) => `M${run.join("L")}`).join(""));
      say(panel.tick, format(panel.unit, most));
    }
    this.read();
    if (this.table.open) this.fillTable();
  }

  /* The points of a column, broken where nothing was measured. */
  runs(place, y) {
    const runs = [[]];
    for (const row of this.rows) {
      const last = runs.at(-1);
      if (row[place] === null) {
        if (last.length) runs.push([]);
      } else {
        last.push(`${this.x(row).toFixed(1)},${y(row[place]).toFixed(1)}`);
      }
    }
    return runs.filter((run) => run.length);
  }

  /* The numbers at one point in time. */
  read() {
    const newest = this.rows.length - 1;
    const found = this.chosen === null ? newest : this.rows.findIndex((row) => row[0] === this.chosen);
    const index = found < 0 ? newest : found;
    const row = this.rows[index];
    this.scrub.max = Math.max(newest, 0);
    this.scrub.value = Math.max(index, 0);
    this.scrub.disabled = newest < 1;
    if (row) say(this.axis, clock(new Date(this.start * 1000)));
    if (row) this.scrub.setAttribute("aria-valuetext", clock(new Date(row[0] * 1000)));
    for (const panel of this.panels) {
      say(panel.title, word(`panel_${panel.name}`));
      panel.reading.replaceChildren(...panel.columns.flatMap((name, place) => this.value(name, place, row)));
      panel.cross.classList.toggle("gone", !row || this.chosen === null);
      if (row) for (const end of ["x1", "x2"]) panel.cross.setAttribute(end, this.x(row).toFixed(1));
    }
  }

  value(name, place, row) {
    const label = document.createElement("span");
    label.className = `key key-${place}`;
    const value = number(`${row?.[0] ?? ""}.${name}`, UNITS[name], row ? row[this.columns.indexOf(name)] : null);
    value.dataset.from = "trend";
    const words = document.createElement("span");
    words.dataset.t = `col_${name}`;
    words.textContent = word(`col_${name}`);
    label.append(words, " ", value);
    return label;
  }

  /* One row a minute, newest first. */
  fillTable() {
    if (!this.table.open) return;
    const shown = PANELS.flatMap((panel) => panel.columns);
    const head = ["time", ...shown].map((name) => {
      const cell = document.createElement("th");
      cell.scope = "col";
      const panel = PANELS.find((one) => one.columns.includes(name));
      cell.textContent = panel ? `${word(`panel_${panel.name}`)}: ${word(`col_${name}`)}` : word(name);
      return cell;
    });
    this.table.querySelector("thead tr").replaceChildren(...head);
    const step = Math.round(60 / this.every);
    const picked = this.rows.filter((_, index) => (this.rows.length - 1 - index) % step === 0).reverse();
    this.table.querySelector("tbody").replaceChildren(...picked.slice(0, TABLE_ROWS).map((row) => this.line(row, shown)));
  }

  line(row, shown) {
    const line = document.createElement("tr");
    const when = document.createElement("th");
    when.scope = "row";
    when.dataset.own = "";
    when.textContent = clock(new Date(row[0] * 1000));
    const cells = shown.map((name) => {
      const cell = document.createElement("td");
      const value = number(`${row[0]}.${name}`, UNITS[name], row[this.columns.indexOf(name)]);
      value.dataset.from = "trend";
      cell.append(value);
      return cell;
    });
    line.append(when, ...cells);
    return line;
  }
}

/* The next round number. */
function nice(value) {
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 1.5, 2, 2.5, 3, 4, 5, 6, 8, 10].map((step) => step * power).find((step) => step >= value);
}
