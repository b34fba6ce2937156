// Draws the charts of the page: each element of the class "chart" has its points behind
// it, of which the functions here make a Vega-Lite specification. Colors are the style
// sheet's variables, so a chart follows dark mode and print without being drawn again.
(function () {
  "use strict";
  const HEIGHT = 220;
  const DASHES = [[1, 0], [6, 3], [2, 2], [9, 3, 2, 3]];
  const INK = "var(--muted)", GRID = "var(--grid)";

  const quantitative = (field, more) => ({ field, type: "quantitative", ...more });
  const nominal = (field, more) => ({ field, type: "nominal", ...more });
  const color = nominal("color", { scale: null });

  const base = (height) => ({
    width: "container",
    height,
    autosize: { type: "fit", contains: "padding" },
    background: null,
    data: { name: "points" },
    config: {
      aria: false, // The page describes the chart, with a table beside it.
      font: "system-ui, sans-serif",
      view: { stroke: null },
      axis: {
        labelColor: INK, titleColor: INK, titleFontWeight: "normal",
        gridColor: GRID, domainColor: GRID, tickColor: GRID, labelOverlap: true,
      },
      axisX: { grid: false, tickCount: 6 },
      axisY: { tickCount: 5, domain: false, ticks: false },
    },
  });

  // Curves over epochs, and vertical lines at the moments of `marks`.
  function curves({ columns, epochs, scale, unit }) {
    const rules = {
      data: { name: "marks" },
      mark: { type: "rule", strokeWidth: 1, strokeDash: [3, 3] },
      encoding: { y: null, color, tooltip: nominal("text") },
    };
    const clip = !scale.nice; // Else all values are on the axis, with whole markers.
    const looks = {
      raw: { strokeWidth: 1, opacity: 0.35 },
      smooth: { strokeWidth: 2 },
      line: { strokeWidth: 2 },
      points: { strokeWidth: 1.5, point: { size: 30, filled: true } },
    };
    const dashes = { domain: DASHES.map((_, index) => index), range: DASHES };
    const lines = Object.entries(looks)
      .filter(([style]) => columns.some((curve) => curve.style === style))
      .map(([style, look]) => ({
        transform: [{ filter: { field: "style", equal: style } }],
        mark: { type: "line", clip, ...look },
        encoding: {
          color,
          detail: nominal("label"),
          strokeDash: { field: "dash", type: "ordinal", scale: dashes, legend: null },
        },
      }));
    const select = { type: "point", on: "pointermove", clear: "pointerout", nearest: true };
    const nearest = { // Invisible points, the nearest of which shows its values.
      transform: [{ filter: { not: { field: "style", equal: "smooth" } } }],
      params: [{ name: "nearest", select }],
      mark: { type: "point", filled: true, size: 70, clip },
      encoding: {
        color,
        opacity: { condition: { param: "nearest", empty: false, value: 1 }, value: 0 },
        tooltip: [
          nominal("label", { title: "curve" }),
          quantitative("value", { format: unit === "bytes" ? "," : ".5~g", title: unit || "value" }),
          quantitative("epoch", { format: ".2f" }),
          quantitative("step", { format: "," }),
        ],
      },
    };
    const axis = unit === "bytes" ? { format: "~s" } : {};
    const encoding = {
      x: quantitative("epoch", { title: "epoch", scale: { domain: epochs, nice: false } }),
      y: quantitative("value", { title: null, scale, axis }),
    };
    return { ...base(HEIGHT), encoding, layer: [rules, ...lines, nearest] };
  }

  // The accuracy of predictions by their confidence, and the diagonal.
  function reliability() {
    const scale = { domain: [0, 100], nice: false };
    const x = { title: "confidence, %", scale }, y = { title: "accuracy, %", scale };
    const bar = {
      mark: { type: "bar", color: "var(--color-0)", stroke: "var(--page)" },
      encoding: {
        x: quantitative("low", x),
        x2: { field: "high" },
        y: quantitative("accuracy", y),
        y2: { datum: 0 },
        tooltip: [
          quantitative("confidence", { format: ".4~g", title: "mean confidence, %" }),
          quantitative("accuracy", { format: ".4~g", title: "accuracy, %" }),
          quantitative("count", { format: ".4~g", title: "images" }),
        ],
      },
    };
    const diagonal = {
      data: { values: [{ p: 0 }, { p: 100 }] },
      mark: { type: "line", color: INK, strokeDash: [5, 4] },
      encoding: { x: quantitative("p", x), y: quantitative("p", y) },
    };
    return { ...base(HEIGHT), layer: [bar, diagonal] };
  }

  // The accuracy of each row of a study over its bytes.
  function study() {
    const title = "coded gradients of a rank, bytes per step";
    const encoding = {
      x: quantitative("bytes", { title, scale: { type: "log" }, axis: { format: "~s" } }),
      y: quantitative("top1", { title: "top-1, %", scale: { zero: false } }),
      color,
      shape: nominal("way", { legend: null }),
      tooltip: [
        nominal("name", { title: "method" }),
        quantitative("top1", { format: ".2f", title: "top-1, %" }),
        quantitative("bytes", { format: ",", title: "bytes" }),
      ],
    };
    return { ...base(HEIGHT), mark: { type: "point", filled: true, size: 90 }, encoding };
  }

  // A lane for each kind of event, with bars for phases.
  function timeline({ rows }) {
    const names = [...new Set(rows.map((row) => row.lane))];
    const axis = {
      labelLimit: 130,
      labelExpr: "split(datum.label, ': ')", // The run's name stands above the kind.
      labelOffset: names.some((name) => name.includes(": ")) ? -6 : 0,
    };
    const tooltip = [nominal("text", { title: "event" }), quantitative("epoch", { format: ".2f" })];
    const bars = {
      transform: [{ filter: "datum.is_phase" }],
      mark: { type: "bar", height: 12, stroke: "var(--page)" },
      encoding: { color, tooltip, x2: { field: "end" } },
    };
    const ticks = {
      transform: [{ filter: "!datum.is_phase" }],
      mark: { type: "tick", thickness: 3, size: 18 },
      encoding: { color, tooltip },
    };
    // A layer without rows has no extent, of which Vega warns.
    const layer = [
      ...(rows.some((row) => row.is_phase) ? [bars] : []),
      ...(rows.every((row) => row.is_phase) ? [] : [ticks]),
    ];
    const encoding = {
      x: quantitative("epoch", { title: "epoch", scale: { nice: false } }),
      y: nominal("lane", { sort: names, title: null, axis }),
    };
    return { ...base(40 + 28 * names.length), encoding, layer };
  }

  const specifications = { curves, reliability, study, timeline };

  // Points come column by column, which takes a quarter of the space of rows.
  const rowsOf = (columns) => columns.flatMap((curve) =>
    curve.value.map((value, index) => ({
      ...curve, epoch: curve.epoch[index], step: curve.step[index], value,
    })));

  // Vega-Lite 6 looks for texts in the cells around the points, instead of in the points
  // that these belong to, and shows "undefined".
  function withTexts(vega) {
    for (const mark of vega.marks) {
      if ((mark.name || "").endsWith("voronoi")) {
        const tooltip = mark.encode.update.tooltip;
        tooltip.signal = tooltip.signal.replace(/(?<!datum\.)datum\[/g, "datum.datum[");
      }
    }
    return vega;
  }

  async function draw(element) {
    const chart = JSON.parse(element.nextElementSibling.textContent);
    const specification = specifications[chart.kind](chart);
    specification.datasets = {
      points: chart.rows || rowsOf(chart.columns),
      marks: chart.marks || [],
    };
    try {
      await vegaEmbed(element, specification, {
        mode: "vega-lite",
        renderer: "svg",
        actions: false,
        tooltip: { theme: "page" },
        patch: withTexts,
      });
      // The element has a description; the parts of the drawing have none.
      element.querySelector("svg").setAttribute("aria-hidden", "true");
    } catch (error) {
      element.textContent = "This chart can't be drawn here: " + error.message;
    }
  }

  // Paper has no way to open a table, nor to hover: a table stays as the reader left it.
  document.querySelectorAll(".chart").forEach(draw);
})();
