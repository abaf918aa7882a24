
"use strict";

// Everything is put into the page as text nodes and attributes, never as HTML.

const data = JSON.parse(document.getElementById("data").textContent);
const PAGE_ROWS = matchMedia("(max-width: 47.99rem)").matches ? 20 : 50;
const EXTREMES = 10;
const MAX_DIFF_CELLS = 4e6;

const byId = (id) => document.getElementById(id);
const whole = (number) => number.toLocaleString("en");
const fixed = (number, digits = 2) => (number === null ? "–" : number.toFixed(digits));
const clamp = (number, low, high) => Math.min(high, Math.max(low, number));

function add(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (value !== undefined && value !== null) node.setAttribute(name, value);
  }
  node.append(...children);
  return node;
}
const html = (tag, attributes = {}, ...children) => add(document.createElement(tag), attributes, children);
const svg = (tag, attributes = {}, ...children) =>
  add(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);

const searchable = (text) => text.normalize().toLowerCase();

// A button that is switched off loses the focus: it goes to another one.
function enable(id, on, other) {
  if (!on && byId(id) === document.activeElement) byId(other).focus();
  byId(id).disabled = !on;
}

// The sentences of a split; scores, groups and rows come as lists, in the order in report.py's _split and _row.
const splits = data.splits.map((split) => ({
  ...split,
  scores: split.scores.map(([name, signature, value, low, high]) => ({ name, signature, value, low, high })),
  by_length: split.by_length.map(([label, sentences, score, ratio]) => ({ label, sentences, score, ratio })),
  rows: split.rows.map(([source, hypothesis, reference, bleu, chrf, lengths, attention], i) => {
    const [sourceLength, hypothesisLength, referenceLength] = lengths;
    const ratio = referenceLength ? hypothesisLength / referenceLength : null;
    const found = searchable(`${source}\n${hypothesis}\n${reference}`);
    return {
      number: i + 1, source, hypothesis, reference, bleu, chrf, ratio, found, attention,
      sourceLength, hypothesisLength, referenceLength,
    };
  }),
}));
let split = splits[0];

// --- facts and scores ---

function showFacts(id, facts) {
  byId(id).replaceChildren(
    ...facts.map(([name, value]) => html("div", {}, html("dt", {}, name), html("dd", { dir: "auto" }, value))),
  );
}

const interval = (score) => (score.low === null ? "" : `${fixed(score.low)} to ${fixed(score.high)}`);

function showSplits() {
  if (splits.length < 2) return;
  const names = splits[0].scores.map((score) => score.name);
  const head = ["Split", ...names, "Length ratio", "Sentences"];
  const body = splits.map((one) => {
    const choose = html("button", { type: "button", class: "choice", onclick: () => showSplit(one) }, one.name);
    one.button = choose;
    return html("tr", {},
      html("th", { scope: "row" }, choose),
      ...one.scores.map((score) => html("td", { class: "number" }, fixed(score.value),
        html("div", { class: "note" }, interval(score)))),
      html("td", { class: "number" }, fixed(one.length_ratio, 3)),
      html("td", { class: "number" }, whole(one.rows.length)));
  });
  byId("splits").append(scrolling("Scores of the splits", html("table", {},
    html("thead", {}, html("tr", {}, ...head.map((name, i) =>
      html("th", { scope: "col", class: i ? "number" : "" }, name)))),
    html("tbody", {}, ...body))));
}

const scrolling = (label, child) =>
  html("div", { class: "scroll", role: "region", "aria-label": label, tabindex: "0" }, child);

function showScores() {
  byId("scores-title").textContent = `Scores on ${split.name}`;
  byId("scores").replaceChildren(...split.scores.map((score) => html("div", { class: "card" },
    html("h3", {}, score.name),
    html("p", { class: "value" }, fixed(score.value)),
    html("p", { class: "interval note" }, [
      ...(score.low === null ? [] : [`95 % interval ${interval(score)}`]),
      ...(score.name === "TER" ? ["lower is better"] : []),
    ].join("; ")),
    html("code", {}, ...score.signature.split(/(?<=\|)/).flatMap((part) => [part, html("wbr")])))));
  showFacts("split-facts", [["sentences", whole(split.rows.length)], ...split.facts]);
}

// --- charts ---

