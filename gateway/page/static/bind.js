/* From the document of /status to elements: `data-n` names a number, `data-x` a text, `data-t` a
   word of the page. A name that begins with a dot is looked up below the element's own base. */

import { put, say, word } from "./text.js";

export function look(document, path) {
  return path.split(".").reduce((at, key) => (at === null || at === undefined ? at : at[key]), document);
}

const full = (base, name) => (name.startsWith(".") ? base + name : name);
const present = (value) => value !== null && value !== undefined && value !== 0 && value !== "";

export function translate(root) {
  for (const one of root.querySelectorAll("[data-t]")) say(one, word(one.dataset.t));
  for (const one of root.querySelectorAll("[data-ta]")) one.setAttribute("aria-label", word(one.dataset.ta));
}

/* Fill in everything below `root`, and `root` itself stays. */
export function bind(root, status, base = "") {
  for (const one of root.querySelectorAll("[data-n]")) {
    if (base === "" && one.closest("[data-bound]")) continue; // belongs to a list, which does it
    const path = full(base, one.dataset.n);
    put(one, path, look(status, path));
  }
  for (const one of root.querySelectorAll("[data-x]")) {
    if (base === "" && one.closest("[data-bound]")) continue;
    say(one, String(look(status, full(base, one.dataset.x)) ?? ""));
  }
  for (const one of root.querySelectorAll("[data-has], [data-hasnot]")) {
    if (base === "" && one.closest("[data-bound]")) continue;
    const { has, hasnot } = one.dataset;
    const value = look(status, full(base, has ?? hasnot));
    const there = "zero" in one.dataset ? value !== null && value !== undefined : present(value);
    one.hidden = has === undefined ? there : !there;
  }
}

/* Make the children of `container` those of `items`, keeping each element with its key. */
export function each(container, items, key, make, fill) {
  const known = new Map([...container.children].map((child) => [child.dataset.key, child]));
  items.forEach((item, index) => {
    const name = String(key(item));
    let element = known.get(name);
    if (element === undefined) {
      element = make();
      element.dataset.key = name;
      element.dataset.bound = "";
      translate(element);
    }
    known.delete(name);
    if (container.children[index] !== element) container.insertBefore(element, container.children[index] ?? null);
    fill(element, item, index);
  });
  for (const left of known.values()) left.remove();
}

export const copy = (id) => document.getElementById(id).content.firstElementChild.cloneNode(true);
