// Draws the charts: turns the columns of their points into rows, and calls Vega.
(function () {
  "use strict";
  const charts = JSON.parse(document.getElementById("charts").textContent);

  function rowsOf(columns) {
    const rows = [];
    for (const curve of columns) {
      curve.value.forEach(function (value, index) {
        rows.push({
          label: curve.label,
          color: curve.color,
          dash: curve.dash,
          style: curve.style,
          epoch: curve.epoch[index],
          step: curve.step[index],
          value: value,
        });
      });
    }
    return rows;
  }

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

  function draw(id) {
    const chart = charts[id];
    const element = document.getElementById(id);
    const points = chart.rows || rowsOf(chart.columns);
    const spec = Object.assign({}, chart.spec, {
      datasets: { points: points, marks: chart.marks || [] },
    });
    const options = {
      mode: "vega-lite",
      renderer: "svg",
      actions: false,
      tooltip: { theme: "page" },
      patch: withTexts,
    };
    return vegaEmbed(element, spec, options).then(function () {
      // The element has a description; the parts of the drawing have none.
      element.querySelector("svg").setAttribute("aria-hidden", "true");
    }).catch(function (error) {
      element.textContent = "This chart can't be drawn here: " + error.message;
    });
  }

  // Paper has no way to open a table, nor to hover: a table stays as the reader left it.
  Object.keys(charts).forEach(draw);
})();