function ticks(low, high, most) {
  const rough = (high - low) / most || 1;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((factor) => factor * power).find((size) => size >= rough * 0.999);
  const first = Math.ceil(low / step - 1e-9);
  return Array.from({ length: Math.floor(high / step + 1e-9) - first + 1 }, (_, i) => (first + i) * step);
}

const tidy = (number) => {
  if (number !== 0 && Math.abs(number) < 0.001) return number.toExponential(1).replace(".0e", "e").replace("-", "−");
  return number.toLocaleString("en", { maximumFractionDigits: Math.abs(number) < 0.1 ? 4 : 2 });
};

// A figure of lines over the steps of training; `series` are {label, kind, points: [[x, y or null], ...]}.
function lineChart(title, unit, series, { fromZero, star } = {}) {
  const [width, height, left, bottom, top] = [380, 230, 46, 26, 10];
  const drawn = series.map((one) => ({ ...one, points: one.points.filter(([, y]) => y !== null) }));
  const points = drawn.flatMap((one) => one.points);
  if (!points.length) return null;
  const xHigh = Math.max(...points.map(([x]) => x));
  const ys = [...points.map(([, y]) => y), ...(star ? [star[1]] : [])];
  const [least, most] = [Math.min(...ys), Math.max(...ys)];
  const room = (most - least || Math.abs(most) || 1) * 0.06;
  const [yLow, yHigh] = [fromZero ? Math.min(0, least) : least - room, most + room];
  const x = (value) => left + (value / (xHigh || 1)) * (width - left - 12);
  const y = (value) => top + ((yHigh - value) / (yHigh - yLow)) * (height - top - bottom);

  const axes = [
    ...ticks(yLow, yHigh, 5).flatMap((tick) => [
      svg("line", { class: "grid", x1: left, x2: width - 12, y1: y(tick), y2: y(tick) }),
      svg("text", { x: left - 6, y: y(tick) + 4, "text-anchor": "end" }, tidy(tick)),
    ]),
    ...ticks(0, xHigh, 4).filter(Number.isInteger).map((tick) =>
      svg("text", { x: x(tick), y: height - 8, "text-anchor": "middle" }, whole(tick))),
  ];
  const lines = drawn.map((one) => svg("g", { class: one.kind },
    svg("path", { class: "line", d: one.points.map(([a, b], i) => `${i ? "L" : "M"}${x(a).toFixed(1)} ${y(b).toFixed(1)}`).join("") }),
    ...(one.points.length > 40 ? [] : one.points.map(([a, b]) =>
      svg("circle", { class: "dot", cx: x(a).toFixed(1), cy: y(b).toFixed(1), r: 2.4 })))));
  if (star) lines.push(svg("circle", { class: `star ${series[0].kind}`, cx: x(star[0]), cy: y(star[1]), r: 5 }));
  const cursor = svg("line", { class: "cursor", y1: top, y2: height - bottom, visibility: "hidden" });
  const ends = drawn.map((one) => `${one.label} from ${tidy(one.points[0]?.[1] ?? NaN)} to ${tidy(one.points.at(-1)?.[1] ?? NaN)}`);
  const said = star ? star[2] : `after step ${whole(xHigh)}: ${drawn.map((one) => `${one.label} ${tidy(one.points.at(-1)?.[1] ?? NaN)}`).join(", ")}`;
  const readout = html("p", { class: "readout" }, said);
  const picture = svg("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": `${title}: ${ends.join("; ")}` },
    ...axes, ...lines, cursor);

  const steps = [...new Set(points.map(([a]) => a))].sort((a, b) => a - b);
  picture.addEventListener("pointermove", (event) => {
    const box = picture.getBoundingClientRect();
    const wanted = (((event.clientX - box.left) / box.width) * width - left) / (width - left - 12) * xHigh;
    const step = steps.reduce((best, at) => (Math.abs(at - wanted) < Math.abs(best - wanted) ? at : best));
    add(cursor, { x1: x(step), x2: x(step), visibility: "visible" }, []);
    const values = drawn.map((one) => [one.label, one.points.find(([at]) => at === step)]).filter(([, point]) => point);
    readout.textContent = `step ${whole(step)}: ${values.map(([label, point]) => `${label} ${tidy(point[1])}`).join(", ")}`;
  });
  picture.addEventListener("pointerleave", () => {
    cursor.setAttribute("visibility", "hidden");
    readout.textContent = said;
  });
  const legend = series.length < 2 ? [] : [html("div", { class: "legend" }, ...series.map((one) =>
    html("span", {}, html("span", { class: `key ${one.kind}` }), one.label, one.note ?? "")))];
  return html("figure", {}, html("h3", {}, title), html("figcaption", {}, unit), picture, ...legend, readout);
}

