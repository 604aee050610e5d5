"use strict";
// The page of `offaxis serve`: images in, predictions out. No frameworks, nothing from other sites.

const KEPT = 200;           // images in the strip
const REQUEST_IMAGES = 8;   // images in one request, or fewer where the service takes fewer
const UNREACHABLE = "The service cannot be reached.";
const at = (id) => document.getElementById(id);
const svg = (name, attributes) => {
  const element = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  return element;
};
let model = null, token = "", seen = [], current = -1, waiting = [];

async function ask(path, options = {}) {
  const headers = token ? { Authorization: `Bearer ${token}` } : {};
  const answer = await fetch(path, { ...options, headers });
  if (answer.status === 401) {
    at("token-form").hidden = false;
    at("token").focus();
  }
  return answer;
}

async function start() {
  try {
    const answer = await ask("/v1/model");
    if (!answer.ok) return say(answer.status === 401 ? "A token is needed." : "The service gave an unexpected response.", true);
    model = await answer.json();
    const { width, height, colour, features } = model.preprocessing;
    const takes = features ? `vectors of ${features} numbers as JSON` : `${width}×${height} ${colour}`;
    at("about").textContent = `${model.classes.length} classes, ${takes}; detector ${model.detector}, ` +
      `at most ${percent(model.alpha)} of in-distribution images flagged`;
    say("");
    const queue = waiting;
    waiting = [];
    if (queue.length) await check(queue);
    await drift();
  } catch { say(UNREACHABLE, true); }
}

function say(text, wrong = false) {
  at("progress").textContent = text;
  at("progress").classList.toggle("error", wrong);
}

const percent = (value) => `${+(100 * value).toFixed(value < 0.1 ? 2 : 1)} %`;
const kind = (record) => record.error ? "bad" : { "in-distribution": "in", "out-of-distribution": "out" }[record.verdict] ?? "few";

async function check(files) {
  if (!model) { waiting.push(...files); return; }
  let done = 0, bad = 0;
  const step = Math.min(REQUEST_IMAGES, model.limits.images);
  for (let first = 0; first < files.length; first += step) {
    const part = files.slice(first, first + step);
    say(`Checking ${done + 1} of ${files.length} …`);
    const records = await send(part);
    records.forEach((record, i) => {
      if (record.error) bad += 1;
      keep(record, part[i]);
    });
    done += part.length;
    show(seen.length - 1);
  }
  await drift();
  const last = seen[seen.length - 1];
  if (bad === files.length && last.record.error === UNREACHABLE) say(UNREACHABLE, true);
  else if (bad && files.length === 1) say(last.record.error, true);
  else say(`${done - bad} of ${files.length} checked` + (bad ? `, ${bad} failed` : ""), bad > 0);
}

async function send(files, retries = 5) {
  const whole = files.reduce((sum, file) => sum + file.size, 0);
  const large = files.find((file) => file.size > model.limits.body_bytes);
  const split = large || whole > 0.9 * model.limits.body_bytes;
  if (files.length > 1 && split) return (await Promise.all(files.map((file) => send([file])))).flat();
  if (large) return [{ name: large.name, error: `${large.name} is larger than the service accepts.` }];
  const form = new FormData();
  for (const file of files) form.append("files", file, file.name);
  try {
    const answer = await ask("/v1/predict", { method: "POST", body: form });
    if (answer.status === 503 && retries) {
      await new Promise((resolve) => setTimeout(resolve, 1000 * (+answer.headers.get("Retry-After") || 1)));
      return send(files, retries - 1);
    }
    const body = await answer.json();
    if (body.predictions) return body.predictions;
    return files.map((file) => ({ name: file.name, error: body.error ?? "The service did not answer." }));
  } catch {
    return files.map((file) => ({ name: file.name, error: UNREACHABLE }));
  }
}

function keep(record, file) {
  const url = record.error ? null : URL.createObjectURL(file);
  const entry = { record, url, button: document.createElement("button") };
  seen.push(entry);
  const { button } = entry;
  button.type = "button";
  button.className = kind(record);
  button.setAttribute("aria-label", `${record.name}: ${record.error ?? `${record.class}, ${record.verdict}`}`);
  if (url) {
    const image = document.createElement("img");
    image.src = url;
    image.alt = "";
    button.append(image);
  } else {
    const cross = document.createElement("span");
    cross.className = "cross";
    cross.textContent = "×";
    button.append(cross);
  }
  button.addEventListener("click", () => show(seen.indexOf(entry)));
  const item = document.createElement("li");
  item.append(button);
  at("strip").append(item);
  if (seen.length > KEPT) {
    const old = seen.shift();
    if (old.url) URL.revokeObjectURL(old.url);
    old.button.parentElement.remove();
  }
  at("seen").hidden = false;
  const count = (which) => seen.filter((other) => kind(other.record) === which).length;
  at("counts").textContent = `${count("in")} in-distribution, ${count("out")} out-of-distribution` +
    (count("few") ? `, ${count("few")} without a verdict` : "") + (count("bad") ? `, ${count("bad")} unreadable` : "");
}

