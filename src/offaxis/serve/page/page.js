"use strict";
// The page of `offaxis serve`: images in, predictions out. No frameworks, nothing from other sites.

const KEPT = 2000;          // images in the strip and the table
const THUMBNAIL = 144;      // pixels
const REQUEST_IMAGES = 8;   // images in one request, or fewer where the service takes fewer
const UNREACHABLE = "The service cannot be reached.";
let base = "/v1", model = null, token = "", seen = [], current = null, waiting = [], filter = "all";

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
    const answer = await ask(base === "/v1" ? "/v1/model" : base);
    if (!answer.ok) return say(answer.status === 401 ? "A token is needed." : "The service gave an unexpected response.", true);
    model = await answer.json();
    const { width, height, colour, features } = model.preprocessing;
    const takes = features ? `vectors of ${features} numbers as JSON` : `${width}×${height} ${colour}`;
    const { name, calibrated } = model.bundle;
    at("about").textContent = `${name}${name && ` (calibrated ${calibrated}): `}${model.classes.length} classes, ${takes}; detector ${model.detector}, ` +
      `at most ${percent(model.alpha)} of images like those of training flagged`;
    await offer();
    say("");
    const queue = waiting;
    waiting = [];
    if (queue.length) await check(queue);
    await drift();
  } catch { say(UNREACHABLE, true); }
}

// where several models are served, let the user choose one
async function offer() {
  const { models } = await (await ask("/v1/models")).json();
  at("model-row").hidden = models.length < 2;
  if (at("models").options.length === models.length) return;
  at("models").replaceChildren(...models.map(({ name }) => new Option(name)));
}

function say(text, wrong = false) {
  at("progress").textContent = text;
  at("progress").classList.toggle("error", wrong);
}

const percent = (value) => `${+(100 * value).toFixed(value < 0.1 ? 2 : 1)} %`;
const kind = (record) => record.error ? "bad" : { "in-distribution": "in", "out-of-distribution": "out", unsure: "unsure" }[record.verdict] ?? "few";

