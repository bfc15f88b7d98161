// Values under the pointer. Each figure says how its pixels map to values (data-x, data-y: lo hi log pixel-lo pixel-hi
// unit); the points are those of the paths that are drawn.
"use strict";
const grouped = n => String(n).replace(/\B(?=(\d{3})+$)/g, ","); // of an integer
const significant = v => (n => Math.abs(n) < 1000 ? String(n) : grouped(n))(+v.toPrecision(3));
const duration = v => {
  const a = Math.abs(v);
  const [size, unit] = a >= 1e9 ? [1e9, "s"] : a >= 1e6 ? [1e6, "ms"] : a >= 1e3 ? [1e3, "µs"] : [1, "ns"];
  return significant(v / size) + "\u00a0" + unit;
};
const show = {
  ns: duration,
  shift: v => (v > 0 ? "+" : "") + duration(v),
  rate: v => significant(v) + "\u00a0/s",
  bytes: v => Math.round(v) + "\u00a0bytes",
  s: v => v.toFixed(2) + "\u00a0s",
  run: v => "run " + Math.round(v),
  rank: v => "rank " + Math.round(v),
  report: v => "report " + Math.round(v),
  count: v => significant(v < 0.75 ? 0 : Math.round(v)) + " samples",
  percent: v => (v > 0 ? "+" : "") + significant(v) + "\u00a0%",
  pairs: v => significant(Math.round(v)) + " differences",
  nines: v => {
    const percent = 100 * (1 - 10 ** -v);
    return "p" + percent.toFixed(Math.max(0, Math.min(6, Math.ceil(v) - 1))).replace(/\.0+$/, "");
  },
};
const tip = document.createElement("div");
tip.className = "tip";
tip.hidden = true;
document.body.append(tip);
for (const svg of document.querySelectorAll("svg.chart[data-x]")) {
  const axis = name => {
    const [lo, hi, log, a, b, unit] = svg.dataset[name].split(" ");
    const share = p => (p - a) / (b - a);
    return { unit, at: p => +log ? lo * (hi / lo) ** share(p) : +lo + share(p) * (hi - lo), inside: p => share(p) >= 0 && share(p) <= 1 };
  };
  const x = axis("x"), y = axis("y");
  const sweep = x.unit == "rate" || x.unit == "bytes"; // whose points lie far apart
  const line = svg.querySelector("line.axis").cloneNode();
  line.setAttribute("class", "cursor");
  const curves = [...svg.querySelectorAll("[data-name]")].map(c => ({
    name: c.dataset.name, points: [...c.getAttribute("d").matchAll(/[ML](-?[\d.]+) (-?[\d.]+)/g)].map(m => [+m[1], +m[2]]),
  }));
  svg.addEventListener("pointermove", e => {
    const at = new DOMPoint(e.clientX, e.clientY).matrixTransform(svg.getScreenCTM().inverse());
    if (!x.inside(at.x) || !y.inside(at.y)) {
      tip.hidden = true;
      line.remove();
      return;
    }
    const rows = [];
    let px = at.x;
    for (const c of curves) {
      let best = null;
      for (const p of c.points) if (!best || Math.abs(p[0] - at.x) < Math.abs(best[0] - at.x)) best = p;
      if (best && Math.abs(best[0] - at.x) < (sweep ? Infinity : Math.max(40, 400 / c.points.length))) {
        if (!rows.length) px = best[0];
        rows.push(c.name + " " + show[y.unit](y.at(best[1])));
      }
    }
    if (!curves.length) rows.push(show[y.unit](y.at(at.y)));
    tip.replaceChildren(...[show[x.unit](x.at(px)), ...rows].map(text => {
      const p = document.createElement("p");
      p.textContent = text;
      return p;
    }));
    const [bottom, top] = svg.dataset.y.split(" ").slice(3, 5);
    for (const [k, v] of Object.entries({ x1: px, x2: px, y1: top, y2: bottom })) line.setAttribute(k, v);
    svg.append(line);
    tip.hidden = false;
    const left = e.clientX + 14 + tip.offsetWidth > document.documentElement.clientWidth ? e.clientX - 14 - tip.offsetWidth : e.clientX + 14;
    tip.style.transform = `translate(${Math.max(4, left)}px,${Math.max(4, e.clientY - tip.offsetHeight - 10)}px)`;
  });
  svg.addEventListener("pointerleave", () => { tip.hidden = true; line.remove(); });
}

