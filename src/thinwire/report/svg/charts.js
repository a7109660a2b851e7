"use strict";
// Line charts: values under the pointer, and keys of the legend that hide and show their line. Without this script
// every chart is a plain picture, and every value is in the table below it.
window.charts = (() => {
  const hidden = new Map(); // names by chart: a chart that is drawn anew looks as before
  const tip = document.createElement("div");
  tip.className = "tip";
  tip.setAttribute("role", "status");
  tip.hidden = true;

  const nameOf = (chart) => chart.getAttribute("aria-label");
  const seriesOf = (chart) => [...chart.querySelectorAll("[data-series]")];
  const visible = (series) => !series.classList.contains("off");

  const show = (chart, name, on) => {
    for (const one of chart.querySelectorAll("[data-series], [data-key]")) {
      if ((one.dataset.series ?? one.dataset.key) !== name) continue;
      one.classList.toggle("off", !on);
      if (one.dataset.key !== undefined) one.setAttribute("aria-pressed", String(on));
    }
  };

  const toggle = (key) => {
    const chart = key.closest("svg"), name = key.dataset.key;
    const names = hidden.get(nameOf(chart)) ?? new Set();
    if (!names.delete(name)) names.add(name);
    hidden.set(nameOf(chart), names);
    show(chart, name, !names.has(name));
  };

  const read = (series) => series.dataset.values.split(";").map((text) => {
    const [left, top, x, y] = text.split(",");
    return { left: Number(left), top: Number(top), x, y };
  });

  const nearest = (series, left) => {
    const points = read(series);
    return points.reduce((best, one) => (Math.abs(one.left - left) < Math.abs(best.left - left) ? one : best), points[0]);
  };

  const place = (event) => {
    const beside = event.clientX + 14 + tip.offsetWidth < innerWidth;
    tip.style.left = `${Math.max(4, beside ? event.clientX + 14 : event.clientX - 14 - tip.offsetWidth)}px`;
    tip.style.top = `${Math.min(event.clientY + 14, innerHeight - tip.offsetHeight - 4)}px`;
  };

  const line = (series, point, single) => {
    const row = document.createElement("div");
    const mark = document.createElement("b");
    mark.className = [...(series.querySelector(".line, .fill")?.classList ?? [])].filter((one) => /^c\d$/.test(one)).join(" ");
    row.append(mark, single ? point.y : `${series.dataset.series}: ${point.y}`);
    return row;
  };

  const dots = (chart, points) => {
    for (const old of chart.querySelectorAll(".dot")) old.remove();
    for (const { left, top } of points) {
      const dot = document.createElementNS("http://www.w3.org/2000/svg", "circle");
      for (const [name, value] of Object.entries({ class: "dot", cx: left, cy: top, r: 3.5 })) dot.setAttribute(name, value);
      chart.append(dot);
    }
  };

  const clear = () => {
    tip.hidden = true;
    for (const dot of document.querySelectorAll("svg .dot")) dot.remove();
  };

  const follow = (event) => {
    const chart = event.target.closest?.("svg");
    const series = chart ? seriesOf(chart).filter(visible) : [];
    if (series.length === 0) return clear();
    const left = (event.clientX - chart.getBoundingClientRect().left) * chart.viewBox.baseVal.width / chart.clientWidth;
    const found = series.map((one) => [one, nearest(one, left)]);
    const [, closest] = found.reduce((best, one) => (Math.abs(one[1].left - left) < Math.abs(best[1].left - left) ? one : best));
    const head = document.createElement("strong");
    head.textContent = `${chart.dataset.x ?? ""} ${closest.x}`.trim();
    tip.replaceChildren(head, ...found.map(([one, point]) => line(one, point, seriesOf(chart).length === 1)));
    tip.hidden = false;
    dots(chart, found.map(([, point]) => point));
    place(event);
  };

  const upgrade = (root) => {
    for (const chart of root.querySelectorAll("svg")) {
      const names = new Set(seriesOf(chart).map((one) => one.dataset.series));
      for (const key of chart.querySelectorAll("[data-key]")) {
        if (!names.has(key.dataset.key)) continue;
        chart.setAttribute("role", "group"); // the parts of an img cannot be reached
        for (const [name, value] of Object.entries({ tabindex: "0", role: "button", "aria-pressed": "true" })) key.setAttribute(name, value);
        key.setAttribute("aria-label", key.dataset.key);
      }
      for (const name of hidden.get(nameOf(chart)) ?? []) show(chart, name, false);
    }
  };

  document.addEventListener("pointermove", follow, { passive: true });
  document.addEventListener("pointerdown", follow, { passive: true });
  document.addEventListener("click", (event) => {
    const key = event.target.closest?.("[data-key][role=button]");
    if (key) toggle(key);
  });
  document.addEventListener("keydown", (event) => {
    const key = event.target.closest?.("[data-key][role=button]");
    if (!key || (event.key !== "Enter" && event.key !== " ")) return;
    event.preventDefault();
    toggle(key);
  });
  document.body.append(tip);
  upgrade(document);
  return { upgrade };
})();
