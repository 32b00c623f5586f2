// Charts, drawn from the trials in the page by what is chosen. Where this does not run their pictures stay.

const embedded = JSON.parse(document.getElementById("trials").textContent);
Object.assign(chosen, { x: "", y: "", parts: "", logx: "", logy: "", curve: "" }); // "": as each chart has it
const charts = [];

// --- what waits until the screen shows what a click changed at once

const LONGEST = 40; // milliseconds of pieces of work without a break: each costs a frame
const waiting = [];
let called = false;

function later(...work) {
  waiting.push(...work);
  if (called || !waiting.length) return;
  called = true;
  requestAnimationFrame(() => setTimeout(workOn));
}

function workOn() {
  const start = performance.now();
  try {
    while (waiting.length && performance.now() - start < LONGEST) waiting.shift()();
  } finally {
    called = waiting.length > 0;
    if (called) setTimeout(workOn);
  }
}

function finish() {
  while (waiting.length) waiting.shift()();
}

// --- numbers

const mean = (values) => values.reduce((sum, each) => sum + each, 0) / values.length;
const spread = (values) => {
  if (values.length < 2) return 0;
  const middle = mean(values);
  return Math.sqrt(values.reduce((sum, each) => sum + (each - middle) ** 2, 0) / (values.length - 1));
};
// A logarithmic axis has no place for what is not above 0.
const low = (values, deviation, log) => (log && mean(values) <= deviation ? Math.min(...values) : mean(values) - deviation);
const written = (value) => Number(value.toPrecision(4)).toLocaleString("en", { maximumSignificantDigits: 4 });

// What a chart shows: metrics that its trials have, whatever another chart's are.
function axes(own) {
  const metric = (name, usual) => (name in own.metrics ? name : usual);
  return { x: metric(chosen.x, own.across), y: metric(chosen.y, own.up) };
}

function partsOf(own) {
  const there = [...new Set(own.trials.parts)].sort((a, b) => a - b);
  if (chosen.parts === "all") return there;
  const asked = Number(chosen.parts);
  return there.includes(asked) ? [asked] : [own.parts];
}

// What is known of each trial that filters leave, with its place in the columns.
function trialsOf(own) {
  const parts = new Set(partsOf(own)), { trials } = own, left = [];
  for (let i = 0; i < trials.trial.length; i += 1) {
    const variant = own.variants[trials.variant[i]];
    const data = { dataset: own.dataset, method: variant.method, series: variant.label, parts: String(trials.parts[i]) };
    if (!parts.has(trials.parts[i]) || hidden(data) || off.network.has(trials.network[i])) continue;
    left.push([i, { method: variant.label, parts: trials.parts[i], seed: trials.seed[i], trial: trials.trial[i] }]);
  }
  return left;
}

function rowsOf(own, x, y) {
  const rows = [], { values } = own;
  for (const [i, trial] of trialsOf(own)) {
    const [across, up] = [values[x][i], values[y][i]];
    if (across === null || up === null || (chosen.logx && across <= 0) || (chosen.logy && up <= 0)) continue;
    rows.push({ kind: "trial", ...trial, x: across, y: up });
  }
  return rows;
}

function meansOf(rows) {
  const groups = new Map();
  for (const row of rows) {
    const key = JSON.stringify([row.method, row.parts]);
    if (!groups.has(key)) groups.set(key, []);
    groups.get(key).push(row);
  }
  return [...groups.values()].map((own) => {
    const [x, y] = ["x", "y"].map((name) => own.map((each) => each[name]));
    const [sx, sy] = [spread(x), spread(y)];
    return { kind: "mean", method: own[0].method, parts: own[0].parts, seeds: own.length, x: mean(x), y: mean(y),
      sx, sy, xlow: low(x, sx, chosen.logx), xhigh: mean(x) + sx, ylow: low(y, sy, chosen.logy), yhigh: mean(y) + sy, front: false };
  });
}

// The means that no other surpasses in one of the two without losing in the other; none where a metric has no better side.
function markFront(means, better) {
  if (!better.x || !better.y) return [];
  const sign = { x: better.x === "more" ? 1 : -1, y: better.y === "more" ? 1 : -1 };
  for (const own of means) {
    own.front = !means.some((each) => {
      if (each.parts !== own.parts) return false;
      const [dx, dy] = [sign.x * (each.x - own.x), sign.y * (each.y - own.y)];
      return dx >= 0 && dy >= 0 && dx + dy > 0;
    });
  }
  return means.filter((each) => each.front).map((each) => ({ kind: "front", parts: each.parts, x: each.x, y: each.y }));
}

