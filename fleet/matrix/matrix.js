// A page by zone lists the worst paths of each pair of zones. The others are in its data: a field finds those of a host.
const exact = v => { // four digits, as the rest of the page
  const a = Math.abs(v);
  const [size, unit] = a >= 1e9 ? [1e9, "s"] : a >= 1e6 ? [1e6, "ms"] : a >= 1e3 ? [1e3, "µs"] : [1, "ns"], n = a / size;
  return (Math.sign(v) * n).toFixed(unit == "ns" ? +(n < 100 && n % 1 != 0) : n >= 100 ? 1 : n >= 10 ? 2 : 3) + "\u00a0" + unit;
};
const mostShown = 500;
let pathsByPair;
const pathsOf = key => {
  if (!pathsByPair) {
    pathsByPair = new Map();
    for (const line of document.querySelector("template.data").content.textContent.trim().split("\n").slice(1)) {
      const f = line.split("\t"), pair = f[10] + "\t" + f[11];
      if (!pathsByPair.has(pair)) pathsByPair.set(pair, []);
      pathsByPair.get(pair).push(f);
    }
  }
  return pathsByPair.get(key) || [];
};
const pathRow = ([from, to, p50, p99, sent, least, most, verdict, stat, shift]) => {
  const row = document.createElement("tr"), percent = n => +(100 * n / sent).toPrecision(2) + " %";
  const loss = +sent ? least == most ? percent(most) : `between ${percent(least)} and ${percent(most)}` : "–";
  const cells = [["th", from + " → " + to, ""], ["td", p50 ? exact(+p50) : "–", ""], ["td", p99 ? exact(+p99) : "–", ""], ["td", loss, +most ? "slower" : ""],
    ["td", verdict + (stat && shift && (verdict == "slower" || verdict == "faster") ? `, ${stat} ${+shift < 0 ? "" : "+"}${exact(+shift)}` : ""), "verdict " + verdict]];
  for (const [kind, text, name] of cells) {
    const cell = document.createElement(kind);
    cell.textContent = text;
    if (name) cell.className = name;
    if (kind == "th") cell.scope = "row";
    row.append(cell);
  }
  return row;
};
for (const pair of document.querySelectorAll("details.pairs[data-from]")) {
  pair.addEventListener("toggle", () => {
    const label = document.createElement("label"), input = document.createElement("input"), said = pair.querySelector(".foot"), body = pair.querySelector("tbody");
    const show = () => {
      const all = pathsOf(pair.dataset.from + "\t" + pair.dataset.to), found = all.filter(f => f[0].includes(input.value) || f[1].includes(input.value));
      body.replaceChildren(...found.slice(0, mostShown).map(pathRow));
      said.textContent = found.length > mostShown ? `The first ${mostShown} of ${grouped(found.length)} paths. Type a part of a host's name to see others.` : `${found.length} of ${grouped(all.length)} paths:`;
    };
    input.type = "search";
    input.addEventListener("input", show);
    said.setAttribute("role", "status");
    label.append("Host", input);
    said.before(label);
    show();
  }, { once: true });
}
const openPair = () => {
  const pair = location.hash && document.getElementById(location.hash.slice(1));
  if (pair && pair.matches("details.pairs")) {
    pair.open = true;
    pair.scrollIntoView();
    pair.querySelector("summary").focus();
  }
};
addEventListener("hashchange", openPair);
for (const link of document.querySelectorAll('.matrix a[href^="#"]')) link.addEventListener("click", () => setTimeout(openPair)); // the same address again is no change
openPair();