function show(index) {
  if (index < 0 || index >= seen.length) return;
  current = index;
  seen.forEach((entry, i) => entry.button.setAttribute("aria-current", String(i === index)));
  seen[index].button.scrollIntoView({ block: "nearest", inline: "nearest" });
  const { record, url } = seen[index];
  at("result").hidden = false;
  at("name").textContent = record.name;
  const verdict = at("verdict");
  verdict.className = kind(record);
  for (const id of ["where", "axes"]) at(id).hidden = Boolean(record.error);
  document.querySelector("#words dl").hidden = Boolean(record.error);
  at("picture").hidden = !url;
  if (record.error) { verdict.textContent = record.error; return; }
  const picture = at("picture");
  picture.onload = () => picture.classList.toggle("large", picture.naturalWidth > 150);
  picture.src = url;
  picture.alt = record.name;
  verdict.textContent = {
    in: "In-distribution: like the training images",
    out: "Out-of-distribution: unlike the training images",
    few: "No verdict: not enough calibration images of this class",
  }[kind(record)];
  at("class").textContent = record.class;
  at("probability").textContent = percent(record.probability);
  const p = model.per_class ? record.class_p_value : record.p_value;
  at("p-value").textContent = p === null ? "–" : p.toFixed(p < 0.01 ? 4 : 3);
  const byCosine = record.cosine !== null;
  at("closeness-label").textContent = byCosine ? "Cosine" : "Score";
  at("cosine").textContent = (byCosine ? record.cosine : record.score).toFixed(3);
  histogram(record);
  nearest(record, byCosine);
}

// An empty chart as wide as its place, so that its text has the size of other text.
function canvas(id, height) {
  const chart = at(id), wide = Math.max(200, Math.round(chart.getBoundingClientRect().width));
  chart.setAttribute("viewBox", `0 0 ${wide} ${height}`);
  chart.replaceChildren();
  return [chart, wide];
}

function histogram(record) {
  const { of, counts, edges } = model.calibration.histogram;
  const value = of === "cosine" ? record.cosine : record.score;
  const low = Math.min(edges[0], value), high = Math.max(edges[edges.length - 1], value);
  const pad = 0.04 * (high - low || 1);
  const most = Math.max(...counts);
  const [chart, wide] = canvas("histogram", 130);
  const x = (v) => 10 + (wide - 20) * (v - low + pad) / (high - low + 2 * pad);
  counts.forEach((count, i) => chart.append(svg("rect", {
    class: "bar", x: x(edges[i]), width: Math.max(1, x(edges[i + 1]) - x(edges[i]) - 0.5),
    y: 105 - 90 * count / most, height: 90 * count / most,
  })));
  chart.append(svg("line", { class: "base", x1: 10, x2: wide - 10, y1: 105, y2: 105 }));
  // one threshold for all classes, on the axis that is drawn
  const single = !model.per_class && (of === "score" || ["cosine", "cosine-ensemble"].includes(model.detector));
  if (single) {
    const limit = of === "cosine" ? -model.threshold : model.threshold;
    chart.append(svg("line", { class: "limit", x1: x(limit), x2: x(limit), y1: 10, y2: 105 }));
  }
  chart.append(svg("line", { class: `mark ${kind(record)}`, x1: x(value), x2: x(value), y1: 4, y2: 108 }));
  const label = svg("text", { x: Math.min(wide - 60, Math.max(60, x(value))), y: 122, "text-anchor": "middle" });
  label.textContent = `this image ${value.toFixed(3)}`;
  chart.append(label);
  const images = model.calibration.images;
  at("where-caption").textContent = `Its ${of} among those of ${images} calibration images` +
    (single ? " (dashed: the threshold)" : "");
  chart.setAttribute("aria-label", `${of} ${value.toFixed(3)}; those of ${images} calibration images lie between ` +
    `${edges[0].toFixed(3)} and ${edges[edges.length - 1].toFixed(3)}`);
}