let paper = false; // what is drawn is for print

function colours() {
  if (paper) return { ink: "#1d2430", line: "#d9dee5", soft: "#5b6472", dark: false };
  const style = getComputedStyle(document.body), root = getComputedStyle(document.documentElement);
  const dark = root.colorScheme === "dark" || (root.colorScheme.includes("dark") &&
    !document.documentElement.dataset.theme && window.matchMedia("(prefers-color-scheme: dark)").matches);
  return { ink: style.color, line: dark ? "#39414d" : "#d9dee5", soft: dark ? "#a0a9b8" : "#5b6472", dark };
}

const WHEEL = "wheel![event.ctrlKey || event.metaKey]"; // alone it scrolls the page

function specOf(own, x, y, shown, several, width, lines = false) {
  const { ink, soft, dark } = colours();
  const axis = (name, log) => ({ field: name, type: "quantitative", scale: log ? { type: "log", nice: false, padding: 14 } : { zero: false, padding: 10 },
    title: own.metrics[{ x, y }[name]].title });
  const across = axis("x", !lines && chosen.logx), up = axis("y", !lines && chosen.logy);
  const only = (kind) => [{ filter: `datum.kind === '${kind}'` }];
  const variants = own.variants.filter((each) => shown.has(each.label)), domain = variants.map((each) => each.label);
  const look = (range) => ({ field: "method", type: "nominal", scale: { domain, range }, legend: null });
  const colour = look(variants.map((each) => (dark ? each.dark : each.colour))), shape = look(variants.map((each) => each.shape));
  const whisker = (a, b, channel, one) => ({ transform: only("mean"), mark: { type: "rule", opacity: 0.7 },
    encoding: { [channel]: { ...one, field: a }, [`${channel}2`]: { field: b }, [channel === "x" ? "y" : "x"]: channel === "x" ? up : across, color: colour } });
  const isMean = "datum.kind === 'mean'", picked = "!length(picked) || indexof(picked, datum.method) >= 0";
  // One layer: where one has selections, the marks of the others feel no pointer.
  const points = { params: [{ name: "zoom", select: { type: "interval", zoom: WHEEL }, bind: "scales" }], transform: [{ filter: "datum.kind !== 'front'" }], mark: { type: "point", strokeWidth: 2 },
  encoding: { x: across, y: up, color: colour, fill: colour, shape,
    size: { condition: { test: isMean, value: 95 }, value: 22 },
    strokeWidth: { condition: { test: isMean, value: 2 }, value: 0 },
    fillOpacity: { condition: { test: `datum.front || !(${isMean})`, value: 1 }, value: 0 },
    opacity: { condition: [{ test: `(${picked}) && ${isMean}`, value: 1 }, { test: picked, value: 0.4 }], value: FAINT } } };
  const layer = [
    { transform: only("front"), mark: { type: "line", interpolate: "step-after", strokeDash: [5, 4], color: soft, strokeWidth: 1 },
      encoding: { x: across, y: up, order: { field: "x", type: "quantitative" } } },
    whisker("ylow", "yhigh", "y", up), whisker("xlow", "xhigh", "x", across),
    points,
  ];
  if (lines) {
    layer.splice(0, layer.length, { params: points.params, mark: { type: "line", strokeWidth: 1.5 },
      encoding: { x: across, y: up, color: colour, strokeDash: look(variants.map((each) => each.dash || [1, 0])), detail: { field: "trial" }, opacity: { condition: { test: picked, value: 0.8 }, value: 0.08 } } });
  }
  const room = width - 80, size = { width: several ? Math.max(160, room / several - 30) : room, height: 300 };
  return {
    data: { name: "points" }, params: [{ name: "picked", value: [] }], background: null,
    ...(several ? { facet: { column: { field: "parts", type: "ordinal", title: null, header: { labelExpr: "'P = ' + datum.value", labelColor: ink } } }, spec: { layer, ...size } } : { layer, ...size }),
    config: config(colours()),
  };
}

function config({ ink, line }) {
  return { aria: false, font: "system-ui, DejaVu Sans, sans-serif", view: { stroke: line }, legend: { labelColor: ink, labelFontSize: 12 },
    axis: { labelColor: ink, titleColor: ink, gridColor: line, domainColor: line, tickColor: line, labelFontSize: 12, titleFontSize: 12, titleFontWeight: "normal" } };
}