function showCurves() {
  const { steps, validations, best } = data.curves;
  const column = (rows, i) => rows.map((row) => [row[0], row[i]]);
  const star = best && [best[0], best[1], `best: ${fixed(best[1])} at step ${whole(best[0])}${best[2] ? ` (${best[2]})` : ""}`];
  const figures = [
    lineChart("Loss", "nats per token", [
      { label: "training", note: " (as optimised)", kind: "training", points: column(steps, 1) },
      { label: "validation", kind: "validation", points: column(validations, 1) },
    ].filter((one) => one.points.length)),
    lineChart("BLEU on the validation split", "0 to 100", [{ label: "BLEU", kind: "score", points: column(validations, 2) }],
      { fromZero: true, star }),
    lineChart("Learning rate", "by optimiser step", [{ label: "learning rate", kind: "rate", points: column(steps, 2) }],
      { fromZero: true }),
  ].filter((figure) => figure);
  byId("training").hidden = !figures.length;
  byId("curves").append(...figures);
}

// --- length ---

function showLengths() {
  const main = split.scores[0]?.name ?? "BLEU";
  const most = Math.max(...split.by_length.map((group) => group.score), 1e-9);
  const rows = split.by_length.map((group) => {
    const gauge = html("span");
    gauge.style.width = `${(100 * group.score) / most}%`;
    return html("tr", {},
      html("th", { scope: "row" }, group.label),
      html("td", { class: "number" }, whole(group.sentences)),
      html("td", { class: "number" }, fixed(group.score)),
      html("td", { class: "gauge", "aria-hidden": "true" }, gauge),
      html("td", { class: "number" }, fixed(group.ratio, 3)));
  });
  const head = [["Source", ""], ["Sentences", "number"], [main, "number"], ["", "gauge"], ["Ratio", "number"]];
  const groups = html("div", {}, html("h3", {}, `${main} by length of the source`), html("table", {},
    html("thead", {}, html("tr", {}, ...head.map(([name, kind]) =>
      name ? html("th", { scope: "col", class: kind }, name) : html("td", { class: kind, "aria-hidden": "true" })))),
    html("tbody", {}, ...rows)));
  byId("lengths").replaceChildren(...(rows.length ? [groups] : []), histogram());
}

// How long translations are beside their references, in bars of a tenth; longer than twice is one bar.
function histogram() {
  const [width, height, bottom, top, bars] = [420, 210, 26, 18, 21];
  const counts = Array(bars).fill(0);
  for (const { ratio } of split.rows) if (ratio !== null) counts[Math.min(bars - 1, Math.round(ratio * 10))] += 1;
  const most = Math.max(...counts, 1);
  const step = width / bars;
  const y = (count) => top + (1 - count / most) * (height - top - bottom);
  const picture = svg("svg", {
    viewBox: `0 0 ${width} ${height}`, role: "img",
    "aria-label": counts.map((count, i) => count && `ratio ${(i / 10).toFixed(1)}: ${count}`).filter(Boolean).join(", "),
  },
  svg("line", { class: "grid", x1: 0, x2: width, y1: height - bottom, y2: height - bottom }),
  svg("g", { class: "bars" }, ...counts.flatMap((count, i) => (count ? [
    svg("rect", {
      class: i === 10 ? "even" : null, x: i * step + 2, width: step - 4, y: y(count), height: height - bottom - y(count),
    }),
    svg("text", { x: (i + 0.5) * step, y: y(count) - 4, "text-anchor": "middle" }, whole(count)),
  ] : []))),
  ...counts.flatMap((_, i) => [
    ...(i % 5 ? [] : [svg("text", { x: (i + 0.5) * step, y: height - 8, "text-anchor": "middle" }, i === 20 ? "2+" : (i / 10).toFixed(1))]),
  ]));
  return html("figure", {}, html("h3", {}, "Length of translations over that of their references"),
    html("figcaption", {}, `all together ${fixed(split.length_ratio, 3)}; how many sentences have which ratio:`), picture);
}

// --- differences ---

