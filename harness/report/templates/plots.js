// Figures, drawn from the data next to them when they come near the window, of what the filters leave.

const plots = [];
const NARROWEST = { plane: 290, bars: 560, stack: 480, cells: 180 }; // pixels of a panel next to others
const NAMES = 230; // pixels of names next to stacks
const BAND = 0.14, FAINT = 0.12;

// --- what is left

const partsText = (parts) => (parts === undefined || parts === null ? "" : String(parts));

// A layer's rows: its columns, of which one value may stand for all.
function rowsIn(own, { kind, band, bare, count, columns }, layer) {
  return Array.from({ length: count }, (_, i) => {
    const row = { kind, band: Boolean(band), bare, layer, x: null, y: null, low: null, high: null };
    for (const [name, values] of Object.entries(columns)) row[name] = Array.isArray(values) ? values[i] : values;
    const { label, method } = own.series[row.series];
    return { ...row, series: label, method, key: label, look: own.styles[row.style], line: `${layer} ${label} ${row.style} ${row.network}` };
  });
}

// A panel with the rows that are left; nothing where none is.
function panelLeft(own, panel) {
  if (hidden({ parts: partsText(panel.parts) })) return null;
  panel.all ||= panel.layers.flatMap((layer, place) => rowsIn(own, layer, place));
  const rows = panel.all.filter(({ method, series, parts, network, who }) =>
    !hidden({ method, series, parts: partsText(parts) }) && !off.network.has(network) && !off.series.has(who));
  return panel.all.length && !rows.length ? null : { ...panel, rows, names: [...new Set(rows.map((row) => row.series))], whole: panel };
}

// --- axes

const present = (values) => (values || []).filter((each) => each !== undefined && each !== null);

function valuesAlong(panel, name) {
  const along = name === "x" ? ["x", "x2"] : ["y", "low", "high"];
  return [...panel.rows.flatMap((row) => present(along.map((key) => row[key]))), ...(panel.guides || []).flatMap((guide) => guide[name] || [])];
}

// Where an axis begins and ends for all that panels show on it.
function domainOf(panels, name) {
  const axis = panels[0][name], all = panels.flatMap((panel) => valuesAlong(panel, name)).filter((each) => !axis.log || each > 0);
  const [low, high] = all.length ? [Math.min(...all), Math.max(...all)] : [0.1, 1];
  const begins = axis.zero && low >= 0, base = begins ? 0 : Math.max(low, axis.low ?? low);
  const room = axis.log ? Math.max((high / low) ** 0.05, 1.05) : 0.05 * (high - base) || 0.1 * Math.abs(high) || 1;
  const ends = axis.log ? [low / room, high * room] : [begins ? 0 : low - room, high + room];
  return [axis.low ?? ends[0], axis.high ?? ends[1]];
}

// What filters change is a parameter, so that a panel that is there is given new values, which takes a tenth of drawing another.
function scaleOf(axis, name) {
  return { domain: { expr: `${name}s` }, nice: false, ...(axis.log ? { type: "log", base: axis.base } : { zero: false }) };
}

// Ticks with names of their own are looked up: a name is data, no part of an expression.
function axisOf(axis, names, across) {
  const own = { title: axis.title || null, labelOverlap: true, ...(across ? {} : { titlePadding: 6 }) };
  if (axis.ticks) return { ...own, values: axis.ticks.map(([place]) => place), labelExpr: `${names}[datum.value]` };
  if (axis.log) return { ...own, format: "~g", tickCount: 5 };
  const count = across ? { expr: "max(2, min(5, floor(width / 45)))" } : 5; // names of stacks may leave little room
  return { ...own, tickCount: count, ...(axis.whole ? { tickMinStep: 1, format: ",d" } : { format: ",~r" }) };
}

const namesOf = (ticks) => Object.fromEntries((ticks || []).map(([place, text]) => [place, text.includes("\n") ? text.split("\n") : text]));

// --- rows and layers

const literal = (field) => ({ field, type: "nominal", scale: null, legend: null });
const bright = (base) => ({ condition: { test: "!length(picked) || indexof(picked, datum.key) >= 0", value: base }, value: FAINT * base });
const only = (test) => [{ filter: test }];