function nearest(record, byCosine) {
  at("axes-caption").textContent = byCosine ? "Nearest class axes, by cosine" : "Most probable classes";
  at("nearest").replaceChildren(...record.nearest.map((entry) => {
    const item = document.createElement("li");
    const label = document.createElement("span"), bar = document.createElement("progress"), number = document.createElement("span");
    label.className = "label";
    label.textContent = label.title = entry.class;
    bar.max = 1;
    bar.value = Math.max(0, entry.value);
    bar.setAttribute("aria-hidden", "true");
    number.className = "number";
    number.textContent = entry.value.toFixed(3);
    item.append(label, bar, number);
    return item;
  }));
}

async function drift() {
  const words = at("drift");
  let state;
  try {
    const answer = await ask("/v1/drift");
    if (!answer.ok) return;
    state = await answer.json();
  } catch {
    words.className = "";
    words.textContent = "The service cannot be reached, so the drift is not known.";
    return;
  }
  words.className = state.alarm ? "out" : "";
  const odds = 1 / state.level;
  words.textContent = state.alarm
    ? `The stream has left the training distribution: at image ${state.alarmed_at} the odds against “no drift” passed ${odds.toFixed(0)} : 1.`
    : state.images ? `No sign of drift over ${state.images} images (alarm at odds of ${odds.toFixed(0)} : 1).`
      : "No images yet.";
  const [chart, wide] = canvas("drift-line", 110), points = state.trace;
  const top = Math.max(Math.log10(odds), ...points.map((p) => p[1])) + 0.3;
  const bottom = Math.min(-1, ...points.map((p) => p[1])) - 0.1;
  const last = Math.max(1, state.images), first = points.length ? Math.min(points[0][0] - 1, last - 1) : 0;
  const x = (n) => 10 + (wide - 20) * (n - first) / Math.max(1, last - first);
  const y = (v) => 5 + 100 * (top - v) / (top - bottom);
  chart.append(svg("line", { class: "base", x1: 10, x2: wide - 10, y1: y(0), y2: y(0) }));
  chart.append(svg("line", { class: "limit", x1: 10, x2: wide - 10, y1: y(Math.log10(odds)), y2: y(Math.log10(odds)) }));
  const label = svg("text", { x: 12, y: y(Math.log10(odds)) + 12 });
  label.textContent = "alarm";
  chart.append(label);
  const path = [[first, first === 0 ? 0 : points[0][1]], ...points].map(([n, v]) => `${x(n).toFixed(1)},${y(v).toFixed(1)}`).join(" ");
  if (points.length) chart.append(svg("polyline", { class: state.alarm ? "line alarm" : "line", points: path }));
}

// a drop has files, or folders with files in them
async function inside(entry) {
  if (entry.isFile) return [await new Promise((resolve, reject) => entry.file(resolve, reject))];
  const reader = entry.createReader(), files = [];
  for (;;) {
    const part = await new Promise((resolve, reject) => reader.readEntries(resolve, reject));
    if (!part.length) break;
    for (const child of part) if (!child.name.startsWith(".")) files.push(...await inside(child));
  }
  return files;
}

async function take(files) {
  const chosen = [...files].filter((file) => !file.name.startsWith("."));
  if (!chosen.length) return say("There is no image in it.", true);
  await check(chosen);
}

addEventListener("dragover", (event) => { event.preventDefault(); at("drop").classList.add("over"); });
addEventListener("dragleave", () => at("drop").classList.remove("over"));
addEventListener("drop", async (event) => {
  event.preventDefault();
  at("drop").classList.remove("over");
  const entries = [...event.dataTransfer.items].map((item) => item.webkitGetAsEntry?.()).filter(Boolean);
  const files = entries.length ? (await Promise.all(entries.map(inside))).flat() : [...event.dataTransfer.files];
  await take(files);
});
addEventListener("paste", (event) => {
  const files = [...event.clipboardData.files];
  if (files.length) take(files);
});
addEventListener("keydown", (event) => {
  if (event.target.matches?.("input") || event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.key === "ArrowLeft") show(Math.max(0, current - 1));
  if (event.key === "ArrowRight") show(Math.min(seen.length - 1, current + 1));
});
addEventListener("resize", () => { show(current); if (model) drift(); });
at("choose").addEventListener("click", () => at("files").click());
at("choose-folder").addEventListener("click", () => at("folder").click());
for (const id of ["files", "folder"]) {
  at(id).addEventListener("change", async (event) => { await take(event.target.files); event.target.value = ""; });
}
at("token-form").addEventListener("submit", (event) => {
  event.preventDefault();
  token = at("token").value;
  at("token-form").hidden = true;
  start();
});
start();
