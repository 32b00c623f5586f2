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

const packages = new Map();
for (const path of Object.keys(made.metafile.inputs)) {
  for (let folder = dirname(path); folder.includes("node_modules"); folder = dirname(folder)) {
    const own = readdirSync(folder);
    if (!own.includes("package.json")) continue;
    const { name, version, license } = JSON.parse(readFileSync(join(folder, "package.json"), "utf8"));
    if (!name || !version) continue;
    const file = own.find((each) => /^licen[cs]e/i.test(each));
    packages.set(name, [`${name} ${version} (${license})`, file ? readFileSync(join(folder, file), "utf8").trim() : ""]);
    break;
  }
}
const texts = [...packages.keys()].sort().map((name) => packages.get(name).join("\n\n"));
writeFileSync(join(out, "LICENSES.txt"), `${texts.join("\n\n----\n\n")}\n`);
