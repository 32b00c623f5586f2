"use strict";
// Filters, sorting, light and dark. Without this script the page shows everything and can be read as it is.

const off = { dataset: new Set(), method: new Set(), series: new Set(), parts: new Set(), network: new Set() };
const chosen = { baseline: "" }; // the row that all are compared with, "": the fastest that is shown
const changed = []; // called when what is shown has changed
const all = (selector, within = document) => [...within.querySelectorAll(selector)];

function hidden(data) {
  for (const key of ["dataset", "method", "series", "parts"]) {
    if (data[key] && off[key].has(data[key])) return true;
  }
  if (!data.network) return false;
  const own = JSON.parse(data.network);
  return own.length > 0 && own.every((name) => off.network.has(name));
}

function show() {
  for (const element of all("[data-dataset],[data-method],[data-series],[data-parts],[data-network]")) {
    element.classList.toggle("off", hidden(element.dataset));
  }
  all("figure.table").forEach(showTable);
  all("figure.table[data-profile]").forEach(weigh);
  showBaseline();
  all("figure.table.ranked").forEach(judge);
  all("th[aria-sort]").forEach((head) => sort(head, head.getAttribute("aria-sort")));
  all(".summary").forEach((each) => each.classList.toggle("bare", !each.querySelector("li:not(.off)")));
  const some = Object.values(off).some((values) => values.size);
  document.getElementById("reset").hidden = !some;
  document.getElementById("chosen").hidden = !some;
  document.getElementById("nothing").hidden = Boolean(document.querySelector("main section:not(.off)"));
}

// What stands below a subheading is of its number of parts; a heading is as wide as what is left of it.
function showTable(figure) {
  let below = null;
  for (const row of all("tbody tr", figure)) {
    if (row.classList.contains("sub")) {
      below = row;
      row.classList.toggle("bare", true);
    } else {
      row.classList.toggle("below", Boolean(below && below.classList.contains("off")));
      if (below && !gone(row)) below.classList.remove("bare");
    }
  }
  let next = 0;
  const columns = all("thead tr:last-child th[data-column]:not(.stub)", figure);
  for (const group of all("th.group", figure)) {
    group.dataset.span ||= group.colSpan;
    const own = columns.slice(next, (next += Number(group.dataset.span)));
    const left = own.filter((column) => !column.classList.contains("off")).length;
    group.classList.toggle("off", !left);
    if (left) group.colSpan = left;
  }
  const rows = all("tbody tr:not(.sub)", figure);
  const bare = rows.every(gone) || (columns.length > 0 && columns.every((each) => each.classList.contains("off")));
  figure.classList.toggle("empty", bare);
}

const gone = (row) => row.classList.contains("off") || row.classList.contains("below");

// Who is best of what is left: in each column, between two subheadings.
function judge(figure) {
  const columns = new Map(), base = placeOfBaseline(figure);
  let below = 0;
  for (const row of all("tbody tr", figure)) {
    if (row.classList.contains("sub")) below += 1;
    if (gone(row)) continue;
    for (const cell of all("td[data-rank],td[data-against]", row)) {
      const key = `${below} ${cell.cellIndex} ${cell.dataset.among || ""}`;
      if (!cell.classList.contains("off")) columns.set(key, [...(columns.get(key) || []), cell]);
    }
  }
  for (const cells of columns.values()) (cells[0].dataset.against ? sayDistance : markBest)(cells, base);
}

const rankOf = (cell) => Number(cell.dataset.rank);
const ranked = (cells) => cells.filter((cell) => "rank" in cell.dataset);

// As `mark_best` in table.py does it.
function markBest(cells) {
  const ranks = ranked(cells).map(rankOf), ties = (cell) => (cell.dataset.ties || "").split(" ");
  const best = ranked(cells).filter((cell) => ranks.every((rank) => rank >= rankOf(cell) || ties(cell).includes(String(rank))));
  for (const cell of ranked(cells)) cell.classList.toggle("best", best.length < ranks.length && best.includes(cell));
}

