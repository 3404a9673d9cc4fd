"use strict";
// Curves of the page: what is drawn, thinned out and smoothed here, and drawn by plotly.js.

const data = JSON.parse(document.getElementById("data").textContent);
const POINTS = 1200; // stretches of a curve, each drawn by its lowest and highest value
// Okabe and Ito's colours, told apart without colour vision; dashes tell further curves apart.
const COLOURS = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#8A8A8A"];
const DASHES = ["solid", "dash", "dot", "dashdot", "longdash", "longdashdot"];
const UNITS = [["s", 1], ["min", 60], ["h", 3600], ["d", 86400]];

const control = name => document.getElementById(name);
const several = data.runs.length > 1;
const packed = JSON.parse(document.getElementById("values").textContent);
const arrays = {}; // those that were needed so far

async function unpack(place) {
  if (place === null || place in arrays) return;
  const text = atob(packed[place]);
  const bytes = new Uint8Array(text.length);
  for (let i = 0; i < text.length; i++) bytes[i] = text.charCodeAt(i);
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  arrays[place] = new Float64Array(await new Response(stream).arrayBuffer());
}

// Unpacks what a panel draws.
async function fetched(panel, axis) {
  const keys = [...panel.keys, axis];
  const needed = data.runs.flatMap(run => keys.flatMap(key => run.series[key] || []));
  await Promise.all(needed.map(unpack));
}

// Text for plotly.js, which reads a few tags and entities.
function plain(text) {
  return text.replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");
}

// The values of a rising key at other steps than its own, straight between its points.
function at(steps, values, wanted) {
  const found = new Float64Array(wanted.length);
  let i = 0;
  for (let k = 0; k < wanted.length; k++) {
    while (i + 1 < steps.length && steps[i + 1] <= wanted[k]) i++;
    const done = i + 1 < steps.length ? (wanted[k] - steps[i]) / (steps[i + 1] - steps[i]) : 0;
    const inside = wanted[k] >= steps[0] && wanted[k] <= steps[steps.length - 1];
    found[k] = inside ? values[i] + (done ? done * (values[i + 1] - values[i]) : 0) : NaN;
  }
  return found;
}

function curve(run, key, axis) {
  const places = run.series[key];
  if (!places) return null;
  const [steps, times, y] = places.map(place => place === null ? null : arrays[place]);
  if (axis === "step") return {x: steps, y};
  if (axis === "time") return times && {x: times.map(time => (time - run.start) / clock[1]), y};
  const other = run.series[axis];
  return other ? {x: at(arrays[other[0]], arrays[other[2]], steps), y} : null;
}

// Exponential mean, begun without bias to the first value, as TensorBoard smooths.
function smoothed(y, weight) {
  const out = new Float64Array(y.length);
  let mean = 0, seen = 0;
  for (let i = 0; i < y.length; i++) {
    if (!isFinite(y[i])) { out[i] = NaN; continue; }
    mean = weight * mean + (1 - weight) * y[i];
    seen = weight * seen + (1 - weight);
    out[i] = mean / seen;
  }
  return out;
}

// The part of a curve in a range of x, by the lowest and highest value of each stretch.
function thinned({x, y}, range) {
  let begin = 0, end = x.length;
  if (range) {
    while (begin + 1 < end && !(x[begin + 1] >= range[0])) begin++;
    while (end - 1 > begin && !(x[end - 2] <= range[1])) end--;
  }
  const count = end - begin;
  if (count <= 2 * POINTS) return {x: x.slice(begin, end), y: y.slice(begin, end)};
  const keptX = [], keptY = [];
  const keep = i => { keptX.push(x[i]); keptY.push(y[i]); };
  for (let part = 0; part < POINTS; part++) {
    const first = begin + Math.floor(part * count / POINTS);
    const last = begin + Math.floor((part + 1) * count / POINTS);
    let low = first, high = first, gap = -1;
    for (let i = first; i < last; i++) {
      if (!isFinite(y[i])) gap = i;
      else {
        if (!(y[low] <= y[i])) low = i;
        if (!(y[high] >= y[i])) high = i;
      }
    }
    const chosen = gap < 0 ? [low, high] : [low, high, gap];
    [...new Set(chosen)].sort((a, b) => a - b).forEach(keep);
  }
  return {x: keptX, y: keptY};
}

function missing(y) {
  let count = 0;
  for (const value of y) if (!isFinite(value)) count++;
  return count;
}

function shownRuns() {
  return [...document.querySelectorAll("#runs input")].map(box => box.checked);
}

function name(run, key, panel, y) {
  const parts = [];
  if (panel.keys.length > 1 || !several) parts.push(key);
  if (several) parts.push(run.label);
  const lost = missing(y);
  return plain(parts.join(" · ") + (lost ? ` (${lost} not finite)` : ""));
}

// Runs that are equal still show: the later ones lie as thinner lines upon the earlier ones.
function width(number) {
  return 1.6 + .9 * Math.max(0, Math.min(data.runs.length, 4) - 1 - number);
}

