"use strict";
// What the page draws: a picture with its map, charts and bars. It knows neither the service nor the list of images.

const LARGEST = 720;        // pixels of the picture that is shown
const at = (id) => document.getElementById(id);
const svg = (name, attributes) => {
  const element = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  return element;
};

// The picture, and over the part of it that the network sees the map: blue adds to the cosine, red takes from it.
function drawPicture(canvas, bitmap, map, strength, seenBy) {
  const context = canvas.getContext("2d");
  if (!bitmap) {
    canvas.width = 300; canvas.height = 60;
    context.fillStyle = getComputedStyle(canvas).color;
    context.font = "14px system-ui, sans-serif";
    context.fillText("The browser cannot show this format.", 10, 35);
    return;
  }
  const small = Math.max(bitmap.width, bitmap.height) <= 150;
  const scale = small ? Math.ceil(300 / Math.max(bitmap.width, bitmap.height)) : Math.min(1, LARGEST / Math.max(bitmap.width, bitmap.height));
  canvas.width = Math.max(1, Math.round(bitmap.width * scale));
  canvas.height = Math.max(1, Math.round(bitmap.height * scale));
  canvas.classList.toggle("large", !small);
  context.imageSmoothingEnabled = !small;
  context.drawImage(bitmap, 0, 0, canvas.width, canvas.height);
  if (!map || !strength) return;
  const { width, height, resize } = seenBy;
  let [x, y, w, h] = [0, 0, canvas.width, canvas.height];
  if (resize === "crop") {
    const part = Math.min(canvas.width / width, canvas.height / height);
    [w, h] = [width * part, height * part];
    [x, y] = [(canvas.width - w) / 2, (canvas.height - h) / 2];
  }
  context.imageSmoothingEnabled = true;
  context.imageSmoothingQuality = "high";
  context.globalAlpha = strength;
  context.drawImage(tinted(map), x, y, w, h);
  context.globalAlpha = 1;
  if (x > 1 || y > 1) { context.strokeStyle = "#fff"; context.setLineDash([6, 4]); context.strokeRect(x + 0.5, y + 0.5, w - 1, h - 1); }
}

function tinted(map) {
  const canvas = document.createElement("canvas");
  [canvas.width, canvas.height] = [map[0].length, map.length];
  const context = canvas.getContext("2d"), data = context.createImageData(canvas.width, canvas.height);
  const largest = Math.max(1e-9, ...map.flat().map(Math.abs));
  map.flat().forEach((value, i) => {
    data.data.set([...(value >= 0 ? [33, 102, 214] : [201, 48, 22]), Math.round(255 * Math.abs(value) / largest)], 4 * i);
  });
  context.putImageData(data, 0, 0);
  return canvas;
}

// An empty chart as wide as its place, so that its text has the size of other text.
function emptyChart(id, height) {
  const chart = at(id), wide = Math.max(200, Math.round(chart.getBoundingClientRect().width));
  chart.setAttribute("viewBox", `0 0 ${wide} ${height}`);
  chart.replaceChildren();
  return [chart, wide];
}

// Where an image lies among the calibration images.
function histogram(record, model) {
  const { of, counts, edges } = model.calibration.histogram;
  const value = of === "cosine" ? record.cosine : record.score;
  const low = Math.min(edges[0], value), high = Math.max(edges[edges.length - 1], value);
  const pad = 0.04 * (high - low || 1);
  const most = Math.max(...counts);
  const [chart, wide] = emptyChart("histogram", 130);
  const x = (v) => 10 + (wide - 20) * (v - low + pad) / (high - low + 2 * pad);
  counts.forEach((count, i) => chart.append(svg("rect", {
    class: "bar", x: x(edges[i]), width: Math.max(1, x(edges[i + 1]) - x(edges[i]) - 0.5),
    y: 105 - 90 * count / most, height: 90 * count / most,
  })));
  chart.append(svg("line", { class: "base", x1: 10, x2: wide - 10, y1: 105, y2: 105 }));
  const single = !model.per_class; // one threshold for all classes
  if (single) {
    const limit = of === "cosine" ? -model.threshold : model.threshold;
    chart.append(svg("line", { class: "limit", x1: x(limit), x2: x(limit), y1: 10, y2: 105 }));
  }
  chart.append(svg("line", { class: `mark ${kind(record)}`, x1: x(value), x2: x(value), y1: 4, y2: 108 }));
  const label = svg("text", { x: Math.min(wide - 60, Math.max(60, x(value))), y: 122, "text-anchor": "middle" });
  label.textContent = `this image ${value.toFixed(3)}`;
  chart.append(label);
  const images = model.calibration.images;
  const side = of === "score" ? " (larger = more out-of-distribution)" : "";
  at("where-caption").textContent = `Its ${of}${side} among those of ${images} calibration images` +
    (single ? "; dashed: the threshold" : "");
  chart.setAttribute("aria-label", `${of} ${value.toFixed(3)}; those of ${images} calibration images lie between ` +
    `${edges[0].toFixed(3)} and ${edges[edges.length - 1].toFixed(3)}`);
}

// The nearest classes as bars.
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

// The evidence of drift over the images so far, on a logarithmic scale.
function driftLine(state) {
  const odds = 1 / state.level;
  const [chart, wide] = emptyChart("drift-line", 110), points = state.trace;
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