const textOf = (cell) => cell.querySelector(":scope > span:not(.mark)");

// Performance profiles of what is left, as `profiles` in results/censored.py has them.
function weigh(figure) {
  const most = Number(figure.dataset.profile), body = figure.querySelector("tbody");
  const rows = all("tr", body).filter((row) => !gone(row)), shares = new Map(rows.map((row) => [row, []]));
  const heads = all("th[data-dataset]", figure).filter((head) => !head.classList.contains("off"));
  for (const head of heads) {
    const cells = rows.map((row) => row.cells[Number(head.dataset.column) + 1]);
    const values = cells.map((cell) => ("value" in cell.dataset ? Number(cell.dataset.value) : Infinity));
    const best = Math.min(...values);
    if (best === Infinity) continue;
    values.forEach((value, i) => {
      shares.get(rows[i]).push((most - Math.min(value / best, most)) / (most - 1));
      if (value < Infinity) textOf(cells[i]).textContent = (value / best).toFixed(2);
    });
  }
  const mean = (values) => values.reduce((sum, each) => sum + each, 0) / values.length;
  for (const [row, own] of shares) {
    const without = own.length < 2 ? [] : own.map((_, left) => mean(own.filter((__, i) => i !== left)));
    textOf(row.cells[1]).textContent = own.length ? mean(own).toFixed(2) : "–";
    textOf(row.cells[2]).textContent = without.length ? `${Math.min(...without).toFixed(2)} to ${Math.max(...without).toFixed(2)}` : "–";
  }
}

// How far each is behind the fastest that is shown, and whether all others are significantly behind; or from the
// baseline, which has a place among the distances of a cell.
function sayDistance(cells, base) {
  const first = Math.min(...ranked(cells).map(rankOf)), at = base < 0 ? first : base;
  const distances = new Map(cells.map((cell) => [cell, cell.dataset.against.split("|")[at] || ""]));
  const sure = (said) => said.includes(", surely ");
  const others = cells.map((cell) => distances.get(cell)).filter((said) => said && said !== "=");
  const alone = others.length && others.every(sure);
  for (const [cell, said] of distances) {
    const own = said === "=" ? (base < 0 ? "fastest" : "1 × (baseline)") : base < 0 ? said.split(", ")[0] : said || "no common seed";
    textOf(cell).textContent = own;
    cell.classList.toggle("missing", own === "n/a");
    if (!cell.querySelector("small")) cell.prepend(document.createElement("small"), " ");
    const certain = said === "=" ? alone || base >= 0 : !said || sure(said);
    cell.querySelector("small").textContent = certain ? "" : "not significant";
  }
}

// --- the baseline

// The place of the baseline among the distances of a table's cells, whether it is shown or not; -1 where it has none.
function placeOfBaseline(figure) {
  const rows = all("tbody tr[data-name]", figure), own = rows.find((row) => row.dataset.name === chosen.baseline);
  const place = own ? own.querySelector("[data-against]").dataset.against.split("|").indexOf("=") : -1;
  if (rows.length) {
    const head = figure.querySelector(`th[data-column="${rows[0].querySelector("[data-against]").cellIndex - 1}"]`);
    head.dataset.usual ||= head.textContent;
    (head.querySelector("button") || head).textContent = own ? `Against ${chosen.baseline}` : head.dataset.usual;
    head.classList.toggle("long", Boolean(own));
  }
  return place;
}

function showBaseline() {
  const select = document.getElementById("baseline");
  if (!select || ![...select.options].some((each) => each.value === chosen.baseline)) chosen.baseline = "";
  if (select) select.value = chosen.baseline;
  document.getElementById("against").hidden = !chosen.baseline;
}

