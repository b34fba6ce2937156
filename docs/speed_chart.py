"""Writes docs/speed_chart.svg, the bars of README.md, from a table of RESULTS.md.

python docs/speed_chart.py
"""

import html
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
CHART = ROOT / "docs" / "speed_chart.svg"
HEADING = "## Speed beside other programs"
ROW, TOP, LEFT, UNIT = 44, 52, 16, 185  # Pixels; UNIT is the length of a ratio of 1.
STYLE = """
  text { font: 14px system-ui, sans-serif; fill: #1f2933 }
  .small { font-size: 13px; fill: #52606d }
  .page { fill: #ffffff } .bar { fill: #0b7285 } .one, .range { stroke: #1f2933 }
  @media (prefers-color-scheme: dark) {
    text { fill: #e4e7eb } .small { fill: #9aa5b1 }
    .page { fill: #1b2028 } .bar { fill: #3bb8cc } .one, .range { stroke: #e4e7eb }
  }
"""


def rows(results: str) -> list[tuple[str, float, float, float]]:
    """Returns label, median, minimum and maximum of each row of the table."""
    table = results.split(f"{HEADING}\n", 1)[1].split("\n## ", 1)[0]
    cells = [line.split(" | ") for line in re.findall(r"^\| (.*) \|$", table, re.M)]
    ratios = []
    for what, _, other, ratio, pairs, *_ in cells:
        if numbers := re.fullmatch(r"([\d.]+) \(([\d.]+) to ([\d.]+)\)", ratio):
            label = f"{what}, beside {other.split(':')[0]} ({pairs} pairs)"
            ratios.append((label, *map(float, numbers.groups())))
    return ratios


def svg(results: str) -> str:
    """Returns the chart."""
    ratios = rows(results)
    bottom = TOP + ROW * len(ratios)
    one = LEFT + UNIT
    parts = [
        f'<text x="{LEFT}" y="24">ResNet-50: speed of resnet-cpu / the other</text>',
        f'<text class="small" x="{LEFT}" y="42">median, and range of the pairs</text>',
    ]
    for place, (label, median, low, high) in enumerate(ratios):
        y = TOP + ROW * place
        ends = LEFT + UNIT * low, LEFT + UNIT * high
        parts += [
            f'<text class="small" x="{LEFT}" y="{y + 14}">{html.escape(label)}</text>',
            f'<rect class="bar" x="{LEFT}" y="{y + 20}" width="{UNIT * median:.0f}"'
            ' height="14"/>',
            f'<path class="range" d="M{ends[0]:.0f} {y + 27}H{ends[1]:.0f}"/>',
            f'<path class="one" stroke-dasharray="3 3" d="M{one} {y + 17}v20"/>',
            f'<text x="{ends[1] + 8:.0f}" y="{y + 32}">{median}</text>',
        ]
    parts += [
        f'<text class="small" x="{one}" y="{bottom + 12}" text-anchor="middle">'
        "1: equally fast</text>",
    ]
    size = f'width="430" height="{bottom + 24}" viewBox="0 0 430 {bottom + 24}"'
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" role="img" {size}>',
            f"<title>Speed beside other programs</title><style>{STYLE}</style>",
            '<rect class="page" width="100%" height="100%" rx="8"/>',
            *parts,
            "</svg>\n",
        ]
    )


if __name__ == "__main__":
    CHART.write_text(svg((ROOT / "RESULTS.md").read_text(encoding="utf-8")))
