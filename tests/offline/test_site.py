"""The site that `make docs` builds opens without a network."""

import re
from pathlib import Path

import pytest

from tests.processes import completed

pytestmark = pytest.mark.offline

REPOSITORY = Path(__file__).resolve().parents[2]
REMOTE = re.compile(r"<(?:script|link|img|iframe)[^>]+(?:src|href)=.?(?:https?:)?//")


def test_no_page_of_the_site_loads_anything_from_elsewhere():
    done = completed(["make", "docs"], cwd=REPOSITORY)
    assert done.returncode == 0, done.stdout + done.stderr
    site = REPOSITORY / "build/site"
    pages = {str(page.relative_to(site)): page for page in site.rglob("*.html")}
    assert {"index.html", "RESULTS.html", "tutorial.html", "dev/ops.html"} < set(pages)
    for name, page in pages.items():
        assert not REMOTE.findall(page.read_text()), name
    assert "watchdog" in (site / "search/search_index.js").read_text()
    assert 'id="resnet.api.load"' in pages["python.html"].read_text()
