// Figures, drawn from the data beside them when they come near the window, of what the filters leave.

const plots = [];
const NARROWEST = { plane: 290, bars: 560, stack: 480, cells: 180 }; // pixels of a panel beside others
const NAMES = 230; // pixels of names beside stacks
const BAND = 0.14, FAINT = 0.12;
const OUTLINES = { circle: "M-1,0A1,1,0,1,1,1,0A1,1,0,1,1,-1,0Z", square: "M-1,-1H1V1H-1Z", diamond: "M0,-1.3L1,0L0,1.3L-1,0Z",
  cross: "M-1,-.4H-.4V-1H.4V-.4H1V.4H.4V1H-.4V.4H-1Z", "triangle-up": "M0,-1L1,1H-1Z", "triangle-down": "M0,1L1,-1H-1Z",
  "triangle-left": "M-1,0L1,-1V1Z", "triangle-right": "M1,0L-1,-1V1Z" };

// --- what is left

const NOBODY = { label: "", method: "" };
const seriesOf = (own, mark) => (mark.of === undefined ? NOBODY : own.series[mark.of]);
const partsText = (parts) => (parts === undefined || parts === null ? "" : String(parts));

// A mark without the points of variants that are hidden; nothing where it is.
function markLeft(own, mark) {
  const { label, method } = seriesOf(own, mark);
  if (hidden({ method, series: label, parts: partsText(mark.parts) }) || off.network.has(mark.network)) return null;
  if (!mark.who || !mark.who.some((each) => off.series.has(each))) return mark;
  const kept = mark.who.map((_, i) => i).filter((i) => !off.series.has(mark.who[i])), left = { ...mark };
  for (const key of ["x", "y", "low", "high", "seeds", "who"]) if (mark[key]) left[key] = kept.map((i) => mark[key][i]);
  return kept.length ? left : null;
}

// A panel with the marks that are left; nothing where none of anybody's is.
function panelLeft(own, panel) {
  if (hidden({ parts: partsText(panel.parts) })) return null;
  const marks = panel.marks.map((each) => markLeft(own, each)).filter(Boolean);
  const named = (all) => all.some((each) => each.of !== undefined);
  return named(panel.marks) && !named(marks) ? null : { ...panel, marks, whole: panel };
}

// --- axes

const present = (values) => (values || []).filter((each) => each !== undefined && each !== null);

