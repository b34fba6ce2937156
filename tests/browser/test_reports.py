"""The reports in a real browser: what loads, draws, can be reached and be read."""

import re
from pathlib import Path
from typing import Any

import pytest

from tests.browser.conftest import MAKERS

pytestmark = pytest.mark.browser

_NARROW = {"width": 360, "height": 740}
_WIDE = {"width": 1280, "height": 900}
_PAPER_PIXELS = 718  # Of a page of A4 between margins of 1 cm, at 96 dots per inch.
_MAX_BYTES = 3_000_000
_WORD_JOINER = "\u2060"  # It keeps "top-1" on one line.
_OPEN_ALL = "document.querySelectorAll('details').forEach((of) => of.open = true)"
# The elements that reach beyond the screen, unless within one that scrolls.
_TOO_WIDE = """
() => [...document.querySelectorAll("body *")].filter((element) => {
  const box = element.getBoundingClientRect();
  return box.width && box.right > document.documentElement.clientWidth + 1 &&
    getComputedStyle(element).position !== "absolute" &&
    !element.parentElement.closest(".scroll");
}).map((element) => element.outerHTML.slice(0, 200))
"""
_CUT = """
() => [...document.querySelectorAll(".scroll")]
  .filter((element) => element.scrollWidth > document.documentElement.clientWidth + 1)
  .map((element) => element.getAttribute("aria-label"))
"""
# The number of lines of each name of a class in a row with more than fit.
_LINES_OF_NAMES = """
() => {
  const row = document.querySelector(".scroll tbody tr");
  row.innerHTML = '<td class="long">garbage_truck</td>'.repeat(6);
  return [...row.cells].map((cell) => {
    const range = document.createRange();
    range.selectNodeContents(cell);
    return range.getClientRects().length;
  });
}
"""
_FOCUSED = """
() => {
  const element = document.activeElement, style = getComputedStyle(element);
  return [element.tagName, element.getAttribute("aria-label") || element.textContent,
    style.outlineStyle];
}
"""


class Opened:
    """A page in the browser, with what it has asked for and complained about."""

    def __init__(self, browser: Any, file: Path, **options: Any) -> None:
        self.context = browser.new_context(**options)
        self.page = self.context.new_page()
        self.requests: list[str] = []
        self.complaints: list[str] = []
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.on("console", lambda message: self.complaints.append(message.text))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("dialog", lambda dialog: self.complaints.append(dialog.message))
        self.page.goto(file.as_uri())
        self.page.wait_for_function(
            "() => [...document.querySelectorAll('.chart')]"
            ".every((chart) => chart.querySelector('svg') || chart.textContent)"
        )


@pytest.fixture
def opened(chromium, reports):
    pages = []

    def open_page(name: str, **options: Any) -> Opened:
        pages.append(Opened(chromium, reports[name], **options))
        return pages[-1]

    yield open_page
    for page in pages:
        page.context.close()
    assert [page.complaints for page in pages] == [[]] * len(pages)


every_report = pytest.mark.parametrize("name", MAKERS)


@every_report
def test_a_page_asks_for_nothing_and_draws_all_charts(opened, reports, name):
    its = opened(name, viewport=_WIDE)
    # Chromium also asks for the page's own pictures, which are in it.
    asked = [
        url for url in its.requests if not url.startswith("data:image/jpeg;base64,")
    ]
    assert asked == [reports[name].as_uri()]
    charts = its.page.locator(".chart")
    assert charts.count() == its.page.locator(".chart svg").count()
    assert bool(charts.count()) == (name not in ("empty",))
    assert reports[name].stat().st_size < _MAX_BYTES
    heading = its.page.locator("h1").inner_text()
    assert its.page.title() == heading.replace(_WORD_JOINER, "")


@every_report
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_no_violation(opened, name, scheme):
    from axe_playwright_python.sync_playwright import Axe

    its = opened(name, viewport=_WIDE, color_scheme=scheme)
    its.page.evaluate(_OPEN_ALL)
    results = Axe().run(its.page)
    assert results.violations_count == 0, results.generate_report()


