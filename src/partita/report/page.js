"use strict";

const dark = matchMedia("(prefers-color-scheme: dark)");
const touch = matchMedia("(pointer: coarse)");
const controls = document.getElementById("controls");
const charts = document.getElementById("charts");
let contents = JSON.parse(document.getElementById("contents").textContent);
const hidden = new Set();

const colour = (number) => {
  const known = contents.colours[dark.matches ? "dark" : "light"];
  return known[number % known.length];
};
const style = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const short = (value) => value.toLocaleString("en", { maximumSignificantDigits: 3 });
const against = () => controls.elements.against.value;
const axisLabel = () => contents.axes.find(({ name }) => name === against()).label;

function shownControls() {
  const select = controls.elements.against;
  const before = select.value || contents.against;
  select.replaceChildren(...contents.axes.map(({ name, short }) => new Option(short, name, false, name === before)));
  controls.hidden = !contents.axes.length;
  const fieldset = controls.querySelector("fieldset");
  const legend = fieldset.querySelector("legend");
  const curves = contents.curves.length > 1 ? contents.curves : [];
  // Whoever has the focus on one of them keeps it.
  const known = [...fieldset.querySelectorAll("input")].map((input) => input.value).join();
  if (known !== curves.map((curve) => curve.name).join()) fieldset.replaceChildren(legend, ...curves.map(lineLabel));
  fieldset.querySelectorAll(".swatch").forEach((swatch, number) => {
    swatch.style.borderTopColor = colour(number);
  });
}

function lineLabel(curve) {
  const label = document.createElement("label");
  const input = Object.assign(document.createElement("input"), { type: "checkbox", name: "line", value: curve.name });
  input.checked = !hidden.has(curve.name);
  const swatch = Object.assign(document.createElement("span"), { className: "swatch" });
  swatch.style.borderTopStyle = { dot: "dotted", dash: "dashed" }[curve.dash] || "solid";
  label.append(input, swatch, curve.name);
  return label;
}

function points(curve, y, logY) {
  const [xs, ys] = [curve.columns[against()], curve.columns[y]];
  if (!xs || !ys) return [];
  const logX = controls.elements.log.checked;
  const known = (value, log) => value !== null && (!log || value > 0);
  const found = xs.map((x, i) => [x, ys[i]]).filter(([x, v]) => known(x, logX) && known(v, logY));
  // A method that talks once ends where it begins: only its end counts.
  return found.length && found.every(([x]) => x === found[0][0]) ? found.slice(-1) : found;
}

// An error of zero has no logarithm, and is no reason to end a line.
const isLog = (chart) =>
  chart.log && !(chart.y === "error" && contents.curves.some((curve) => (curve.columns.error || []).includes(0)));

function lines(chart) {
  const traces = [];
  contents.curves.forEach((curve, number) => {
    if (hidden.has(curve.name)) return;
    const look = { name: curve.label, type: "scatter", line: { color: colour(number), dash: curve.dash } };
    const found = points(curve, chart.y, isLog(chart));
    if (found.length) {
      const mode = found.length > 1 ? "lines" : "markers";
      traces.push({ ...look, mode, marker: { size: 10, color: colour(number) }, ...columns(found) });
    }
    const end = chart.y === "free_energy" ? points(curve, "log_evidence", false) : [];
    if (end.length) {
      const marker = { size: 10, symbol: "diamond", color: colour(number) };
      traces.push({ ...look, name: `${curve.label}: log evidence`, mode: "markers", marker, ...columns(end) });
    }
  });
  return traces;
}

const columns = (pairs) => ({ x: pairs.map(([x]) => x), y: pairs.map(([, y]) => y) });

// Free energies start orders of magnitude lower than they end up. Of a run that has long converged, a nat is left.
function energyRange(traces) {
  const values = traces.flatMap((trace) => trace.y).sort((a, b) => a - b);
  const [first, high] = [values[0], values[values.length - 1]];
  const low = Math.min(values[Math.floor(0.15 * (values.length - 1))], Math.max(first, high - 1));
  const room = Math.max(high - low, 0.01);
  return [low - 0.05 * room, high + 0.05 * room];
}

// 1, 2, 5, 10, … over a short range; over a long one, fewer; within one decade, as on an axis that is not logarithmic.
function logTicks(traces) {
  const values = traces.flatMap((trace) => trace.y);
  const [low, high] = [Math.min(...values), Math.max(...values)];
  const decades = Math.log10(high / low);
  const ticks = [];
  if (decades < 0.8) {
    const rough = (high - low || high) / 4;
    const power = 10 ** Math.floor(Math.log10(rough));
    const step = power * [1, 2, 5, 10].find((one) => one * power >= rough);
    for (let n = Math.floor(low / step); n * step < high + step; n += 1) if (n > 0) ticks.push(n * step);
  } else {
    const steps = decades < 1.5 ? [1, 2, 5] : decades < 3 ? [1, 3] : [1];
    const each = Math.max(1, Math.ceil(decades / 8));
    for (let power = Math.floor(Math.log10(low)); power <= Math.ceil(Math.log10(high)); power += each) {
      for (const step of steps) ticks.push(Number(`${step}e${power}`));
    }
  }
  const text = (tick) => (tick >= 1e-3 && tick < 1e5 ? String(Number(tick.toPrecision(3))) : tick.toExponential(0));
  return { tickvals: ticks, ticktext: ticks.map(text) };
}