function valuesAlong(panel, name) {
  const along = name === "x" ? ["x"] : ["y", "low", "high"];
  return panel.marks.flatMap((mark) => along.flatMap((key) => present(mark[key])));
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
  return { ...own, tickCount: 5, ...(axis.whole ? { tickMinStep: 1, format: ",d" } : { format: ",~r" }) };
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

// What a point's box says beside its axes.
const toldOf = (own, mark, i) => ({ series: seriesOf(own, mark).label, who: mark.who?.[i], parts: mark.parts, network: mark.network, seeds: mark.seeds?.[i] });

// Points that no other beats, less being better across and more up.
function frontOf(points) {
  const beaten = (own) => points.some((each) => each.x <= own.x && each.y >= own.y && (each.x < own.x || each.y > own.y));
  return points.filter((each) => !beaten(each)).sort((a, b) => a.x - b.x || a.y - b.y);
}

function planeRows(own, panel, dark) {
  const rows = [], { log } = panel.x, logY = panel.y.log;
  panel.marks.forEach((mark, line) => {
    const base = { line, kind: mark.kind, key: seriesOf(own, mark).label, ...lookOf(mark.style, dark) };
    const count = Math.max(mark.x?.length || 0, mark.y?.length || 0), every = Math.max(1, Math.floor(count / 12));
    if (mark.kind === "front" || mark.kind === "bins") return;
    for (let i = 0; i < count; i += 1) {
      const [x, y] = [mark.x?.[i] ?? null, mark.y?.[i] ?? null];
      if ((log && x !== null && x <= 0) || (logY && y !== null && y <= 0) || (x === null && y === null)) continue;
      const low = mark.low?.[i] ?? null, high = mark.high?.[i] ?? null;
      const whole = mark.kind === "line" || mark.kind === "steps";
      rows.push({ ...base, ...toldOf(own, mark, i), i, x, y, low: logY && low !== null && low <= 0 ? y : low, high, band: Boolean(mark.band),
        hit: mark.of !== undefined && mark.kind !== "across" && mark.kind !== "up",
        seen: mark.kind === "points" || (whole && !mark.bare && i % every === 0), filled: true });
    }
  });
  for (const mark of panel.marks.filter((each) => each.kind === "bins")) {
    mark.y.forEach((y, i) => rows.push({ kind: "bin", key: seriesOf(own, mark).label, ...lookOf(mark.style, dark), x: mark.x[i], x2: mark.x[i + 1], y }));
  }
  const front = panel.marks.find((each) => each.kind === "front");
  if (front) {
    const points = rows.filter((each) => each.kind === "points"), best = frontOf(points);
    for (const each of points) each.filled = best.includes(each);
    best.forEach(({ x, y }, i) => rows.push({ kind: "front", key: "front", i, x, y, ...lookOf(front.style, dark) }));
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
    { transform: only("datum.kind === 'bin'"), mark: { type: "rect", clip: true, stroke: null },
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
  const left = panel.groups.map(([name, parts], place) => ({ name, parts, bars: panel.marks.filter((each) => each.kind === "bar" && each.x[0] === place) }));
  const groups = left.filter((each) => each.bars.length && !hidden({ parts: partsText(each.parts) })), rows = [];
  const most = Math.max(1, ...groups.map((each) => each.bars.length)), few = groups.length <= 4 && panel.parts === undefined;
  const slot = few ? Math.min(0.84 / most, 0.21) : 0.84 / most;
  groups.forEach((group, place) => group.bars.forEach((mark, i) => {
    const start = place - (slot * group.bars.length) / 2 + i * slot, look = lookOf(mark.style, dark);
    const [y, low, high] = [mark.y?.[0] ?? null, mark.low?.[0] ?? null, mark.high?.[0] ?? null];
    rows.push({ kind: y === null ? "none" : "bar", key: seriesOf(own, mark).label, ...look, ...toldOf(own, mark, 0), group: group.name,
      start: start + 0.04 * slot, end: start + 0.96 * slot, middle: start + slot / 2, y, low, high, second: isSecond(own, look, dark) });
  }));
  for (const mark of panel.marks.filter((each) => each.kind === "across")) rows.push({ kind: "base", key: "", y: mark.y[0], ...lookOf(mark.style, dark) });
  return { rows, names: groups.map((each) => each.name) };
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
  panel.marks.forEach((mark, place) => {
    const values = mark.x || [], total = values.reduce((sum, each) => sum + each, 0), scale = panel.shares && total ? 100 / total : 1;
    let end = 0;
    values.forEach((value, i) => {
      const [start, key] = [end, mark.component[i]];
      end += value * scale;
      rows.push({ kind: "piece", key, ...toldOf(own, mark, 0), component: key, value, share: total ? (100 * value) / total : 0, start, end, top: place - 0.37, bottom: place + 0.37,
        colour: own.components[key][dark ? 1 : 0] });
    });
    const text = mark.value ? written(mark.value[0]) : "n/a";
    if (!panel.shares || !mark.value) rows.push({ kind: "total", key: "", end, middle: place, text });
  });
  return rows;
}

// A name in lines of so many letters; of a long one the end stays, which often tells it from others.
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
  return panel.marks.flatMap((mark) => mark.value.map((value, i) => ({ kind: value ? "cell" : "nothing", key: seriesOf(own, mark).label, ...toldOf(own, mark, 0),
    from: mark.y[i], to: mark.x[i], value, x: mark.x[i], y: mark.y[i], left: mark.x[i] - 0.5, right: mark.x[i] + 0.5, top: mark.y[i] - 0.5, bottom: mark.y[i] + 0.5,
    text: value.toLocaleString("en", { maximumSignificantDigits: 2 }), ...(value ? shade(own.colour, value) : { colour: "transparent", ink: soft }) })));
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
    const said = panel.groups.some(([name]) => name.startsWith("P = "));
    layer = barLayers(axis("y"), bars.names, said ? null : panel.x.title, soft);
  } else if (panel.kind === "stack") {
    rows = stackRows(own, panel, dark);
    const series = panel.marks.map((each) => seriesOf(own, each).label);
    names.up = Object.fromEntries(series.map((name, i) => [i, wrapped(name, NAMES / 7.5)]));
    layer = stackLayers(rows, panel, series, ink);
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
  } else if (datum.kind === "bin") {
    lines.splice(0, lines.length, `${written(datum.x)} to ${written(datum.x2)}: ${datum.y}`, plain(panel.y));
  } else {
    if (panel.kind === "plane" && datum.x !== null) {
      const named = (panel.x.ticks || []).find(([place]) => place === datum.x);
      lines.push(`${plain(panel.x)}: ${named ? named[1].replace("\n", " ") : written(datum.x)}`);
    }
    if (panel.kind === "bars" && !/^P = /.test(datum.group)) lines.push(`${plain(panel.x)} ${datum.group}`);
    lines.push(`${plain(panel.y)}: ${datum.y === null ? "n/a" : written(datum.y)}${interval(datum)}`);
  }
  if (datum.seeds) lines.push(datum.seeds > 1 ? `mean of ${datum.seeds} seeds` : "one seed");
  return lines;
}

function interval({ y, low, high }) {
  if (low === null || high === null || low === undefined || low === high) return "";
  const even = Math.abs(high - y - (y - low)) <= 1e-3 * (high - low);
  return even ? ` ± ${written((high - low) / 2)}` : ` (${written(low)} to ${written(high)})`;
}

function sizeOf(plot, panel, place) {
  const wide = place.clientWidth, count = panel.marks.length, alone = plot.shown.length === 1;
  const longest = Math.max(1, ...panel.marks.map((mark) => wrapped(seriesOf(plot.own, mark).label, NAMES / 7.5).length));
  const heights = { plane: alone ? 330 : 260, bars: 250, stack: 56 + (6 + 14 * longest) * Math.max(count, 2), cells: Math.min(wide, 300) };
  return { width: panel.kind === "cells" ? Math.min(wide, 300) : wide, height: heights[panel.kind] };
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

// Panels beside one another as far as there is room, as many in each line.
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
  if (entry.drawn !== "area" && entry.style.shape) made.append(svg("path", { d: OUTLINES[shape] || shape, transform: "translate(13,6) scale(4)", fill: colour }));
  return made;
}

function drawLegend(plot, dark) {
  const { own, legend } = plot, there = new Set(plot.points.map((each) => each.key));
  const keyOf = (entry) => (entry.of === undefined ? entry.label : own.series[entry.of].label);
  const left = own.entries.filter((each) => there.has(keyOf(each)) || (each.of === undefined && !(each.label in own.components)));
  legend.replaceChildren(...(own.colour ? [gradient(own.colour)] : left.map((entry) => {
    const text = Object.assign(document.createElement("span"), { textContent: entry.label });
    const key = keyOf(entry), holder = document.createElement(there.has(key) ? "button" : "span");
    if (holder.type) {
      holder.type = "button";
      holder.setAttribute("aria-pressed", String(plot.picked.has(key)));
      holder.addEventListener("click", () => pick(plot, key, holder));
    }
    holder.append(swatchOf(own, entry, dark), text);
    return holder;
  })));
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
  for (const plot of plots) {
    plot.due = true;
    if (plot.figure.getClientRects().length) plotNow(plot);
  }
  finish();
});
window.addEventListener("afterprint", () => { paper = false; plotAgain(); });
