// Elements made of plain values. Every text goes in as a text node, so names with markup in them are only text.

// Set by the code that made an element, or by who looks at it.
const KEPT = ["style", "open", "data-more"];
const SVG = "http://www.w3.org/2000/svg";

const handlers = new WeakMap();

function handle(event) {
  handlers.get(event.currentTarget)?.[event.type]?.(event);
}

function listen(element, type, handler) {
  const known = handlers.get(element) || {};
  if (!(type in known)) element.addEventListener(type, handle);
  handlers.set(element, { ...known, [type]: handler });
}

function filled(element, attributes, children) {
  element.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) listen(element, name.slice(2), value);
    else if (name === "style") Object.assign(element.style, value);
    else if (name === "value") element.value = value;
    else if (name === "checked") element.checked = Boolean(value);
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  return element;
}

export function h(name, attributes, ...children) {
  return filled(document.createElement(name), attributes, children);
}

export function svg(name, attributes, ...children) {
  return filled(document.createElementNS(SVG, name), attributes, children);
}

// Replaces the children of an element only where they differ, so that focus, selection and scrolling stay.
export function put(element, ...children) {
  const wanted = children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false);
  patch(element, wanted.map((child) => (child instanceof Node ? child : document.createTextNode(String(child)))));
}

function patch(element, wanted) {
  wanted.forEach((next, at) => {
    const now = element.childNodes[at];
    if (now === undefined) element.append(next);
    else if (now !== next && !merged(now, next)) now.replaceWith(next);
  });
  while (element.childNodes.length > wanted.length) element.lastChild.remove();
}

function merged(now, next) {
  if (now.nodeType !== next.nodeType || now.nodeName !== next.nodeName) return false;
  if (now.nodeType === Node.TEXT_NODE) {
    if (now.data !== next.data) now.data = next.data;
    return true;
  }
  // What keeps something of its own is named, and only exchanged for what has another name.
  if (now.dataset.own !== undefined || next.dataset.own !== undefined) return now.dataset.own === next.dataset.own;
  for (const { name } of [...now.attributes]) {
    if (!KEPT.includes(name) && !next.hasAttribute(name)) now.removeAttribute(name);
  }
  for (const { name, value } of [...next.attributes]) {
    if (!KEPT.includes(name) && now.getAttribute(name) !== value) now.setAttribute(name, value);
  }
  if (now.style.cssText !== next.style.cssText) now.style.cssText = next.style.cssText;
  for (const type of Object.keys(handlers.get(now) || {})) listen(now, type, undefined);
  for (const [type, handler] of Object.entries(handlers.get(next) || {})) listen(now, type, handler);
  patch(now, [...next.childNodes]);
  return true;
}

export function table(caption, columns, rows, empty) {
  if (!rows.length) return h("p", { class: "empty" }, empty || "Nothing yet.");
  const head = columns.map((column) => h("th", { scope: "col", class: column.number ? "number" : null }, column.title));
  return h(
    "div",
    { class: "scroll", tabindex: "0", role: "region", "aria-label": caption },
    h(
      "table",
      null,
      h("caption", { class: "unseen" }, caption),
      h("thead", null, h("tr", null, head)),
      h(
        "tbody",
        null,
        rows.map((row) =>
          h(
            "tr",
            row.attributes || null,
            columns.map((column, at) => {
              const cell = column.cell(row.of === undefined ? row : row.of);
              const attributes = { class: [column.number ? "number" : "", column.class || ""].join(" ").trim() || null };
              return at === 0
                ? h("th", { scope: "row", ...attributes }, cell)
                : h("td", attributes, cell);
            }),
          ),
        ),
      ),
    ),
  );
}

// Marks where there is more to scroll to, at the sides; the style sheet shows it.
function mark() {
  for (const one of document.querySelectorAll(".scroll")) {
    const left = one.scrollLeft > 2 ? "left" : "";
    const right = one.scrollLeft + one.clientWidth < one.scrollWidth - 2 ? "right" : "";
    const more = `${left} ${right}`.trim();
    if (one.dataset.more !== more) one.dataset.more = more;
  }
}

export function markScrolling(root) {
  let due = false;
  const soon = () => {
    if (due) return;
    due = true;
    requestAnimationFrame(() => {
      due = false;
      mark();
    });
  };
  new MutationObserver(soon).observe(root, { childList: true, subtree: true, characterData: true });
  addEventListener("scroll", soon, { capture: true, passive: true });
  addEventListener("resize", soon);
}

export function card(title, ...children) {
  return h("section", { class: "card" }, title ? h("h2", null, title) : null, children);
}

export function facts(pairs) {
  return h(
    "dl",
    { class: "facts" },
    pairs.filter(Boolean).map(([name, value, note]) =>
      h("div", null, h("dt", null, name), h("dd", null, value), note ? h("dd", { class: "note" }, note) : null),
    ),
  );
}

export function badge(state) {
  return h("span", { class: `badge ${String(state).toLowerCase().replace(/[^a-z]/g, "")}` }, String(state));
}