function makeBaseline() {
  const names = new Set();
  for (const figure of all("figure.table")) {
    let parts = "";
    for (const row of all("tbody tr", figure)) {
      parts = row.dataset.parts || parts;
      if (row.querySelector("[data-against]")) names.add(row.dataset.name = `${row.dataset.series}, P = ${parts}`);
    }
  }
  if (names.size < 2) return;
  const select = Object.assign(document.createElement("select"), { id: "baseline" }), label = document.createElement("label");
  select.append(new Option("(fastest)", ""), ...[...names].map((name) => new Option(name, name)));
  select.addEventListener("change", () => {
    chosen.baseline = select.value;
    update();
  });
  label.className = "controls";
  label.append("Baseline ", select);
  document.getElementById("reset").before(label);
}

// --- sorting

const leading = /^(?:at (?:least|most) )?[<>≤≥~]?\s*([+\-−]?[\d,]*\.?\d+(?:e[+-]?\d+)?)/i;

function value(row, column) {
  const cell = column === "label" ? row.cells[0] : row.cells[Number(column) + 1];
  const text = (textOf(cell) || cell).textContent.trim();
  if (cell.classList.contains("missing") || !text) return null;
  const found = column === "label" ? null : leading.exec(text);
  return found ? Number(found[1].replace(/,/g, "").replace("−", "-")) : text;
}

function compare(a, b) {
  if (typeof a === "number" && typeof b === "number") return a - b;
  return String(a).localeCompare(String(b), "en", { numeric: true });
}

function sort(head, way) {
  const table = head.closest("table"), body = table.tBodies[0], column = head.dataset.column;
  all("th[aria-sort]", table).forEach((each) => each.removeAttribute("aria-sort"));
  if (way) head.setAttribute("aria-sort", way);
  const groups = [[]];
  for (const row of all("tr", body).sort((a, b) => a.dataset.place - b.dataset.place)) {
    if (row.classList.contains("sub")) groups.push([row]);
    else groups.at(-1).push(row);
  }
  const sign = way === "descending" ? -1 : 1;
  const order = (a, b) => {
    const [x, y] = [value(a, column), value(b, column)];
    if (x === null || y === null) return (x === null) - (y === null);
    return sign * compare(x, y);
  };
  for (const group of groups) {
    const heading = group.filter((row) => row.classList.contains("sub"));
    const rows = group.slice(heading.length);
    body.append(...heading, ...(way ? rows.sort(order) : rows));
  }
}

function makeSortable(table) {
  all("tbody tr", table).forEach((row, place) => { row.dataset.place = place; });
  if (all("tbody tr:not(.sub)", table).length < 2) return;
  for (const head of all("th[data-column]", table)) {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...head.childNodes);
    head.append(button);
    const ways = [null, "ascending", "descending"];
    button.addEventListener("click", () => {
      sort(head, ways[(ways.indexOf(head.getAttribute("aria-sort")) + 1) % 3]);
    });
  }
}

// --- what fits

// A table that is no wider than its place keeps its head in sight.
const measure = new ResizeObserver((entries) => {
  for (const scroll of new Set(entries.map(({ target }) => target.closest(".scroll")))) {
    scroll.parentElement.classList.toggle("fits", scroll.firstElementChild.offsetWidth <= scroll.clientWidth);
  }
});

// Where a phone shows the first columns only, a button has the others.
function makeMore(figure) {
  if (all("thead th[data-column]:not(.stub)", figure).length < 4) return;
  const button = Object.assign(document.createElement("button"), { type: "button", className: "more", textContent: "All columns" });
  button.setAttribute("aria-pressed", "false");
  button.addEventListener("click", () => {
    button.setAttribute("aria-pressed", String(figure.classList.toggle("all")));
  });
  figure.append(button);
}

// --- filters

function choose(box) {
  if (box.dataset.filter === "method" && box.classList.contains("several")) {
    for (const under of variants(box)) under.checked = box.checked;
  }
  update();
}

function variants(box) {
  const found = [];
  let next = box.parentElement.nextElementSibling;
  while (next && next.classList.contains("under")) {
    found.push(next.querySelector("input"));
    next = next.nextElementSibling;
  }
  return found;
}

