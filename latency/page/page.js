// Values under the pointer. Each figure says how its pixels map to values (data-x, data-y: lo hi log pixel-lo pixel-hi
// unit); the points are those of the paths that are drawn.
"use strict";
const significant = v => String(+v.toPrecision(3));
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
  report: v => "report " + Math.round(v),
  count: v => significant(v < 0.75 ? 0 : Math.round(v)) + " samples",
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
