import pytest
from matplotlib.figure import Figure

from resnet.base.errors import UserError
from resnet.metrics import figure_file


@pytest.mark.parametrize(
    ("suffix", "begin"),
    [(".png", b"\x89PNG\r\n"), (".svg", b"<?xml"), (".pdf", b"%PDF-")],
)
def test_the_suffix_says_the_format(tmp_path, suffix, begin):
    image = tmp_path / "new folder" / f"one{suffix}"
    figure_file.write(Figure(), image, "--picture")
    assert image.read_bytes().startswith(begin)
    assert list(image.parent.iterdir()) == [image]


@pytest.mark.parametrize("name", ["one.doc", "one", "one.PNG", ".png"])
def test_another_suffix_is_refused(tmp_path, name):
    with pytest.raises(UserError) as caught:
        figure_file.write(Figure(), tmp_path / name, "--picture")
    assert str(caught.value) == (
        f"--picture must end in .png, .svg or .pdf; got {tmp_path / name}"
    )


def test_a_file_that_cannot_be_written_is_refused(tmp_path):
    (tmp_path / "file").touch()
    words = r"the file of --picture can't be written; .*/one.png: "
    with pytest.raises(UserError, match=words):
        figure_file.write(Figure(), tmp_path / "file" / "one.png", "--picture")