const WORD = /\s+|[\p{Script=Han}\p{Script=Hiragana}\p{Script=Katakana}]|[\p{L}\p{M}\p{N}]+(?:['’]\p{L}+)*|./gsu;

// The pieces of two texts as [text, is in both]; "in both" by a longest common subsequence of their words.
function compare(a, b) {
  const [left, right] = [a, b].map((text) => (text.match(WORD) ?? []).map((word) => [word, /^\s/.test(word)]));
  const [rows, columns] = [left, right].map((words) => words.filter(([, blank]) => !blank));
  const [n, m] = [rows.length, columns.length];
  if (n * m > MAX_DIFF_CELLS) return [[[a, true]], [[b, true]]];
  const longest = new Uint16Array((n + 1) * (m + 1)); // of what follows row i and column j
  for (let i = n - 1; i >= 0; i -= 1) {
    for (let j = m - 1; j >= 0; j -= 1) {
      longest[i * (m + 1) + j] = rows[i][0] === columns[j][0]
        ? longest[(i + 1) * (m + 1) + j + 1] + 1
        : Math.max(longest[(i + 1) * (m + 1) + j], longest[i * (m + 1) + j + 1]);
    }
  }
  for (let i = 0, j = 0; i < n && j < m;) {
    if (rows[i][0] === columns[j][0]) {
      rows[i][1] = columns[j][1] = true;
      i += 1; j += 1;
    } else if (longest[(i + 1) * (m + 1) + j] >= longest[i * (m + 1) + j + 1]) i += 1;
    else j += 1;
  }
  return [left, right];
}

// The pieces as nodes: runs of what is not in both, with the blanks inside them, in one `tag`.
function marked(pieces, tag) {
  const nodes = [];
  let run = "";
  let blanks = "";
  const flush = () => {
    if (run) nodes.push(html(tag, {}, run));
    if (blanks) nodes.push(blanks);
    run = blanks = "";
  };
  for (const [text, same] of pieces) {
    if (!same) {
      run += blanks + text;
      blanks = "";
    } else if (/^\s/.test(text) && run) blanks += text;
    else {
      flush();
      nodes.push(text);
    }
  }
  flush();
  return nodes;
}

function texts(row) {
  const [hypothesis, reference] = compare(row.hypothesis, row.reference);
  const lines = [
    ["Source", data.src_lang, [row.source]],
    ["Translation", data.tgt_lang, marked(hypothesis, "del")],
    ["Reference", data.tgt_lang, marked(reference, "ins")],
  ];
  return html("dl", { class: "texts" }, ...lines.flatMap(([name, lang, nodes]) =>
    [html("dt", {}, name), html("dd", { lang, dir: "auto" }, ...nodes)]));
}

const figures = (row) => `№ ${whole(row.number)} · BLEU ${fixed(row.bleu, 1)} · chrF ${fixed(row.chrf, 1)} · ${whole(row.hypothesisLength)} of ${whole(row.referenceLength)} ${split.length_unit}`;

// --- worst and best ---

function showExtremes(which) {
  for (const name of ["worst", "best"]) byId(name).setAttribute("aria-pressed", String(name === which));
  const sign = which === "worst" ? 1 : -1; // of equal ones the longest, which say most
  const list = [...split.rows].sort((a, b) =>
    sign * (a.bleu - b.bleu || a.chrf - b.chrf) || b.referenceLength - a.referenceLength || a.number - b.number).slice(0, EXTREMES);
  byId("extremes").replaceChildren(...list.map((row, i) => html("li", {}, texts(row),
    html("div", { class: "bar" }, html("span", { class: "figures" }, figures(row)),
      html("button", { type: "button", "aria-label": `Sentence ${row.number}: details`, onclick: () => showSentence(list, i) }, "Details")))));
}

// --- the table ---

const COLUMNS = [
  { key: "number", name: "№", kind: "number" },
  { key: "source", name: "Source", kind: "text" },
  { key: "hypothesis", name: "Translation", kind: "text" },
  { key: "reference", name: "Reference", kind: "text" },
  { key: "bleu", name: "BLEU", kind: "number", digits: 1 },
  { key: "chrf", name: "chrF", kind: "number", digits: 1 },
  { key: "sourceLength", name: "Length", kind: "number", digits: 0 },
  { key: "ratio", name: "Ratio", kind: "number", digits: 2 },
];
const order = { key: "number", sign: 1 };
const collator = new Intl.Collator(undefined, { numeric: true });
let shown = [];
let page = 0;

function showHead() {
  byId("table").tHead.rows[0].replaceChildren(...COLUMNS.map(({ key, name, kind }) => html("th", {
    scope: "col", role: "columnheader", class: kind,
    "aria-sort": key === order.key ? (order.sign > 0 ? "ascending" : "descending") : null,
  }, html("button", { type: "button", onclick: () => sortBy(key) }, name))));
}

function sortBy(key) {
  order.sign = key === order.key ? -order.sign : 1;
  order.key = key;
  showHead();
  select();
  [...byId("table").tHead.querySelectorAll("button")][COLUMNS.findIndex((column) => column.key === key)].focus();
}

function select() {
  const words = searchable(byId("search").value).split(/\s+/).filter(Boolean);
  const { key, sign } = order;
  const text = COLUMNS.find((column) => column.key === key).kind === "text";
  const smaller = text ? (a, b) => collator.compare(a[key], b[key]) : (a, b) => (a[key] ?? -1) - (b[key] ?? -1);
  shown = split.rows.filter((row) => words.every((word) => row.found.includes(word)));
  shown.sort((a, b) => sign * smaller(a, b) || a.number - b.number);
  showPage(0);
}

function showPage(number) {
  const pages = Math.max(1, Math.ceil(shown.length / PAGE_ROWS));
  page = clamp(number, 0, pages - 1);
  const first = page * PAGE_ROWS;
  const rows = shown.slice(first, first + PAGE_ROWS);
  byId("table").tBodies[0].replaceChildren(...rows.map((row, i) => tableRow(row, first + i)));
  byId("count").textContent = shown.length === split.rows.length
    ? `${whole(shown.length)} sentences` : `${whole(shown.length)} of ${whole(split.rows.length)} sentences`;
  byId("page").textContent = `Page ${whole(page + 1)} of ${whole(pages)}`;
  enable("previous-page", page > 0, "next-page");
  enable("next-page", page < pages - 1, "previous-page");
}

function tableRow(row, place) {
  const cells = COLUMNS.map(({ key, name, kind, digits }) => {
    const lang = kind === "text" ? (key === "source" ? data.src_lang : data.tgt_lang) : null;
    const content = key === "number" ? html("button", { type: "button", "aria-label": `Sentence ${row.number}: details` }, whole(row.number))
      : kind === "text" ? row[key] : fixed(row[key], digits);
    return html("td", { role: "cell", class: kind, "data-label": name, lang, dir: kind === "text" ? "auto" : null }, content);
  });
  const list = shown;
  const look = (event) => { // but not where a text was selected to be copied
    if (event.target.closest("button") || getSelection().isCollapsed) showSentence(list, place);
  };
  return html("tr", { role: "row", onclick: look }, ...cells);
}

// --- one sentence ---

const dialog = byId("dialog");
let opened = { list: [], place: 0 };

function showSentence(list, place) {
  opened = { list, place };
  const row = list[place];
  byId("dialog-title").textContent = `Sentence ${whole(row.number)}`;
  enable("previous", place > 0, "close");
  enable("next", place < list.length - 1, "close");
  if (!dialog.open) dialog.showModal();
  byId("detail").replaceChildren(texts(row), html("p", { class: "figures" }, figures(row)));
  if (row.attention) byId("detail").append(...attention(row.attention));
  dialog.scrollTop = 0;
}

const short = (text) => ([...text].length > 16 ? `${[...text].slice(0, 15).join("")}…` : text);
const LETTER = 7.2; // pixels, as wide as a letter of a label mostly is

// A heat map: rows are the translation's tokens, columns the source's; weights are hundredths, two digits each.
function attention([source, target, digits]) {
  const weight = (i, j) => Number(digits.substr(2 * (i * source.length + j), 2));
  const longest = (labels) => Math.max(...labels.map((label) => [...short(label)].length), 1) * LETTER;
  const left = longest(target) + 12;
  const top = longest(source) * 0.8 + 18; // its labels lean
  const right = longest(source.slice(-1)) * 0.65;
  const cell = clamp((byId("detail").clientWidth - left - right) / source.length, 17, 26);
  const [width, height] = [cell * source.length, cell * target.length];
  const rects = [];
  target.forEach((_, i) => source.forEach((__, j) => {
    const shade = weight(i, j);
    if (shade) rects.push(svg("rect", { x: left + j * cell, y: top + i * cell, width: cell, height: cell, "fill-opacity": shade / 99 }));
  }));
  const cursor = svg("rect", { class: "cell", width: cell, height: cell, visibility: "hidden" });
  const picture = svg("svg", { width: left + width + right, height: top + height + 2, role: "img", "aria-label": "Attention; the same in words is below" },
    svg("g", { class: "weights" }, ...rects),
    svg("rect", { class: "frame", x: left, y: top, width, height }),
    ...target.map((label, i) => svg("text", { x: left - 6, y: top + (i + 0.5) * cell + 4, "text-anchor": "end" }, short(label))),
    ...source.map((label, j) => {
      const [x, y] = [left + (j + 0.5) * cell + 2, top - 6];
      return svg("text", { x, y, transform: `rotate(-52 ${x} ${y})` }, short(label));
    }),
    cursor);
  const hint = `Columns: source. Rows: translation${[...source, ...target].some((label) => label.startsWith("+")) ? "; +: joined to the token before" : ""}.`;
  const readout = html("p", { class: "readout" }, hint);
  picture.addEventListener("pointermove", (event) => {
    const box = picture.getBoundingClientRect();
    const j = Math.floor((event.clientX - box.left - left) / cell);
    const i = Math.floor((event.clientY - box.top - top) / cell);
    const inside = i >= 0 && j >= 0 && i < target.length && j < source.length;
    add(cursor, { x: left + j * cell, y: top + i * cell, visibility: inside ? "visible" : "hidden" }, []);
    readout.textContent = inside ? `“${target[i]}” looked at “${source[j]}”: ${weight(i, j)} %` : hint;
  });
  const rows = target.map((label, i) => {
    const best = source.reduce((most, _, j) => (weight(i, j) > weight(i, most) ? j : most), 0);
    return html("tr", {}, html("th", { scope: "row" }, label), html("td", {}, source[best] ?? ""), html("td", { class: "number" }, `${weight(i, best)} %`));
  });
  const open = byId("detail").clientWidth > left + width + right + 320 ? "" : null; // there is room beside the map
  return [
    html("h3", {}, "Attention", ...(data.attention_of ? [html("span", { class: "note" }, ` ${data.attention_of}`)] : [])),
    html("div", { class: "attention" }, html("div", {},
      html("div", { class: "map", role: "region", "aria-label": "Map of the attention", tabindex: "0" }, picture),
      readout),
    html("details", { open }, html("summary", {}, "In words"), html("table", {},
      html("thead", {}, html("tr", {}, ...["Translation", "looked most at", "weight"].map((name) => html("th", { scope: "col" }, name)))),
      html("tbody", {}, ...rows)))),
  ];
}

// --- start ---

function showSplit(chosen) {
  split = chosen;
  for (const one of splits) one.button?.setAttribute("aria-pressed", String(one === split));
  showScores();
  showLengths();
  showExtremes("worst");
  byId("note").textContent = `${split.rows.some((row) => row.attention) ? " and where the model looked" : ""}; `
    + `length: the source's ${split.length_unit}; ratio: the translation's length over the reference's`;
  select();
}

const step = (by) => { if (opened.list[opened.place + by]) showSentence(opened.list, opened.place + by); };
byId("search").addEventListener("input", select);
byId("worst").addEventListener("click", () => showExtremes("worst"));
byId("best").addEventListener("click", () => showExtremes("best"));
for (const [id, by] of [["previous-page", -1], ["next-page", 1]]) {
  byId(id).addEventListener("click", () => {
    showPage(page + by);
    byId("sentences").scrollIntoView();
  });
}
byId("previous").addEventListener("click", () => step(-1));
byId("next").addEventListener("click", () => step(1));
byId("close").addEventListener("click", () => dialog.close());
dialog.addEventListener("click", (event) => { if (event.target === dialog) dialog.close(); });
dialog.addEventListener("keydown", (event) => {
  if (event.target.closest(".map")) return; // there the arrows scroll
  if (event.key === "ArrowLeft") step(-1);
  if (event.key === "ArrowRight") step(1);
});

showFacts("model-facts", data.facts);
showSplits();
showCurves();
showHead();
showSplit(split);