// Areas have no dashes: those of a dashed style are paler where another has their colour.
function isSecond(own, { colour, dash }, dark) {
  return dash.length > 0 && own.entries.filter((each) => lookOf(each.style, dark).colour === colour).length > 1;
}

function lookOf(style, dark) {
  return { colour: dark ? style.dark : style.colour, dash: style.dash || [], shape: style.shape || "circle" };
}

// Points that no other surpasses, less being better across and more up.
function frontOf(points) {
  const beaten = (own) => points.some((each) => each.x <= own.x && each.y >= own.y && (each.x < own.x || each.y > own.y));
  return points.filter((each) => !beaten(each)).sort((a, b) => a.x - b.x || a.y - b.y);
}

function planeRows(own, panel, dark) {
  const rows = [], counts = new Map(), log = { x: panel.x.log, y: panel.y.log };
  const out = (name, value) => value !== null && log[name] && value <= 0;
  for (const { line } of panel.rows) counts.set(line, { all: (counts.get(line)?.all || 0) + 1, next: 0 });
  for (const row of panel.rows) {
    const { kind, x, y, low } = row, count = counts.get(row.line), i = count.next;
    count.next += 1;
    if (out("x", x) || out("y", y) || (x === null && y === null)) continue;
    const whole = kind === "line" || kind === "steps", every = Math.max(1, Math.floor(count.all / 12));
    rows.push({ ...row, ...lookOf(row.look, dark), i, low: log.y && low !== null && low <= 0 ? y : low,
      hit: !["across", "up", "hist"].includes(kind), seen: kind === "points" || (whole && !row.bare && i % every === 0), filled: true });
  }
  (panel.guides || []).forEach(({ x, y, style }, place) => (x || y).forEach((_, i) => {
    rows.push({ kind: x && y ? "line" : x ? "up" : "across", key: "", line: `guide ${place}`, i, x: x ? x[i] : null, y: y ? y[i] : null, low: null, high: null, ...lookOf(style, dark) });
  }));
  if (panel.front) {
    const points = rows.filter((each) => each.kind === "points"), best = frontOf(points);
    for (const each of points) each.filled = best.includes(each);
    best.forEach(({ x, y }, i) => rows.push({ kind: "front", key: "front", line: "front", i, x, y, low: null, high: null, ...lookOf(panel.front, dark) }));
  }
  return rows;
}

function planeLayers(x, y) {
  const line = (test, more) => ({ transform: only(test), mark: { type: "line", strokeWidth: 1.7, clip: true, ...more },
    encoding: { x, y, stroke: literal("colour"), strokeDash: literal("dash"), detail: { field: "line" }, order: { field: "i" }, opacity: bright(1) } });
  const rule = (test, place) => ({ transform: only(test), mark: { type: "rule", clip: true },
    encoding: { ...place, stroke: literal("colour"), strokeDash: literal("dash"), opacity: bright(1) } });
  return [
    { transform: only("datum.band"), mark: { type: "area", clip: true },
      encoding: { x, y: { ...y, field: "low" }, y2: { field: "high" }, fill: literal("colour"), detail: { field: "line" }, order: { field: "i" }, opacity: bright(BAND) } },
    { transform: only("datum.kind === 'hist'"), mark: { type: "rect", clip: true, stroke: null },
      encoding: { x, x2: { field: "x2" }, y, y2: { datum: 0 }, fill: literal("colour"), opacity: bright(1) } },
    rule("datum.kind === 'across'", { y }), rule("datum.kind === 'up'", { x }),
    line("datum.kind === 'front'", { interpolate: "step-after", strokeWidth: 1 }),
    line("datum.kind === 'line'", {}), line("datum.kind === 'steps'", { interpolate: "step-after" }),
    { transform: only("datum.low !== null && datum.high !== null && !datum.band"), mark: { type: "rule", strokeWidth: 1.2, clip: true },
      encoding: { x, y: { ...y, field: "low" }, y2: { field: "high" }, stroke: literal("colour"), opacity: bright(0.8) } },
    // The one layer that feels the pointer, where points without a marker are, too.
    { params: [{ name: "zoom", select: { type: "interval", zoom: WHEEL }, bind: "scales" }],
      transform: only("datum.hit"), mark: { type: "point", clip: true },
      encoding: { x, y, shape: literal("shape"), stroke: literal("colour"), fill: literal("colour"),
        size: { condition: { test: "datum.seen", value: 44 }, value: 90 }, strokeWidth: { value: 1.6 },
        fillOpacity: { condition: { test: "datum.seen && datum.filled", value: 1 }, value: 0 },
        opacity: { condition: [{ test: "!datum.seen", value: 0 }, { test: "!length(picked) || indexof(picked, datum.key) >= 0", value: 1 }], value: FAINT } } },
  ];
}

