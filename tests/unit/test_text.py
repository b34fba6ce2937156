import pathlib
import re

from resnet.base import text


def test_lists_end_with_the_number_of_what_is_left_out():
    names = list("abcdef")
    assert text.first_of(names[:4]) == "a, b, c, d"
    assert text.first_of(names) == "a, b, c, d and 2 more"
    assert text.first_of(names, 3) == "a, b, c and 3 more"
    assert text.shortened("a" * 40) == "a" * 40
    assert text.shortened("a" * 41) == "a" * 37 + "..."


def test_a_number_stands_before_its_noun_in_singular_or_plural():
    nouns = ("rank", "process", "class", "epoch", "batch")
    assert [text.counted(1, noun) for noun in nouns] == [f"1 {noun}" for noun in nouns]
    plurals = ["0 ranks", "0 processes", "0 classes", "0 epochs", "0 batches"]
    assert [text.counted(0, noun) for noun in nouns] == plurals
    assert text.counted(1024, "rank") == "1,024 ranks"


def test_no_text_of_the_programs_leaves_the_plural_to_its_reader():
    root = pathlib.Path(__file__).parents[2]
    folders = ("data_prep", "eval", "install", "launch", "resnet")
    left = re.compile(r"[a-z]\((s|es)\)[^\w\"']")
    files = [f for name in folders for f in (root / name).rglob("*.*")]
    texts = {f: f.read_text() for f in files if f.suffix in (".py", ".sh", ".html")}
    assert [str(f) for f, contents in texts.items() if left.search(contents)] == []


def test_messages_of_tensorflow_are_told_without_its_names():
    message = "{{function_node __wrapped__SaveV2_dtypes_62_device_/job:localhost/}} a/b"
    message = text.without_graph_names(f"{message}; No space left [Op:SaveV2]")
    assert message == "a/b; No space left"


def test_sizes_have_the_unit_that_suits_them():
    numbers = (999, 1000, 1_234_567, 138_200_000_000, 5 * 10**15)
    texts = ["999 bytes", "1.0 kB", "1.2 MB", "138.2 GB", "5,000.0 TB"]
    assert list(map(text.size, numbers)) == texts
    few = [text.size(number, units=("kB", "MB")) for number in (12, 2 * 10**9)]
    assert few == ["0.0 kB", "2,000.0 MB"]
    assert text.size(2.5e6, "g", ("B", "kB", "MB")) == "2.5 MB"


def test_times_are_a_clocks_known_to_the_minute_or_estimated():
    seconds = (0.4, 9, 59.4, 59.6, 754, 3599.7, 360_000)
    clocks = ["0:00", "0:09", "0:59", "1:00", "12:34", "1:00:00", "100:00:00"]
    assert list(map(text.clock, seconds)) == clocks
    durations = ["9 s", "13 min", "2 h 5 min"]
    assert list(map(text.duration, (9, 754, 7510))) == durations
    times = ["60 s", "50 min", "2.0 h"]
    assert list(map(text.estimated, (59.96, 3000, 7300))) == times