// Each plot can be saved as a picture and copied as data, without a server.
const lines = figure => [...figure.querySelectorAll("template.data")].map(t => t.content.textContent).join("\n");
const asCSV = tsv => tsv.replace(/[^\n]+/g, line => line.split("\t").map(f => /[",]/.test(f) ? '"' + f.replaceAll('"', '""') + '"' : f).join(","));
const fileName = (title, kind) => ((document.querySelector("meta[property='og:title']")?.content ?? document.querySelector("h1").textContent) + " " + title).replace(/[^A-Za-z0-9.]+/g, "-").replace(/^-|-$/g, "") + "." + kind;
const download = (blob, name) => {
  const a = document.createElement("a");
  a.href = URL.createObjectURL(blob);
  a.download = name;
  document.body.append(a);
  a.click();
  a.remove();
  setTimeout(() => URL.revokeObjectURL(a.href), 60000);
};
// A picture is an SVG with title and legend, and with the page's style in each element: of a figure's charts as drawn for a desk, or of its table.
const svgNS = new DOMParser().parseFromString("<svg>", "text/html").querySelector("svg").namespaceURI; // a page names no address
const make = (to, name, values, text) => {
  const e = document.createElementNS(svgNS, name);
  for (const [k, v] of Object.entries(values)) e.setAttribute(k, v);
  if (text) e.textContent = text;
  to.append(e);
  return e;
};
const picture = (title, figure) => {
  const at = getComputedStyle(figure), font = { "font-family": at.fontFamily, fill: at.color }, table = figure.querySelector("table");
  const root = document.createElementNS(svgNS, "svg");
  make(root, "rect", { width: "100%", height: "100%", fill: at.backgroundColor });
  make(root, "text", { x: 14, y: 26, "font-size": 16, "font-weight": 600, ...font }, title);
  const [width, height] = table ? drawTable(root, table) : drawCharts(root, figure, font, at);
  for (const [k, v] of Object.entries({ width, height, viewBox: `0 0 ${width} ${height}` })) root.setAttribute(k, v);
  return { width, height, blob: new Blob([new XMLSerializer().serializeToString(root)], { type: "image/svg+xml" }) };
};
// A colour as programs other than browsers read it, on the page's ground.
const opaque = (colour, ground) => {
  const pen = Object.assign(document.createElement("canvas"), { width: 1, height: 1 }).getContext("2d");
  for (pen.fillStyle of [ground, colour]) pen.fillRect(0, 0, 1, 1);
  return `rgb(${pen.getImageData(0, 0, 1, 1).data.slice(0, 3).join(", ")})`;
};
const drawTable = (root, table) => {
  const box = table.getBoundingClientRect(), left = 14 - box.left, top = 38 - box.top, range = document.createRange();
  for (const cell of table.querySelectorAll("th,td")) {
    const r = cell.getBoundingClientRect(), style = getComputedStyle(cell);
    make(root, "rect", { x: r.left + left, y: r.top + top, width: r.width, height: r.height, fill: opaque(style.backgroundColor, root.firstChild.getAttribute("fill")), stroke: parseFloat(style.borderTopWidth) ? style.borderTopColor : "none", "stroke-width": 0.5 });
    const texts = document.createTreeWalker(cell, NodeFilter.SHOW_TEXT);
    while (texts.nextNode()) {
      const text = texts.currentNode, style = getComputedStyle(text.parentElement), size = parseFloat(style.fontSize);
      range.selectNodeContents(text);
      const r = range.getBoundingClientRect();
      if (text.data.trim()) make(root, "text", { x: r.left + left, y: (r.top + r.bottom) / 2 + top + 0.35 * size, "font-family": style.fontFamily, "font-size": size, "font-weight": style.fontWeight, fill: style.color }, text.data);
    }
  }
  return [Math.ceil(box.width) + 28, Math.ceil(box.height) + 52];
};
const drawCharts = (root, figure, font, at) => {
  const charts = [...figure.querySelectorAll("svg.chart.wide")], width = 920;
  const pen = document.createElement("canvas").getContext("2d");
  pen.font = "13px " + at.fontFamily;
  let x = 14, y = 50;
  for (const key of figure.querySelectorAll(".legend li")) {
    const name = key.textContent.trim(), wide = 30 + pen.measureText(name).width;
    if (x > 14 && x + wide > width - 14) { x = 14; y += 20; }
    const swatch = getComputedStyle(key.querySelector(".swatch"));
    make(root, "line", { x1: x, x2: x + 22, y1: y - 4, y2: y - 4, stroke: swatch.borderTopColor, "stroke-width": 3, "stroke-dasharray": swatch.borderTopStyle == "dashed" ? "6 5" : "none" });
    make(root, "text", { x: x + 30, y, "font-size": 13, ...font }, name);
    x += wide + 20;
  }
  y = x > 14 ? y + 12 : 38;
  for (const chart of charts) {
    const copy = chart.cloneNode(true), box = chart.viewBox.baseVal;
    copy.querySelectorAll(".cursor").forEach(e => e.remove());
    const from = chart.querySelectorAll(":scope > :not(.cursor)");
    [...copy.children].forEach((e, i) => {
      const style = getComputedStyle(from[i]);
      for (const name of ["fill", "stroke", "stroke-width", "stroke-dasharray", "stroke-linejoin", "opacity", "font-size", "font-family"]) e.setAttribute(name, style.getPropertyValue(name));
      e.removeAttribute("class");
      e.removeAttribute("data-name");
    });
    for (const [k, v] of Object.entries({ y, width: box.width, height: box.height })) copy.setAttribute(k, v);
    for (const name of ["class", "data-x", "data-y"]) copy.removeAttribute(name);
    root.append(copy);
    y += box.height + 8;
  }
  return [width, y];
};
const asPNG = async drawn => {
  const image = new Image(), canvas = document.createElement("canvas"), url = URL.createObjectURL(drawn.blob);
  const scale = Math.min(2, 16384 / drawn.width, 16384 / drawn.height); // browsers draw no larger canvas
  image.src = url;
  await image.decode();
  canvas.width = drawn.width * scale;
  canvas.height = drawn.height * scale;
  canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
  URL.revokeObjectURL(url);
  return new Promise(done => canvas.toBlob(done, "image/png"));
};
// The clipboard needs a secure page; an older way works on others. If neither does, the data are saved.
const copy = async (text, name) => {
  try {
    await navigator.clipboard.writeText(text);
    return "Copied.";
  } catch {
    const area = document.createElement("textarea");
    area.value = text;
    area.setAttribute("aria-label", "data");
    document.body.append(area);
    area.select();
    const done = document.execCommand("copy");
    area.remove();
    if (!done) download(new Blob([text], { type: "text/plain" }), name);
    return done ? "Copied." : "Saved.";
  }
};
for (const plot of document.querySelectorAll(".plot")) {
  const figure = plot.querySelector("figure"), title = plot.querySelector("h2").textContent;
  const bar = document.createElement("div"), said = document.createElement("span");
  bar.className = "export";
  bar.setAttribute("role", "group");
  bar.setAttribute("aria-label", "Save or copy: " + title);
  said.setAttribute("role", "status");
  for (const [text, act] of Object.entries({
    "Save SVG": () => (download(picture(title, figure).blob, fileName(title, "svg")), "Saved."),
    "Save PNG": async () => (download(await asPNG(picture(title, figure)), fileName(title, "png")), "Saved."),
    "Copy CSV": () => copy(asCSV(lines(figure)), fileName(title, "csv")),
    "Copy TSV": () => copy(lines(figure), fileName(title, "tsv")),
  })) {
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = text;
    button.addEventListener("click", async () => {
      said.textContent = "";
      said.textContent = await act();
    });
    bar.append(button);
  }
  bar.append(said);
  figure.querySelector("figcaption").before(bar);
}

