"use strict";
// The description of the API, shown: every path with what it takes and answers, then every schema.

function add(parent, tag, text = "", more = {}) {
  const made = Object.assign(document.createElement(tag), more);
  made.textContent = text;
  parent.append(made);
  return made;
}

function type(schema) {
  if (!schema) return "";
  if (schema.$ref) return schema.$ref.split("/").at(-1);
  if (schema.anyOf) return schema.anyOf.map(type).join(" or ");
  if (schema.enum) return schema.enum.map((word) => JSON.stringify(word)).join(" | ");
  const kinds = [schema.type ?? "anything"].flat();
  return kinds.map((kind) => kind === "array" ? `list of ${type(schema.items)}` : schema.contentEncoding ?? schema.format ?? kind).join(" or ");
}

function rows(parent, head, lines) {
  const scroll = add(parent, "div", "", { className: "scroll all" }), table = add(scroll, "table");
  const top = add(add(table, "thead"), "tr");
  for (const word of head) add(top, "th", word, { scope: "col" });
  const body = add(table, "tbody");
  for (const line of lines) {
    const row = add(body, "tr");
    for (const cell of line) add(row, "td", cell);
  }
}

async function start() {
  const api = await (await fetch("/openapi.json")).json(), main = document.getElementById("api");
  for (const [path, methods] of Object.entries(api.paths)) {
    for (const [method, does] of Object.entries(methods)) {
      const section = add(main, "section");
      add(section, "h2", `${method.toUpperCase()} ${path}`);
      add(section, "p", `${does.summary}.${does.security ? " It needs no token." : ""} ${does.description ?? ""}`);
      const given = (does.parameters ?? []).map((each) => [`${each.name} (${each.in})`, type(each.schema), each.description ?? ""]);
      for (const [kind, { schema }] of Object.entries(does.requestBody?.content ?? {})) given.push(["body", type(schema), kind]);
      if (given.length) rows(section, ["takes", "type", ""], given);
      const answers = Object.entries(does.responses).map(([status, given]) => {
        const response = given.$ref ? api.components.responses[type(given)] : given;
        return [status, Object.values(response.content).map(({ schema }) => type(schema)).join(", "), response.description];
      });
      rows(section, ["answers", "type", ""], answers);
    }
  }
  for (const [name, schema] of Object.entries(api.components.schemas)) {
    const section = add(main, "section");
    add(section, "h2", name);
    if (schema.description) add(section, "p", schema.description);
    if (!schema.properties) { add(section, "p", type(schema)); continue; }
    const optional = (key) => schema.required?.includes(key) ? "" : " (optional)";
    rows(section, ["field", "type", ""], Object.entries(schema.properties).map(([key, part]) => [key + optional(key), type(part), part.description ?? ""]));
  }
}
start();