// A group of bars where each shown number of parts stands, as wide as the most that stand together need.
function barRows(own, panel, dark) {
  const groups = [...new Set(panel.rows.map((row) => row.x))].sort((a, b) => a - b).map((x) => panel.rows.filter((row) => row.x === x)), rows = [];
  const most = Math.max(1, ...groups.map((each) => each.length)), few = groups.length <= 4 && panel.parts === undefined;
  const slot = few ? Math.min(0.84 / most, 0.21) : 0.84 / most, names = groups.map(([{ x }]) => `${panel.prefix || ""}${x}`);
  groups.forEach((group, place) => group.forEach((row, i) => {
    const start = place - (slot * group.length) / 2 + i * slot, look = lookOf(row.look, dark);
    rows.push({ ...row, ...look, kind: row.y === null ? "none" : "bar", group: names[place],
      start: start + 0.04 * slot, end: start + 0.96 * slot, middle: start + slot / 2, second: isSecond(own, look, dark) });
  }));
  for (const { y, style } of panel.guides || []) rows.push({ kind: "base", key: "", y: y[0], ...lookOf(style, dark) });
  return { rows, names };
}

function barLayers(y, names, title, soft) {
  const x = { field: "middle", type: "quantitative", scale: { domain: [-0.5, Math.max(0.5, names.length - 0.5)], nice: false, zero: false },
    axis: { ...axisOf({ ticks: names.map((name, i) => [i, name]) }, "across", true), grid: false, ticks: false, title } };
  const bar = { x: { ...x, field: "start" }, x2: { field: "end" }, y, y2: { datum: 0 } };
  return [
    { transform: only("datum.kind === 'bar'"), mark: { type: "rect" }, encoding: { ...bar, fill: literal("colour"), stroke: literal("colour"),
      fillOpacity: { condition: { test: "datum.second", value: 0.45 }, value: 1 }, opacity: bright(1) } },
    { transform: only("datum.kind === 'bar' && datum.low !== null"), mark: { type: "rule", color: soft, strokeWidth: 1.2 },
      encoding: { x, y: { ...y, field: "low" }, y2: { field: "high" }, opacity: bright(1) } },
    { transform: only("datum.kind === 'none'"), mark: { type: "text", text: "n/a", angle: 270, align: "left", dx: 4, baseline: "middle", color: soft, fontSize: 11 },
      encoding: { x, y: { datum: 0 }, opacity: bright(1) } },
    { transform: only("datum.kind === 'base'"), mark: { type: "rule" }, encoding: { y, stroke: literal("colour"), strokeDash: literal("dash") } },
  ];
}

function stackRows(own, panel, dark) {
  const rows = [];
  panel.names.forEach((series, place) => {
    const pieces = panel.rows.filter((row) => row.series === series && row.x !== null), total = pieces.reduce((sum, row) => sum + row.x, 0);
    const scale = panel.shares && total ? 100 / total : 1;
    let end = 0;
    for (const row of pieces) {
      const start = end;
      end += row.x * scale;
      rows.push({ ...row, kind: "piece", key: row.component, value: row.x, share: total ? (100 * row.x) / total : 0, start, end, top: place - 0.37, bottom: place + 0.37,
        colour: own.components[row.component][dark ? 1 : 0] });
    }
    if (!panel.shares || !pieces.length) rows.push({ kind: "total", key: "", end, middle: place, text: pieces.length ? written(total) : "n/a" });
  });
  return rows;
}

// A name in lines of so many letters; of a long one the end stays, which often distinguishes it from others.
function wrapped(name, letters) {
  const lines = [""];
  for (const word of name.split(" ")) {
    if (lines.at(-1) && lines.at(-1).length + word.length >= letters) lines.push("");
    lines[lines.length - 1] += (lines.at(-1) ? " " : "") + word;
  }
  const left = lines.length > 3 ? [...lines.slice(0, 2), `… ${lines.at(-1)}`] : lines;
  return left;
}

