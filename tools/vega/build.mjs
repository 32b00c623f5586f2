// npm ci && node build.mjs: makes ../../harness/report/static/vega.js, and the licences of all that is in it.

import { readdirSync, readFileSync, writeFileSync } from "node:fs";
import { dirname, join } from "node:path";
import { build } from "esbuild";

const out = "../../harness/report/static";
const { dependencies } = JSON.parse(readFileSync("package.json", "utf8"));
const banner = Object.entries(dependencies).map(([name, version]) => `${name} ${version}`).join(", ");

const made = await build({
  entryPoints: ["entry.js"],
  bundle: true,
  minify: true,
  format: "iife",
  globalName: "vegaKit",
  legalComments: "none",
  metafile: true,
  banner: { js: `// ${banner}, (c) University of Washington Interactive Data Lab and others, BSD-3-Clause and ISC:\n` +
    "// made by tools/vega/build.mjs of harness, in whose package LICENSES.txt has all licences." },
  outfile: join(out, "vega.js"),
});

// What d3-delaunay's published file has inside.
const inside = ["delaunator", "robust-predicates"].map((name) => `node_modules/${name}/package.json`);
const packages = new Map();
for (const path of [...Object.keys(made.metafile.inputs), ...inside]) {
  for (let folder = dirname(path); folder.includes("node_modules"); folder = dirname(folder)) {
    const own = readdirSync(folder);
    if (!own.includes("package.json")) continue;
    const { name, version, license } = JSON.parse(readFileSync(join(folder, "package.json"), "utf8"));
    if (!name || !version) continue;
    const file = own.find((each) => /^licen[cs]e/i.test(each));
    const text = file ? readFileSync(join(folder, file), "utf8").trim() : "";
    const head = `${name} ${version} (${license})`;  // a package may be there in two versions
    const found = packages.get(head) ?? { text, notices: new Set() };
    packages.set(head, found);
    for (const notice of notices(readFileSync(path, "utf8"))) found.notices.add(notice);
    break;
  }
}
const texts = [...packages.keys()].sort().map((head) => {
  const { text, notices } = packages.get(head);
  return [head, text, ...[...notices].map((each) => `In its code:\n\n${each}`)].join("\n\n");
});
writeFileSync(join(out, "LICENSES.txt"), `${texts.join("\n\n----\n\n")}\n`);

// Comments that name whose code was taken over: the script has none.
function notices(code) {
  const blocks = code.match(/\/\*[^]*?\*\//g) ?? [];
  const lines = code.match(/\/\/.*dapted from.*(?:\n *\/\/.*)*/g) ?? [];
  return [...blocks, ...lines]
    .filter((each) => /Copyright|dapted from (?:https?:|d3|the time-|science)/.test(each))
    .map((each) => each.split("\n").map((line) => line.replace(/^ ?(?:\/\*+|\*\/|\*(?= |$)|\/\/)/, "").trimEnd()).join("\n").trim());
}
