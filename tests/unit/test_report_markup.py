import math

import pytest

from resnet.report import markup
from resnet.report.markup import Html, tag


def test_texts_and_attributes_are_escaped_and_html_is_not():
    inner = tag("b", "<&>")
    made = tag("p", inner, 'a "b"', title='<"&>', class_="x", hidden=True, id=None)
    assert made == (
        '<p title="&lt;&quot;&amp;&gt;" class="x" hidden><b>&lt;&amp;&gt;</b>'
        "a &quot;b&quot;</p>"
    )
    assert tag("img", alt="x") == '<img alt="x">'


def test_what_is_joined_is_escaped():
    assert markup.join(["<", Html("<br>"), 3]) == "&lt;<br>3"


@pytest.mark.parametrize("text", ["</script>", "<!--", "&", "\u2028"])
def test_json_cannot_end_its_script(text):
    written = markup.in_script({text: [text, math.nan, math.inf, 1.5, None]})
    assert "<" not in written
    assert "&" not in written
    assert "\u2028" not in written
    assert written.endswith(",null,null,1.5,null]}")


def test_the_first_cell_of_a_row_is_its_header():
    made = markup.table("T", ("a", "b"), [("x", 1)])
    assert "<caption>T</caption>" in made
    assert '<th scope="col">a</th><th scope="col">b</th>' in made
    assert '<tr><th scope="row">x</th><td>1</td></tr>' in made
    assert 'tabindex="0"' in made