function inWords(chart, traces) {
  const each = traces.map(({ name, y }) =>
    y.length > 1 ? `${name} from ${short(y[0])} to ${short(y[y.length - 1])}` : `${name} at ${short(y[0])}`);
  return `${chart.label} against ${axisLabel()}: ${each.join("; ") || "nothing to draw"}.`;
}

function section(title) {
  for (const found of charts.children) if (found.dataset.title === title) return found;
  const made = document.createElement("figure");
  made.className = "chart";
  made.dataset.title = title;
  const plot = Object.assign(document.createElement("div"), { className: "plot" });
  plot.setAttribute("role", "img");
  made.append(Object.assign(document.createElement("h2"), { textContent: title }), plot, document.createElement("figcaption"));
  return made;
}

function draw(place, traces, layout, words, caption) {
  const [text, plot] = [style("--text"), place.querySelector(".plot")];
  plot.setAttribute("aria-label", words);
  place.querySelector("figcaption").textContent = caption;
  const whole = {
    ...layout,
    font: { color: text, family: "system-ui, sans-serif", size: 13 },
    hoverlabel: { bgcolor: style("--panel"), font: { color: text } },
    modebar: { bgcolor: "rgba(0,0,0,0)", color: style("--soft"), activecolor: text },
    // On a phone, a finger on a chart scrolls the page.
    dragmode: touch.matches ? false : "zoom",
    autosize: true,
  };
  const config = { responsive: true, displaylogo: false, modeBarButtons: [["toImage", "resetScale2d"]] };
  if (touch.matches) config.displayModeBar = false;
  return Plotly.react(plot, traces, whole, config);
}

function drawLines(chart) {
  const place = section(chart.label);
  const traces = lines(chart);
  const grid = { gridcolor: style("--line"), zerolinecolor: style("--line"), automargin: true };
  const type = controls.elements.log.checked ? "log" : "linear";
  const yaxis = { ...grid, type: isLog(chart) ? "log" : "linear" };
  if (isLog(chart) && traces.length) Object.assign(yaxis, logTicks(traces));
  if (chart.y === "free_energy" && traces.length) yaxis.range = energyRange(traces);
  const layout = {
    height: 320, margin: { l: 55, r: 15, t: 26, b: 50 }, showlegend: false, hovermode: "x unified",
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", yaxis,
    xaxis: { ...grid, type, title: { text: axisLabel() } },
    // A zoom lasts while a run goes on, and ends with another axis.
    uirevision: against() + type,
  };
  return draw(place, traces, layout, inWords(chart, traces), chart.words);
}

function drawPicture(picture) {
  // Copies, because Plotly keeps what it is given; in the colours of the theme.
  let text = JSON.stringify({ data: picture.data, layout: picture.layout });
  if (dark.matches) contents.colours.light.forEach((light, i) => { text = text.replaceAll(light, contents.colours.dark[i]); });
  const { data, layout } = JSON.parse(text);
  const labels = contents.curves.filter((curve) => hidden.has(curve.name)).map((curve) => curve.label);
  const shown = data.filter((trace) => !labels.includes(trace.name));
  const place = section(picture.title);
  place.classList.toggle("wide", picture.wide);
  return draw(place, shown, { ...layout, uirevision: "kept" }, `${picture.title}. ${picture.words}`, picture.words);
}

async function drawAll() {
  shownControls();
  // In the page before they are drawn, so that they know how wide they are.
  const titles = [...contents.charts.map((chart) => chart.label), ...contents.pictures.map((picture) => picture.title)];
  for (const old of [...charts.children]) if (!titles.includes(old.dataset.title)) old.remove();
  titles.map(section).forEach((place, i) => { if (charts.children[i] !== place) charts.insertBefore(place, charts.children[i] || null); });
  await Promise.all([...contents.charts.map(drawLines), ...contents.pictures.map(drawPicture)]);
  document.body.dataset.drawn = String(Number(document.body.dataset.drawn || 0) + 1);
}

controls.elements.log.checked = contents.log;
controls.addEventListener("submit", (event) => event.preventDefault());
controls.addEventListener("change", ({ target }) => {
  if (target.name === "line") hidden[target.checked ? "delete" : "add"](target.value);
  drawAll();
});
dark.addEventListener("change", drawAll);

function listen() {
  const state = document.getElementById("state");
  const [word, rest] = state.children;
  let told = null;
  let heard = performance.now();
  const say = (name, text, more) => {
    state.className = name;
    state.hidden = false;
    if (word.textContent !== text) word.textContent = text;
    rest.textContent = more;
  };
  const tell = () => {
    if (!told) return;
    const seconds = Math.round(told.still + (performance.now() - heard) / 1000);
    const ago = seconds < 120 ? `${seconds} s` : `${Math.round(seconds / 60)} min`;
    say(told.state, told.words, told.state === "still" || told.state === "running" ? `Last update ${ago} ago.` : "");
  };
  const source = new EventSource("/events");
  source.addEventListener("contents", ({ data }) => {
    contents = JSON.parse(data);
    for (const part of ["table", "sites"]) document.getElementById(part).innerHTML = contents[part];
    document.getElementById("words").textContent = contents.words;
    drawAll();
  });
  source.addEventListener("state", ({ data }) => {
    told = JSON.parse(data);
    heard = performance.now();
    tell();
  });
  source.onerror = () => {
    told = null;
    say("lost", "No connection.", "`partita watch` has ended, or cannot be reached; this is what was known last.");
  };
  setInterval(tell, 1000);
}

drawAll();
if (document.body.dataset.live === "true") listen();