function tip(box, event, datum, own, x, y) {
  if (!datum || !datum.method) return say(box, event, null);
  const title = (name) => own.metrics[name].title;
  const value = (name, deviation) => written(datum[name]) + (deviation ? ` ± ${written(deviation)}` : "");
  const lines = [datum.method, `P = ${datum.parts}`, `${title(x)}: ${value("x", datum.sx)}`, `${title(y)}: ${value("y", datum.sy)}`];
  lines.push(datum.kind !== "mean" ? `seed ${datum.seed}, trial ${datum.trial}` : `mean ± sd of ${datum.seeds} trial${datum.seeds > 1 ? "s" : ""}`);
  return say(box, event, lines);
}

// Text next to the pointer; none hides it.
function say(box, event, lines) {
  box.hidden = !lines;
  if (!lines) return;
  box.replaceChildren(...lines.map((text) => Object.assign(document.createElement("div"), { textContent: text })));
  box.style.left = `${Math.min(event.clientX + 14, window.innerWidth - box.offsetWidth - 8)}px`;
  box.style.top = `${event.clientY + 14}px`;
}

const CURVES = ["Epoch", "Training time (s)"]; // what learning is shown against

function curvesOf(own) {
  const rows = [], { curves } = own, x = Number(chosen.curve || 0);
  for (const [i, trial] of trialsOf(own)) {
    curves[i][x].forEach((at, k) => {
      if (at !== null && curves[i][2][k] !== null) rows.push({ kind: "curve", ...trial, x: at, y: curves[i][2][k] });
    });
  }
  return rows;
}

async function drawCurves(chart) {
  const { own, said, plot } = chart, points = curvesOf(own);
  const titles = { x: CURVES[Number(chosen.curve || 0)], y: own.score };
  const named = { ...own, metrics: { x: { title: titles.x }, y: { title: titles.y } } };
  const several = new Set(points.map((each) => each.parts)).size;
  await render(chart, named, points, specOf(named, "x", "y", new Set(points.map((each) => each.method)), several > 1 ? several : 0,
    chart.figure.clientWidth, true), "x", "y");
  said.textContent = `${titles.y} by ${titles.x.toLowerCase()}: ${new Set(points.map((each) => each.trial)).size} trials.`;
  plot.setAttribute("aria-label", said.textContent);
}

async function draw(chart) {
  if (chart.curves) return drawCurves(chart);
  const { own, plot, said } = chart, { x, y } = axes(own);
  const rows = rowsOf(own, x, y), means = meansOf(rows);
  const front = markFront(means, { x: own.metrics[x].better, y: own.metrics[y].better });
  const points = [...front, ...means, ...(means.length < rows.length ? rows : [])];
  const several = new Set(means.map((each) => each.parts)).size;
  const spec = specOf(own, x, y, new Set(means.map((each) => each.method)), several > 1 ? several : 0, chart.figure.clientWidth);
  await render(chart, own, points, spec, x, y);
  const best = means.filter((each) => each.front).map((each) => each.method);
  said.textContent = `${own.metrics[y].title} against ${own.metrics[x].title}: ${means.length} methods` +
    (best.length ? `; on the front: ${[...new Set(best)].join(", ")}.` : ".");
  plot.setAttribute("aria-label", said.textContent);
}

// A view of a specification; `point` is called with the item under the pointer, or nothing.
function makeView(spec, container, point) {
  const view = new vegaKit.View(vegaKit.parse(vegaKit.compile(spec).spec, null, { ast: true }),
    { expr: vegaKit.expressionInterpreter, renderer: "svg", container, hover: true, logLevel: 1 });
  view.tooltip((handler, event, item) => point(event, item));
  view.addEventListener("mousemove", point);
  view.addEventListener("mouseout", (event) => point(event, null));
  return view;
}

async function render(chart, own, points, spec, x, y) {
  const { plot, box } = chart;
  chart.view?.finalize();
  const view = makeView(spec, plot, (event, item) => tip(box, event, item?.datum, own, x, y));
  chart.view = view;
  chart.points = points;
  const there = new Set(points.map((each) => each.method)), left = chart.own.variants.filter((each) => there.has(each.label));
  fillLegend(chart, left.map((style) => ({ label: style.label, drawn: chart.curves ? "line" : "point", style })), there, colours().dark);
  await view.data("points", points).signal("picked", [...chart.picked]).runAsync();
}