function stackLayers(rows, panel, names, ink) {
  const longest = Math.max(0, ...rows.map((each) => each.end));
  const x = { type: "quantitative", scale: { domain: [0, panel.shares ? 100 : 1.18 * longest || 1], nice: false }, axis: axisOf(panel.x, "across", true) };
  const y = { type: "quantitative", scale: { domain: [names.length - 0.5, -0.5], nice: false, zero: false },
    axis: { ...axisOf({ ticks: names.map((name, i) => [i, name]) }, "up", false), grid: false, ticks: false, domain: false, labelLimit: NAMES, labelOverlap: false,
      labelOffset: { condition: [2, 3].map((lines) => ({ test: `length(up[datum.value]) === ${lines}`, value: 7 - 7 * lines })), value: 0 } } };
  return [
    { transform: only("datum.kind === 'piece'"), mark: { type: "rect" },
      encoding: { x: { ...x, field: "start" }, x2: { field: "end" }, y: { ...y, field: "top" }, y2: { field: "bottom" }, fill: literal("colour"), opacity: bright(1) } },
    { transform: only("datum.kind === 'total'"), mark: { type: "text", align: "left", dx: 4, baseline: "middle", color: ink, fontSize: 11 },
      encoding: { x: { ...x, field: "end" }, y: { ...y, field: "middle" }, text: { field: "text" } } },
  ];
}

// The colour of a value, between the stops of a scale, and whether what is written on it must be light.
function shade(scale, value) {
  const at = scale.log ? Math.log(value / scale.low) / Math.log(scale.high / scale.low) : (value - scale.low) / (scale.high - scale.low);
  const place = Math.min(1, Math.max(0, at || 0)) * (scale.range.length - 1), i = Math.min(Math.floor(place), scale.range.length - 2);
  const [from, to] = [scale.range[i], scale.range[i + 1]].map((each) => [1, 3, 5].map((k) => parseInt(each.slice(k, k + 2), 16)));
  return { colour: `rgb(${from.map((each, k) => Math.round(each + (place - i) * (to[k] - each))).join(",")})`, ink: at < 0.55 ? "#ffffff" : "#000000" };
}

function cellRows(own, panel, soft) {
  return panel.rows.map((row) => ({ ...row, kind: row.value ? "cell" : "nothing", from: row.y, to: row.x,
    left: row.x - 0.5, right: row.x + 0.5, top: row.y - 0.5, bottom: row.y + 0.5,
    text: row.value.toLocaleString("en", { maximumSignificantDigits: 2 }), ...(row.value ? shade(own.colour, row.value) : { colour: "transparent", ink: soft }) }));
}

function cellLayers(panel) {
  const axis = (name) => ({ type: "quantitative", scale: scaleOf(panel[name], name),
    axis: { ...axisOf(panel[name], name === "x" ? "across" : "up", name === "x"), grid: false, ticks: false } });
  const [x, y] = [axis("x"), axis("y")];
  const layers = [{ mark: { type: "rect" }, encoding: { x: { ...x, field: "left" }, x2: { field: "right" }, y: { ...y, field: "top" }, y2: { field: "bottom" }, fill: literal("colour") } }];
  if (panel.parts <= 8) {
    layers.push({ mark: { type: "text", baseline: "middle", fontSize: 11 }, encoding: { x: { ...x, field: "x" }, y: { ...y, field: "y" }, text: { field: "text" }, fill: literal("ink") } });
  }
  return layers;
}

// --- drawing

