"""The table and the JSON of predictions."""

import json

from eval.prediction_report import JsonLines, Predicted, Table

CAT = Predicted("cat", 3, 0.75)


def test_a_table_has_a_line_for_each_class_and_names_each_image_once(capsys):
    table = Table(["a/1.jpg", "2.jpg"], ["cat", "otter"], has_descriptions=False)
    table.add("a/1.jpg", [CAT, Predicted("otter", 0, 0.25)])
    table.add("2.jpg", [Predicted("cat", 3, 1.0)])
    assert capsys.readouterr().out == (
        "image    class  probability\n"
        "a/1.jpg  cat        75.00 %\n"
        "         otter      25.00 %\n"
        "2.jpg    cat       100.00 %\n"
    )


def test_a_table_with_long_names_keeps_to_80_columns(capsys):
    path, name, words = "/long" * 20 + "/end.jpg", "n" * 90, "tench, Tinca tinca " * 9
    for description in ("", words):
        table = Table([path], [name], bool(description))
        table.add(path, [Predicted(name, 0, 1.0, description)])
        head, line = capsys.readouterr().out.splitlines()
        assert len(head) == len(line) == 80
        assert line.startswith("...")
        assert "/end.jpg  nnnnnn" in line
        assert line.endswith("...     100.00 %")
        assert ("description" in head) == ("tench, Tinca" in line) == bool(description)


def test_names_that_a_terminal_cannot_show_are_quoted(capsys):
    path = "a\n\udcff.jpg"
    table = Table([path], ["cat"], has_descriptions=False)
    table.add(path, [CAT])
    assert "'a\\n\\udcff.jpg'  cat" in capsys.readouterr().out


def test_json_has_one_line_for_each_image(capsys):
    report = JsonLines()
    report.add("ä\n.jpg", [CAT, Predicted("n1", 0, 0.25, "tench")])
    report.add("b.jpg", [CAT])
    first, second = map(json.loads, capsys.readouterr().out.splitlines())
    assert first == {
        "image": "ä\n.jpg",
        "predictions": [
            {"class": "cat", "index": 3, "probability": 0.75},
            {"class": "n1", "description": "tench", "index": 0, "probability": 0.25},
        ],
    }
    assert second["image"] == "b.jpg"
