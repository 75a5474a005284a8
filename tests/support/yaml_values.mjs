// Reads a list of YAML texts from stdin and writes what each of them means: a value, or an error.
import { createRequire } from "node:module";
import { readFileSync } from "node:fs";

const YAML = createRequire(import.meta.url)(process.argv[2]);

// What pipeline files refuse, whatever it means.
function refused(document) {
  let found = null;
  YAML.visit(document, {
    Scalar(place, node) {
      if (node.tag?.startsWith("!")) found = "tag";
      if (place === "key" && node.anchor) found = "anchor";
    },
    Alias(place) {
      if (place === "key") found = "alias";
    },
    Pair(_, { key }) {
      if (!YAML.isScalar(key) && !YAML.isAlias(key)) found = "key";
      if (YAML.isScalar(key) && key.source === "" && !key.type?.startsWith("QUOTE")) found = "key";
    },
  });
  return found;
}

function value(node, document) {
  if (YAML.isAlias(node)) return value(node.resolve(document), document);
  if (YAML.isSeq(node)) return node.items.map((item) => value(item, document));
  if (YAML.isMap(node)) {
    return Object.fromEntries(node.items.map((pair) => [pair.key.source, value(pair.value, document)]));
  }
  return node?.value ?? null;
}

const texts = JSON.parse(readFileSync(0, "utf-8"));
const read = texts.map((text) => {
  const options = { version: "1.2", schema: "core", logLevel: "silent" };
  const [document, ...others] = YAML.parseAllDocuments(text, options);
  if (others.length) return { error: "DOCUMENTS" };
  if (document.errors.length) return { error: document.errors[0].code };
  const reason = refused(document);
  return reason ? { error: reason } : { value: value(document.contents, document) };
});
process.stdout.write(JSON.stringify(read));