function drawNow(chart) {
  if (!chart.due) return;
  chart.due = false;
  chart.done = (chart.done || Promise.resolve()).then(() => draw(chart)).then(() => chart.figure.classList.add("live"));
}

function drawAll() {
  for (const chart of charts) chart.due = true;
  later(...charts.filter((each) => each.seen).map((each) => () => drawNow(each)));
}

// --- controls

function menu(label, key, options, figure) {
  const select = document.createElement("select"), holder = document.createElement("label");
  select.dataset.chart = key;
  for (const [value, text] of options) select.append(new Option(text, value));
  select.addEventListener("change", () => setChosen(key, select.value));
  holder.append(`${label} `, select);
  figure.append(holder);
}

function tickbox(label, key, figure) {
  const box = document.createElement("input"), holder = document.createElement("label");
  box.type = "checkbox";
  box.dataset.chart = key;
  box.addEventListener("change", () => setChosen(key, box.checked ? "1" : ""));
  holder.append(box, ` ${label}`);
  figure.append(holder);
}

function setChosen(key, value) {
  chosen[key] = value;
  showControls();
  drawAll();
  remember();
}

function showControls() {
  for (const { own, figure } of charts) {
    const { x, y } = axes(own), parts = partsOf(own);
    const shown = { x, y, parts: chosen.parts === "all" ? "all" : String(parts[0]), curve: chosen.curve || "0" };
    for (const each of all("[data-chart]", figure)) {
      if (each.type === "checkbox") each.checked = chosen[each.dataset.chart] === "1";
      else each.value = shown[each.dataset.chart];
    }
  }
}

function makeChart(figure) {
  const curves = "curvesOf" in figure.dataset, anchor = figure.dataset.curvesOf || figure.dataset.chartOf;
  const own = embedded.find((each) => each.anchor === anchor);
  if (!own || (curves ? !own.curves.some(([at]) => at.length) : !own.across || !own.up)) return;
  const controls = document.createElement("div"), plot = document.createElement("div");
  const legend = document.createElement("div"), box = document.createElement("div"), said = document.createElement("p");
  controls.className = "controls";
  plot.className = "chart";
  plot.setAttribute("role", "img");
  legend.className = "legend";
  box.className = "tip";
  box.hidden = true;
  said.className = "setting";
  said.setAttribute("aria-live", "polite");
  const metrics = Object.entries(own.metrics).map(([name, each]) => [name, each.title]);
  if (curves) {
    menu("Across", "curve", CURVES.map((text, number) => [String(number), text]), controls);
  } else {
    menu("Across", "x", metrics, controls);
    tickbox("log", "logx", controls);
    menu("Up", "y", metrics, controls);
    tickbox("log", "logy", controls);
  }
  const parts = [...new Set(own.trials.parts)].sort((a, b) => a - b);
  if (parts.length > 1) menu("P", "parts", [...parts.map((each) => [String(each), String(each)]), ["all", "all"]], controls);
  figure.prepend(controls, plot, legend, said, box);
  const chart = { own, figure, plot, legend, box, said, curves, picked: new Set(), seen: false, due: false };
  chart.shown = [chart]; // as a figure's panels
  charts.push(chart);
  new IntersectionObserver((entries) => {
    chart.seen = entries.some((each) => each.isIntersecting);
    if (chart.seen) drawNow(chart);
  }, { rootMargin: "300px" }).observe(figure);
}

// --- the address keeps what is chosen

function remember() {
  const said = new URLSearchParams();
  for (const [key, value] of Object.entries(chosen)) if (value) said.set(key, value);
  for (const [key, values] of Object.entries(off)) for (const value of values) said.append(`no-${key}`, value);
  const text = said.toString();
  if (text || location.hash.startsWith("#?")) history.replaceState(null, "", text ? `#?${text}` : "#");
}

function recall() {
  if (!location.hash.startsWith("#?")) return;
  const said = new URLSearchParams(location.hash.slice(2));
  for (const key of Object.keys(chosen)) chosen[key] = said.get(key) || "";
  for (const box of all("input[data-filter]")) {
    box.checked = !said.getAll(`no-${box.dataset.filter}`).includes(box.value);
  }
}

all("figure[data-chart-of],figure[data-curves-of]").forEach(makeChart);
recall();
showControls();
changed.push(() => { waiting.length = 0; }, drawAll, remember); // what waited is of an older choice
window.addEventListener("hashchange", () => { if (location.hash.startsWith("#?")) { recall(); showControls(); update(); } });
update();
window.dispatchEvent(new Event("hashchange")); // the charts have moved what the address names