async function check(files) {
  if (!model) { waiting.push(...files); return; }
  let done = 0, bad = 0, last = null, best = null;
  const step = Math.min(REQUEST_IMAGES, model.limits.images);
  for (let first = 0; first < files.length; first += step) {
    const part = files.slice(first, first + step);
    say(`Checking ${done + 1} of ${files.length} …`);
    const records = await send(part);
    for (const [i, record] of records.entries()) {
      last = await keep(record, part[i]);
      if (record.error) bad += 1; else best = last;
    }
    done += part.length;
    counts();
    if (best ?? last) show(best ?? last);  // a file that cannot be read does not take the place of one that can
  }
  await drift();
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
    const counted = at("count").checked ? "" : "?watch=0";  // an image to try the service with is none of its stream
    const answer = await ask(`${base}/predict${counted}`, { method: "POST", body: form });
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

// a small copy, so that many photographs do not fill the memory
async function thumbnail(file) {
  try {
    const bitmap = await createImageBitmap(file);
    const scale = Math.min(1, THUMBNAIL / Math.min(bitmap.width, bitmap.height));
    const canvas = document.createElement("canvas");
    canvas.width = Math.max(1, Math.round(bitmap.width * scale));
    canvas.height = Math.max(1, Math.round(bitmap.height * scale));
    canvas.getContext("2d").drawImage(bitmap, 0, 0, canvas.width, canvas.height);
    bitmap.close();
    const blob = await new Promise((resolve) => canvas.toBlob(resolve));
    return { url: URL.createObjectURL(blob), large: canvas.width > 64 };
  } catch { return null; }  // such as TIFF, which the service reads and browsers do not show
}

async function keep(record, file) {
  const small = record.error ? null : await thumbnail(file);
  const entry = { record, file, small, button: document.createElement("button"), row: document.createElement("tr") };
  seen.push(entry);
  const { button, row } = entry;
  button.type = "button";
  button.className = kind(record);
  button.title = record.name;
  button.setAttribute("aria-label", `${record.name}: ${record.error ?? `${record.class}, ${words(record)}`}`);
  const inside = document.createElement(small ? "img" : "span");
  if (small) {
    inside.src = small.url;
    inside.alt = "";
    inside.classList.toggle("large", small.large);
  } else {
    inside.className = "cross";
    inside.textContent = record.error ? "×" : "?";
  }
  button.append(inside);
  const item = document.createElement("li");
  item.append(button);
  at("strip").append(item);
  const p = record.error ? null : deciding(record);
  const cells = record.error
    ? [record.name, "", "", "", record.error]
    : [record.name, record.class, percent(record.probability), p === null ? "–" : short(p), words(record)];
  for (const text of cells) row.insertCell().textContent = text;
  row.lastChild.className = kind(record);
  at("rows").append(row);
  for (const part of [button, row]) part.addEventListener("click", () => show(entry));
  sift(entry);
  if (seen.length > KEPT) {
    const old = seen.shift();
    if (old.small) URL.revokeObjectURL(old.small.url);
    old.button.parentElement.remove();
    old.row.remove();
  }
  at("seen").hidden = false;
  return entry;
}

const words = (record) => ({ in: "like the training images", out: "unlike the training images", unsure: "unsure" })[kind(record)] ?? "no verdict";
const short = (p) => p.toFixed(p < 0.01 ? 4 : 3);
const deciding = (record) => model.per_class ? record.class_p_value : record.p_value;
const passes = (entry) => filter === "all" || kind(entry.record) === filter;

function sift(entry) { entry.button.parentElement.hidden = entry.row.hidden = !passes(entry); }

function counts() {
  const count = (which) => seen.filter((other) => kind(other.record) === which).length;
  at("counts").textContent = `${count("in")} like the training images, ${count("out")} unlike` +
    (count("unsure") ? `, ${count("unsure")} unsure` : "") + (count("few") ? `, ${count("few")} without a verdict` : "") + (count("bad") ? `, ${count("bad")} unreadable` : "");
}

function show(entry) {
  if (!entry) return;
  if (current) for (const part of [current.button, current.row]) part.removeAttribute("aria-current");
  current = entry;
  for (const part of [entry.button, entry.row]) part.setAttribute("aria-current", "true");
  entry.button.scrollIntoView({ block: "nearest", inline: "nearest" });
  const { record } = entry;
  at("result").hidden = false;
  at("name").textContent = record.name;
  const verdict = at("verdict");
  verdict.className = kind(record);
  for (const id of ["where", "axes", "shown"]) at(id).hidden = Boolean(record.error);
  document.querySelector("#words dl").hidden = Boolean(record.error);
  at("examples").hidden = true;
  if (record.error) { verdict.textContent = record.error; return; }
  verdict.textContent = {
    in: "Like the training images",
    out: "Unlike the training images",
    unsure: "Unsure: like the training images, but its class is doubtful",
    few: "No verdict: not enough calibration images of this class",
  }[kind(record)];
  at("class").textContent = record.class;
  at("probability").textContent = percent(record.probability);
  const p = deciding(record);
  at("p-value").textContent = p === null ? "–" : short(p);
  const classes = record.could_be ?? [];
  at("could-be-row").hidden = classes.length < 2;
  at("could-be").textContent = classes.join(", ");
  const byCosine = record.cosine !== null;
  at("closeness-label").textContent = byCosine ? "Cosine" : "Score";
  at("cosine").textContent = (byCosine ? record.cosine : record.score).toFixed(3);
  histogram(record, model);
  nearest(record, byCosine);
  picture(entry);
  why(entry);
}

// Show the picture with its map; of all pictures one alone is kept whole in memory.
async function picture(entry) {
  const canvas = at("picture");
  canvas.setAttribute("aria-label", entry.record.name);
  if (entry.bitmap === undefined) {
    if (picture.last) { picture.last.bitmap?.close(); picture.last.bitmap = undefined; }
    picture.last = entry;
    try { entry.bitmap = await createImageBitmap(entry.file); } catch { entry.bitmap = null; }
  }
  if (current !== entry) return;
  drawPicture(canvas, entry.bitmap, entry.explanation?.map, at("map-strength").value / 100, model.preprocessing);
}

// Ask once why an image got its verdict; this is not counted by the drift monitor.
async function why(entry) {
  const caption = at("map-caption");
  at("map-row").hidden = !entry.explanation?.map;
  caption.textContent = "";
  if (!entry.explanation) {
    const form = new FormData();
    form.append("files", entry.file, entry.record.name);
    try {
      const answer = await ask(`${base}/predict?explain=1&watch=0`, { method: "POST", body: form });
      entry.explanation = (await answer.json()).predictions?.[0]?.explanation ?? null;
    } catch { entry.explanation = null; }
    if (current !== entry) return;
    picture(entry);
  }
  const found = entry.explanation;
  if (!found) {
    caption.textContent = "The explanation did not arrive. Choose the image again.";
    return;
  }
  at("map-row").hidden = !found.map;
  caption.textContent = found.map
    ? `“${found.class}”: blue adds to the ${found.of}, red takes from it; the mean over the map is ${found.cosine.toFixed(3)}.`
    : found.reason;
  at("examples").hidden = !found.examples.length;
  at("example-list").replaceChildren(...found.examples.map((each) => sample(each.image, `${each.class}, ${each.cosine.toFixed(3)}`)));
}

// The table as CSV. A text that a spreadsheet would run as a formula gets an apostrophe.
function table() {
  const columns = ["name", "class", "probability", "cosine", "score", "p_value", "class_p_value", "verdict", "could_be", "error"];
  const cell = (value) => {
    if (Array.isArray(value)) return cell(value.join(" "));
    if (value === null || value === undefined) return "";
    if (typeof value === "number") return String(value);
    const safe = /^[=+\-@\t\r]/.test(value) ? `'${value}` : value;
    return /[",\r\n]/.test(safe) ? `"${safe.replaceAll('"', '""')}"` : safe;
  };
  const rows = seen.filter(passes).map((entry) => columns.map((column) => cell(entry.record[column])).join(","));
  return [columns.join(","), ...rows].join("\r\n") + "\r\n";
}

function download() {
  const link = document.createElement("a"), url = URL.createObjectURL(new Blob([table()], { type: "text/csv" }));
  link.href = url;
  link.download = "offaxis.csv";
  link.click();
  setTimeout(() => URL.revokeObjectURL(url), 10000);
}

async function drift() {
  const words = at("drift");
  let state;
  try {
    const answer = await ask(`${base}/drift`);
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
      : "No images have been counted yet.";
  if (state.warnings && !state.alarm) {
    words.className = "few";
    words.textContent = `A warning at image ${state.warned_at} of ${state.images}: the latest images are unlike the training images, ` +
      `though not yet beyond doubt (alarm at odds of ${odds.toFixed(0)} : 1).`;
  }
  driftLine(state);
  at("report").textContent = state.report?.text ?? "";
  at("unusual").hidden = !state.unusual.length;
  at("unusual-list").replaceChildren(...state.unusual.map((each) => sample(each.image, `${each.class}, p ${short(each.p_value)}`)));
}

// an item of a list of images
function sample(source, text) {
  const item = document.createElement("li"), image = document.createElement("img"), caption = document.createElement("span");
  image.src = source;
  image.alt = text;
  image.onload = () => image.classList.toggle("large", image.naturalWidth > 150);
  caption.textContent = text;
  item.append(image, caption);
  return item;
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
  if (event.target.matches?.("input, .scroll") || event.ctrlKey || event.metaKey || event.altKey) return;
  const listed = seen.filter(passes), place = listed.indexOf(current);
  const to = { ArrowLeft: place - 1, ArrowRight: place + 1, Home: 0, End: listed.length - 1 }[event.key];
  if (to === undefined || !listed.length) return;
  if (event.key === "Home" || event.key === "End") event.preventDefault();
  show(listed[Math.max(0, Math.min(listed.length - 1, to))]);
});
addEventListener("resize", () => {
  if (current && !current.record.error) histogram(current.record, model);
  if (model) drift();
});
at("map-strength").addEventListener("input", () => { if (current) picture(current); });
at("filters").addEventListener("change", (event) => { filter = event.target.value; seen.forEach(sift); });
at("download").addEventListener("click", download);
at("choose").addEventListener("click", () => at("files").click());
at("choose-folder").addEventListener("click", () => at("folder").click());
for (const id of ["files", "folder"]) {
  at(id).addEventListener("change", async (event) => { await take(event.target.files); event.target.value = ""; });
}
at("reset").addEventListener("click", async () => {
  if (!confirm("Forget the images that were counted, and start the drift monitor again?")) return;
  try { await ask(`${base}/drift/reset`, { method: "POST" }); } catch { return say(UNREACHABLE, true); }
  await drift();
});
at("models").addEventListener("change", (event) => {
  base = `/v1/models/${event.target.value}`;
  start();
});
at("token-form").addEventListener("submit", (event) => {
  event.preventDefault();
  token = at("token").value;
  at("token-form").hidden = true;
  start();
});
start();