// The curves of a panel, in pairs where it draws spreads.
function traces(panel, axis, range) {
  const found = [], weight = Number(control("smoothing").value), shown = shownRuns();
  data.runs.forEach((run, number) => {
    if (!shown[number]) return;
    panel.keys.forEach((key, place) => {
      const whole = curve(run, key, axis);
      if (!whole) return;
      const group = panel.spread ? place >> 1 : place;
      const upper = panel.spread && place % 2 === 1;
      const colour = COLOURS[(several ? number : group) % COLOURS.length];
      const line = {color: colour, width: panel.spread ? 1 : width(number),
        dash: DASHES[(several ? group : Math.floor(group / COLOURS.length)) % DASHES.length]};
      const base = {
        type: "scatter", mode: panel.points ? "markers" : "lines", line,
        marker: {color: colour, size: 5}, name: name(run, key, panel, whole.y),
        fill: upper ? "tonexty" : "none", fillcolor: colour + "40",
      };
      if (weight > 0 && !panel.points && !panel.spread) {
        found.push({...base, ...thinned(whole, range), opacity: .25, showlegend: false,
          hoverinfo: "skip"});
        whole.y = smoothed(whole.y, weight);
      }
      const drawn = {...base, ...thinned(whole, range)};
      if (drawn.x.length === 1) drawn.mode = "markers";
      found.push(drawn);
    });
  });
  return found;
}

function axisOf(panel) {
  return control("axis").value || panel.axis;
}

function axisLabel(axis) {
  if (axis === "time") return `time since the start [${clock[0]}]`;
  const known = data.axes.find(one => one.key === axis);
  return known ? known.label : axis;
}

function layout(panel, axis, count) {
  const style = getComputedStyle(document.body);
  const line = style.getPropertyValue("--line");
  const both = {gridcolor: line, zerolinecolor: line, linecolor: line, automargin: true};
  const log = (control("scale").value || (panel.log ? "log" : "linear")) === "log";
  return {
    paper_bgcolor: "transparent", plot_bgcolor: "transparent",
    font: {color: style.color, size: 12}, margin: {l: 45, r: 8, t: 8, b: 36},
    hovermode: "x unified", hoverdistance: 40,
    hoverlabel: {bgcolor: style.getPropertyValue("--back"), namelength: 60},
    xaxis: {...both, title: {text: plain(axisLabel(axis)), font: {size: 11}}, hoverformat: ",.7~g"},
    yaxis: {...both, type: log ? "log" : "linear", hoverformat: ".7~g", exponentformat: "e",
      rangemode: panel.points ? "tozero" : "normal"},
    showlegend: count > 1, legend: {orientation: "h", yref: "container", y: 0,
      yanchor: "bottom", x: 0, font: {size: 11}, itemsizing: "constant"},
  };
}

async function draw(element, range) {
  const [row, place] = element.parentElement.dataset.place.split("/");
  const panel = data.rows[row][place], axis = axisOf(panel);
  await fetched(panel, axis);
  const found = traces(panel, axis, range);
  const wanted = layout(panel, axis, found.filter(one => one.showlegend !== false).length);
  if (range) wanted.xaxis.range = range;
  // A drawing is the answer to a zoom, and must not be taken for one.
  element.dataset.busy = "yes";
  await Plotly.react(element, found, wanted,
    {responsive: true, displaylogo: false, modeBarButtonsToRemove: ["lasso2d", "select2d"]});
  if (!element.dataset.drawn) {
    element.dataset.drawn = "yes";
    element.on("plotly_relayout", event => zoomed(element, event));
  }
  delete element.dataset.busy;
}

function zoomed(element, event) {
  if (element.dataset.busy) return;
  if ("xaxis.range[0]" in event) {
    draw(element, [event["xaxis.range[0]"], event["xaxis.range[1]"]]);
  } else if (event["xaxis.autorange"]) {
    draw(element, null);
  }
}

// One chart at a time, so that the page answers in between.
const waiting = new Set();
let working = false;
async function work() {
  if (working) return;
  working = true;
  for (const element of waiting) {
    waiting.delete(element);
    await draw(element, null);
    await new Promise(resolve => setTimeout(resolve));
  }
  working = false;
  if (!document.documentElement.dataset.ready)
    document.documentElement.dataset.ready = Math.round(performance.now());
}

const near = new IntersectionObserver(entries => {
  for (const {target, isIntersecting} of entries) {
    target.dataset.near = isIntersecting ? "yes" : "";
    if (isIntersecting && !target.dataset.drawn) waiting.add(target);
  }
  work();
}, {rootMargin: "200px"});

function redraw() {
  for (const element of document.querySelectorAll(".chart")) {
    if (element.dataset.near) waiting.add(element);
    else if (element.dataset.drawn) {
      Plotly.purge(element);
      delete element.dataset.drawn;
    }
  }
  work();
}

function find(text) {
  const wanted = text.toLowerCase();
  for (const element of document.querySelectorAll(".panel")) {
    const [row, place] = element.dataset.place.split("/");
    const {title, keys} = data.rows[row][place];
    element.hidden = ![title, ...keys].some(one => one.toLowerCase().includes(wanted));
  }
  for (const section of document.querySelectorAll("section"))
    section.hidden = !section.querySelector(".panel:not([hidden])");
}

const seconds = Math.max(...data.runs.map(run => run.seconds));
const clock = UNITS.findLast(unit => seconds >= 2 * unit[1]) || UNITS[0];
document.querySelectorAll("#runs .swatch").forEach((swatch, number) => {
  swatch.style.background = COLOURS[number % COLOURS.length];
  swatch.hidden = !several;
});
document.querySelectorAll(".chart").forEach(element => near.observe(element));
for (const name of ["axis", "scale", "runs"]) control(name).addEventListener("change", redraw);
control("smoothing").addEventListener("input", event => {
  control("weight").textContent = event.target.value;
  redraw();
});
control("find").addEventListener("input", event => find(event.target.value));
control("theme").addEventListener("change", event => {
  if (event.target.value) document.documentElement.dataset.theme = event.target.value;
  else delete document.documentElement.dataset.theme;
  redraw();
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