@every_report
def test_nothing_is_wider_than_a_narrow_screen(opened, name):
    its = opened(name, viewport=_NARROW)
    its.page.evaluate(_OPEN_ALL)
    assert its.page.evaluate("document.documentElement.scrollWidth") == 360
    assert its.page.evaluate(_TOO_WIDE) == []


def test_names_stay_whole_on_a_narrow_screen(opened):
    its = opened("demo", viewport=_NARROW)
    its.page.evaluate(_OPEN_ALL)
    assert its.page.evaluate(_LINES_OF_NAMES) == [1] * 6
    assert its.page.evaluate("document.documentElement.scrollWidth") == 360


@every_report
def test_a_printed_page_cuts_no_table(opened, name):
    its = opened(name, viewport={"width": _PAPER_PIXELS, "height": 1000})
    its.page.emulate_media(media="print")
    assert its.page.evaluate(_CUT) == []
    assert its.page.evaluate(_TOO_WIDE) == []
    margins = dict.fromkeys(("top", "bottom", "left", "right"), "1cm")
    pdf = its.page.pdf(format="A4", margin=margins)
    assert pdf.startswith(b"%PDF")
    num_pages = len(re.findall(rb"/Type\s*/Page\b", pdf))
    assert 1 <= num_pages <= 30


@pytest.mark.parametrize("name", ["demo", "several", "broken", "study"])
def test_the_pointer_shows_the_values_of_each_chart(opened, name):
    its = opened(name, viewport=_WIDE)
    for chart in its.page.locator(".chart").all():
        chart.scroll_into_view_if_needed()
        box = chart.bounding_box()
        tooltip = its.page.locator("#vg-tooltip-element.visible")
        for x, y in _spots(its.page, chart, box):
            its.page.mouse.move(x, y)
            if tooltip.count():
                break
        tooltip.wait_for(timeout=2000)
        text = tooltip.inner_text()
        assert re.search(r"\d", text)
        assert "undefined" not in text
        its.page.mouse.move(0, 0)


def _spots(page: Any, chart: Any, box: dict[str, float]) -> list[tuple[float, float]]:
    """Returns places of a chart where a pointer may be: its marks, and its middle."""
    marks = chart.locator(".mark-rect path, .mark-symbol path, .mark-bar path").all()
    boxes = [box, *filter(None, (mark.bounding_box() for mark in marks[:20]))]
    return [(of["x"] + of["width"] / 2, of["y"] + of["height"] / 2) for of in boxes]


@pytest.mark.parametrize("name", ["demo", "several", "broken"])
def test_the_keyboard_reaches_all_tables(opened, name):
    its = opened(name, viewport=_WIDE)
    reached = {"DIV": set(), "SUMMARY": 0, "A": 0}
    for _ in range(400):
        its.page.keyboard.press("Tab")
        tag, text, outline = its.page.evaluate(_FOCUSED)
        if tag == "BODY":
            break
        assert outline != "none", text
        if tag == "SUMMARY":
            its.page.keyboard.press("Enter")  # The next Tab then reaches its table.
            reached["SUMMARY"] += 1
        elif tag == "DIV":
            reached["DIV"].add(text)
    regions = its.page.locator(".scroll").all()
    assert reached["SUMMARY"] == its.page.locator("summary").count()
    assert reached["DIV"] == {region.get_attribute("aria-label") for region in regions}
    assert all(region.is_visible() for region in regions)


def test_names_are_shown_as_they_are(opened):
    its = opened("hostile_names", viewport=_WIDE)
    text = its.page.locator("body").inner_text()
    for name in ("<script>alert(1)</script>", "👩‍🔬", "قطة صغيرة", "חתול (2)"):
        assert name in text
    assert its.page.locator("img:not([src^='data:image/jpeg'])").count() == 0
