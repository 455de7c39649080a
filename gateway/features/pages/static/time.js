"use strict";
// The charts of Over time, drawn by uPlot: the pointer reads a bucket on all of them, a drag zooms in, a click
// lists the sessions that began in that bucket.
(() => {
  const place = document.querySelector("#live-part");
  const help = document.querySelector("#time-help");
  const compact = new Intl.NumberFormat("en", { notation: "compact", maximumSignificantDigits: 3 });
  const fine = new Intl.NumberFormat("en", { maximumSignificantDigits: 3 });
  const shown = {
    usd: (value) => `$${value < 1000 ? fine.format(value) : compact.format(value)}`,
    count: (value) => compact.format(value),
    percent: (value) => `${fine.format(100 * value)}%`,
    seconds: (value) => `${fine.format(value)} s`,
  };
  // Custom properties hold light-dark(...), which a canvas does not resolve.
  const colour = (property) => {
    const probe = document.createElement("i");
    probe.style.color = `var(${property})`;
    document.body.append(probe);
    const found = getComputedStyle(probe).color;
    probe.remove();
    return found;
  };
  const moment = (start, width) => new Date(start * 1000).toISOString().slice(0, width < 86400 ? 16 : 10).replace("T", " ");
  let plots = [];
  let zoom = null;

  const chart = (figure, panel, data) => {
    const { starts, width, names, within } = data;
    const stacked = panel.unit === "usd" || panel.unit === "count";
    const show = shown[panel.unit];
    const foot = figure.querySelector(".panel-foot");
    const holder = figure.querySelector(".panel-plot");
    // Bars lie over each other: the highest, the sum of all, is drawn first.
    const order = [...panel.values.keys()].reverse();
    const sums = (upTo, slot) => panel.values.slice(0, upTo + 1).reduce((sum, row) => sum + (row[slot] ?? 0), 0);
    const rows = order.map((at) => (stacked ? starts.map((_, slot) => sums(at, slot)) : panel.values[at]));
    const ends = `${moment(starts[0], width)} to ${moment(starts[starts.length - 1], width)}`;
    const read = (slot) => {
      if (slot === null || slot === undefined) { foot.textContent = ends; return; }
      const parts = panel.values.flatMap((row, at) =>
        row[slot] === null || row[slot] === undefined ? [] : [`${names.length ? `${names[at][0] || "(none)"} ` : ""}${show(row[slot])}`]);
      foot.textContent = `${moment(starts[slot], width)}: ${parts.join(", ") || "no call"}`;
    };
    const dim = colour("--dim"), line = colour("--line");
    const axis = { stroke: dim, grid: { stroke: line, width: 1 }, ticks: { stroke: line, width: 1 }, font: "11px system-ui" };
    const plot = new uPlot({
      width: holder.clientWidth,
      height: 150,
      legend: { show: false },
      cursor: { sync: { key: "time" }, y: false, drag: { x: true, y: false, dist: 5 }, bind: { dblclick: () => null } },
      tzDate: (seconds) => uPlot.tzDate(new Date(seconds * 1000), "Etc/UTC"),
      scales: {
        x: { range: (_, low, high) => (zoom ? [low, high] : [starts[0] - width / 2, starts[starts.length - 1] + width / 2]) },
        y: { range: (_, low, high) => [0, panel.unit === "percent" ? 1 : high || 1] },
      },
      axes: [{ ...axis, size: 30, space: width < 86400 ? 90 : 50, values: (_, ticks) => ticks.map((at) => moment(at, width).slice(5)) }, { ...axis, size: 48, values: (_, ticks) => ticks.map(show) }],
      series: [{}, ...order.map((at) => stacked
        ? { fill: colour(`--m${at}`), stroke: colour(`--m${at}`), width: 0, paths: uPlot.paths.bars({ size: [0.8, 60] }), points: { show: false } }
        : { stroke: colour(`--m${at}`), width: 1.7, points: { show: true, size: 5, fill: colour(`--m${at}`) } })],
      hooks: {
        setCursor: [(self) => read(self.cursor.idx)],
        setSelect: [(self) => {
          zoom = [self.posToVal(self.select.left, "x"), self.posToVal(self.select.left + self.select.width, "x")];
          help.querySelector("#time-all").hidden = false;
        }],
      },
    }, [starts, ...rows], holder);
    plot.over.addEventListener("click", () => {
      const slot = plot.cursor.idx;
      if (slot === null || slot === undefined) return;
      const query = new URLSearchParams(within);
      query.set("since", starts[slot]);
      query.set("until", starts[slot] + width);
      location.assign(`/dashboard/runs?${query}`);
    });
    if (zoom) plot.setScale("x", { min: zoom[0], max: zoom[1] });
    read(null);
    return plot;
  };

  const draw = () => {
    for (const plot of plots) plot.destroy();
    const data = JSON.parse(place.querySelector("#time-data").textContent);
    plots = [...place.querySelectorAll(".panel")].map((figure, at) => chart(figure, data.panels[at], data));
  };
  help.hidden = false;
  help.querySelector("#time-all").addEventListener("click", (event) => {
    event.target.hidden = true;
    zoom = null;
    draw();
  });
  draw();
  new MutationObserver(draw).observe(place, { childList: true });
  new MutationObserver(draw).observe(document.documentElement, { attributeFilter: ["data-theme"] });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
  addEventListener("resize", draw);
})();
