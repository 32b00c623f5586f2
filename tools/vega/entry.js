export { View, parse, changeset } from "vega";
export { compile } from "vega-lite";
export { expressionInterpreter } from "vega-interpreter";