// Rows of data, the specification of one panel, and the values of its parameters; `domains` by axis.
function panelSpec(own, panel, domains, size, theme) {
  const { ink, soft, dark } = theme, names = { across: namesOf(panel.x.ticks), up: namesOf(panel.y.ticks) };
  const axis = (name) => ({ field: name, type: "quantitative", scale: scaleOf(panel[name], name), axis: axisOf(panel[name], name === "x" ? "across" : "up", name === "x") });
  let rows, layer;
  if (panel.kind === "bars") {
    const bars = barRows(own, panel, dark);
    rows = bars.rows;
    names.across = Object.fromEntries(bars.names.map((name, i) => [i, name]));
    layer = barLayers(axis("y"), bars.names, panel.prefix ? null : panel.x.title, soft);
  } else if (panel.kind === "stack") {
    rows = stackRows(own, panel, dark);
    names.up = Object.fromEntries(panel.names.map((name, i) => [i, wrapped(name, NAMES / 7.5)]));
    layer = stackLayers(rows, panel, panel.names, ink);
  } else if (panel.kind === "cells") {
    rows = cellRows(own, panel, soft);
    layer = cellLayers(panel);
  } else {
    rows = planeRows(own, panel, dark);
    layer = planeLayers(axis("x"), axis("y"));
  }
  const values = { ...names, xs: domains.x, ys: domains.y }, params = ["picked", ...Object.keys(values)].map((name) => ({ name, value: [] }));
  return { rows, values, spec: { data: { name: "points" }, params, background: null, ...size, autosize: { type: "fit", contains: "padding" }, layer, config: config(theme) } };
}

function linesOf(own, panel, datum) {
  const named = datum.who && datum.who !== datum.series ? [datum.series, datum.who] : [datum.series];
  const place = [datum.parts !== undefined && datum.parts !== null ? `P = ${datum.parts}` : "", datum.network ? `network ${datum.network}` : ""].filter(Boolean).join(", ");
  const lines = [...named, ...(place ? [place] : [])], plain = (axis) => axis.title.replace(/, log scale$/, "");
  if (datum.kind === "piece") {
    const [first] = own.rows[0];
    lines.push(`${datum.component}: ${written(datum.value)}, ${written(datum.share)} % of the bar`, plain(first.x));
  } else if (datum.kind === "cell" || datum.kind === "nothing") {
    lines.push(`rank ${datum.from} to rank ${datum.to}: ${datum.value ? written(datum.value) : "nothing"}`, own.colour.title);
  } else if (datum.kind === "hist") {
    lines.splice(0, lines.length, `${written(datum.x)} to ${written(datum.x2)}: ${datum.y}`, plain(panel.y));
  } else {
    if (panel.kind === "plane" && datum.x !== null) {
      const named = (panel.x.ticks || []).find(([place]) => place === datum.x);
      lines.push(`${plain(panel.x)}: ${named ? named[1].replace("\n", " ") : written(datum.x)}`);
    }
    if (panel.kind === "bars" && !panel.prefix) lines.push(`${plain(panel.x)} ${datum.group}`);
    lines.push(`${plain(panel.y)}: ${datum.y === null ? "n/a" : written(datum.y)}${interval(datum)}`);
  }
  if (datum.seeds) lines.push(datum.seeds > 1 ? `mean of ${datum.seeds} seeds` : "one seed");
  return lines;
}

function interval({ y, low, high, sd }) {
  if (low === null || high === null || low === undefined || low === high) return "";
  return sd ? ` ± ${written(high - y)}` : ` [${written(low)}, ${written(high)}]`;
}

function sizeOf(plot, panel, place) {
  const wide = place.clientWidth, count = panel.names.length, alone = plot.shown.length === 1;
  const longest = Math.max(1, ...panel.names.map((name) => wrapped(name, NAMES / 7.5).length));
  const heights = { plane: alone ? 330 : 260, bars: 250, stack: 56 + (6 + 14 * longest) * Math.max(count, 2), cells: Math.min(wide, 300) };
  return { width: panel.kind === "cells" ? Math.min(wide, 300) : wide, height: heights[panel.kind] * (paper ? 0.55 : 1) };
}

// Axes that a reader has moved are no longer those of the parameters.
const moved = (view) => ["x", "y"].some((name) => String(view.scale(name).domain()) !== String(view.signal(`${name}s`)));

// The view that is there is used again while only data and parameters differ.
function drawPanel(plot, held, { panel, rows, spec, values }) {
  const key = JSON.stringify(spec);
  if (held.key !== key || (panel.kind === "plane" && moved(held.view))) {
    held.view?.finalize();
    held.place.replaceChildren();
    held.view = makeView(spec, held.place, (event, item) => {
      say(plot.box, event, item?.datum && item.datum.series ? linesOf(plot.own, panel, item.datum) : null);
    });
    held.key = key;
  }
  for (const [name, value] of Object.entries(values)) held.view.signal(name, value);
  held.view.data("points", rows).signal("picked", [...plot.picked]).run();
}