// A method is shown while one of its variants is; its box says whether all are.
function update() {
  for (const box of all("input.several")) {
    const own = variants(box), chosen = own.filter((each) => each.checked).length;
    box.checked = chosen > 0;
    box.indeterminate = chosen > 0 && chosen < own.length;
  }
  for (const key of Object.keys(off)) {
    off[key] = new Set(all(`input[data-filter="${key}"]`).filter((box) => !box.checked).map((box) => box.value));
  }
  for (const menu of all(".menu:has([data-all])")) {
    const boxes = all("input", menu).filter((box) => !box.classList.contains("several"));
    const chosen = boxes.filter((box) => box.checked).length;
    menu.querySelector(".count").textContent = chosen < boxes.length ? `${chosen}/${boxes.length}` : "";
    menu.classList.toggle("some", chosen < boxes.length);
  }
  show();
  changed.forEach((each) => each());
}

function makeFilters() {
  for (const box of all("input[data-filter]")) {
    if (variants(box).length && box.dataset.filter === "method") box.classList.add("several");
    box.checked = true;
    box.addEventListener("change", () => choose(box));
  }
  const set = (within, checked) => {
    all("input[data-filter]", within).forEach((box) => { box.checked = checked; });
    update();
  };
  for (const menu of all(".menu:has([data-all])")) {
    menu.querySelector("[data-all]").addEventListener("click", () => set(menu, true));
    menu.querySelector("[data-none]").addEventListener("click", () => set(menu, false));
  }
  document.getElementById("reset").addEventListener("click", () => set(document, true));
  const close = (except) => all(".menu[open]").forEach((menu) => { if (menu !== except) menu.open = false; });
  document.addEventListener("click", (event) => close(event.target.closest(".menu")));
  document.addEventListener("keydown", (event) => { if (event.key === "Escape") close(null); });
}

// --- other networks

// What has a list of networks is shown on those alone; "measured" is where the trials ran.
function makeNetworks() {
  const select = document.getElementById("on");
  if (!select) return;
  const choose = () => {
    for (const each of all("[data-on]")) each.hidden = !each.dataset.on.split(" ").includes(select.value);
    document.getElementById("projected").hidden = select.value === "measured";
    select.classList.toggle("some", select.value !== "measured");
  };
  select.addEventListener("change", () => { choose(); update(); });
  choose(); // a browser may remember what was chosen
}

// --- what is folded

function makeFolds() {
  const folds = all("details.fold"), button = document.getElementById("unfold");
  const set = (open) => {
    folds.forEach((each) => { each.open = open; });
    button.setAttribute("aria-pressed", String(open));
    button.textContent = open ? "Close all" : "Open all";
  };
  button.addEventListener("click", () => set(button.getAttribute("aria-pressed") === "false"));
  const find = () => {
    const target = document.getElementById(decodeURIComponent(location.hash.slice(1)));
    if (!target) return;
    for (let each = target; each; each = each.parentElement) if (each.matches("details.fold")) each.open = true;
    target.scrollIntoView();
  };
  // A link to what is open already is no change of the address.
  all("nav a").forEach((link) => link.addEventListener("click", () => setTimeout(find)));
  window.addEventListener("hashchange", find);
  window.addEventListener("beforeprint", () => set(true));
  find();
}

// --- light and dark

function makeSwitch() {
  const root = document.documentElement, dark = window.matchMedia("(prefers-color-scheme: dark)");
  try { root.dataset.theme = localStorage.getItem("harness-theme") || ""; } catch { root.dataset.theme = ""; }
  dark.addEventListener("change", update);
  document.getElementById("theme").addEventListener("click", () => {
    const now = root.dataset.theme || (dark.matches ? "dark" : "light");
    root.dataset.theme = now === "dark" ? "light" : "dark";
    try { localStorage.setItem("harness-theme", root.dataset.theme); } catch { /* a page may not keep it */ }
    update();
  });
}

makeFilters();
makeBaseline();
makeNetworks();
makeFolds();
makeSwitch();
all("figure.table table").forEach(makeSortable);
all("figure.table table, figure.table .scroll").forEach((each) => measure.observe(each));
all(".columns figure.table").forEach(makeMore);
document.querySelector(".bar").hidden = false;