// The panels that are left are laid out and the legend is made; the panels follow one by one, those in the window first.
function drawPlot(plot) {
  const { own, figure, place } = plot, theme = colours();
  const given = own.colour ? [own.rows.flat()] : own.rows; // matrices stand as they fit
  const rows = given.map((row) => row.map((each) => panelLeft(own, each)).filter(Boolean)).filter((row) => row.length);
  for (const panel of rows.flat()) if (!plot.held.has(panel.whole)) plot.held.set(panel.whole, { place: document.createElement("div"), view: null, key: "" });
  const heldOf = (panel) => plot.held.get(panel.whole);
  plot.shown = rows.flat().map(heldOf);
  figure.classList.toggle("empty", !rows.length);
  const room = place.clientWidth, order = [...plot.held.values()];
  const laid = JSON.stringify([room, rows.map((row) => row.map((panel) => order.indexOf(heldOf(panel))))]);
  if (plot.laid !== laid) place.replaceChildren(...rows.map((row) => makeRow(row, room, heldOf))); // else the browser has nothing to lay out
  plot.laid = laid;
  const together = (share, row, panel) => (share === "all" ? rows.flat() : share === "row" ? row : [panel]);
  const made = rows.flatMap((row) => row.map((panel) => {
    const domains = panel.kind === "cells" ? { x: domainOf([panel], "x"), y: domainOf([panel], "y") }
      : { x: domainOf(together(own.share[0], row, panel), "x"), y: domainOf(together(own.share[1], row, panel), "y") };
    return { panel, ...panelSpec(own, panel, domains, sizeOf(plot, panel, heldOf(panel).place), theme) };
  }));
  const far = new Map(made.map((each) => [each, outside(heldOf(each.panel).place)])); // before the legend: what is measured is not yet changed
  plot.points = made.flatMap((each) => each.rows);
  plot.left = made.length;
  drawLegend(plot, theme.dark);
  later(...made.sort((a, b) => far.get(a) - far.get(b)).map((each) => () => {
    drawPanel(plot, heldOf(each.panel), each);
    plot.left -= 1;
    if (!plot.left) figure.dataset.plotted = "";
  }));
}

// How many pixels of scrolling away something is.
function outside(element) {
  const { top, bottom } = element.getBoundingClientRect();
  return Math.max(0, top - window.innerHeight, -bottom);
}

// Panels side by side as far as there is room, as many in each line.
function makeRow(row, room, heldOf) {
  const holder = document.createElement("div"), fit = Math.max(1, Math.floor(room / NARROWEST[row[0].kind]));
  const lines = Math.ceil(row.length / fit), columns = row[0].kind === "cells" ? fit : Math.ceil(row.length / lines);
  holder.className = "panels";
  holder.style.gridTemplateColumns = `repeat(${columns}, minmax(0, 1fr))`;
  for (const panel of row) {
    const around = document.createElement("div");
    if (panel.heading) around.append(Object.assign(document.createElement("p"), { className: "heading", textContent: panel.heading.replace("\n", ", ") }));
    around.append(heldOf(panel).place);
    holder.append(around);
  }
  return holder;
}

// --- the legend: a click leaves one bright

function svg(name, attributes) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  return element;
}

function swatchOf(own, entry, dark) {
  const look = lookOf(entry.style, dark), { colour, dash, shape } = look, area = entry.drawn === "area";
  const made = svg("svg", { viewBox: "0 0 26 12", width: area ? 14 : 26, height: 12, "aria-hidden": "true" });
  if (area) made.append(svg("rect", { x: 1, y: 1, width: 24, height: 10, fill: colour, stroke: colour, "fill-opacity": isSecond(own, look, dark) ? 0.45 : 1 }));
  if (entry.drawn === "line" || entry.drawn === "path") made.append(svg("line", { x1: 0, x2: 26, y1: 6, y2: 6, stroke: colour, "stroke-width": 1.7, "stroke-dasharray": dash.join(" ") }));
  if (entry.drawn !== "area" && entry.style.shape) made.append(svg("path", { d: shape, transform: "translate(13,6) scale(4)", fill: colour }));
  return made;
}

function drawLegend(plot, dark) {
  const { own, legend } = plot, there = new Set(plot.points.map((each) => each.key));
  const left = own.entries.filter((each) => there.has(each.label) || !(each.series || each.label in own.components));
  if (own.colour) legend.replaceChildren(gradient(own.colour));
  else fillLegend(plot, left, there, dark);
}

// A label, its options small.
function named(label) {
  const text = document.createElement("span"), start = label.indexOf(" ("), end = label.lastIndexOf(")") + 1;
  if (start < 0 || end < start) text.append(label);
  else text.append(label.slice(0, start), Object.assign(document.createElement("small"), { textContent: label.slice(start, end) }), label.slice(end));
  return text;
}

// `there`: the labels that have something to be left bright.
function fillLegend(plot, entries, there, dark) {
  plot.legend.replaceChildren(...entries.map((entry) => {
    const key = entry.label, holder = document.createElement(there.has(key) ? "button" : "span");
    if (holder.type) {
      holder.type = "button";
      holder.setAttribute("aria-pressed", String(plot.picked.has(key)));
      holder.addEventListener("click", () => pick(plot, key, holder));
    }
    holder.append(swatchOf(plot.own, entry, dark), named(key));
    return holder;
  }));
}

function pick(plot, key, button) {
  if (!plot.picked.delete(key)) plot.picked.add(key);
  button.setAttribute("aria-pressed", String(plot.picked.has(key)));
  for (const { view } of plot.shown) view?.signal("picked", [...plot.picked]).run();
}

function gradient(scale) {
  const holder = document.createElement("span"), own = svg("svg", { viewBox: "0 0 260 12", width: 260, height: 12, "aria-hidden": "true" });
  for (let i = 0; i < 65; i += 1) {
    const at = (i + 0.5) / 65, value = scale.log ? scale.low * (scale.high / scale.low) ** at : scale.low + at * (scale.high - scale.low);
    own.append(svg("rect", { x: 4 * i, y: 0, width: 4.2, height: 12, fill: shade(scale, value).colour }));
  }
  const end = (value) => Object.assign(document.createElement("span"), { textContent: written(value) });
  holder.append(end(scale.low), own, end(scale.high), Object.assign(document.createElement("span"), { textContent: scale.title }));
  return holder;
}

// --- when

function makePlot(figure) {
  const place = document.createElement("div"), legend = document.createElement("div"), box = document.createElement("div");
  place.className = "place";
  place.setAttribute("role", "img");
  legend.className = "legend";
  box.className = "tip";
  box.hidden = true;
  const data = figure.querySelector("script");
  data.after(place, legend, box);
  const plot = { figure, place, legend, box, data, own: null, held: new Map(), laid: "", shown: [], points: [], picked: new Set(), left: 0, seen: false, due: true };
  plots.push(plot);
  new IntersectionObserver((entries) => {
    plot.seen = entries.some((each) => each.isIntersecting);
    if (plot.seen) later(() => plotNow(plot));
  }, { rootMargin: "300px" }).observe(figure);
}

function plotNow(plot) {
  if (!plot.due) return;
  plot.due = false;
  if (!plot.own) {
    plot.own = JSON.parse(plot.data.textContent);
    plot.place.setAttribute("aria-label", plot.own.title);
  }
  drawPlot(plot);
}

// Those that are seen next are drawn then.
function plotAgain() {
  for (const plot of plots) plot.due = true;
  const near = plots.filter((each) => each.seen), far = new Map(near.map((each) => [each, outside(each.figure)]));
  later(...near.sort((a, b) => far.get(a) - far.get(b)).map((each) => () => plotNow(each)));
}

all("figure.plotted").forEach(makePlot);
changed.push(plotAgain);
let resized = 0;
let width = window.innerWidth;
window.addEventListener("resize", () => {
  cancelAnimationFrame(resized);
  resized = requestAnimationFrame(() => {
    if (window.innerWidth === width) return;
    width = window.innerWidth;
    changed.forEach((each) => each());
  });
});
// Paper is white and has all that is open.
window.addEventListener("beforeprint", () => {
  finish();
  paper = true;
  const main = document.querySelector("main");
  main.style.width = "940px"; // A4's at three quarters, to which the style sheet shrinks them
  for (const plot of plots) {
    plot.due = true;
    if (plot.figure.getClientRects().length) plotNow(plot);
  }
  finish();
  main.style.width = "";
});
window.addEventListener("afterprint", () => { paper = false; plotAgain(); });
