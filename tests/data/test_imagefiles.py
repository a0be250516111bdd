"""What a folder of classes may hold, and the messages for what it may not.

test_imagefolder.py tests the files that it may hold.
"""

import pytest
from PIL import Image

from labkit.data.imagefiles import class_names, read_folder
from labkit.errors import InputError
from tests.support.image_files import COLUMNS, ROWS, encode, picture, store, unusable

JPEG = encode(Image.fromarray(picture()), "JPEG")


def test_classes_are_the_sorted_folder_names(tmp_path):
    for name in ("b", "a", "C", "10", "9", "狗", "two words"):
        store(tmp_path / name, {"é 1.jpg": JPEG})
    store(tmp_path, {"manifest.json": b"{}", ".DS_Store": b""})
    store(tmp_path / "a", {"._0.jpg": b"x", ".DS_Store": b"", "Thumbs.db": b"x"})
    expected = ("10", "9", "C", "a", "b", "two words", "狗")
    assert class_names(tmp_path) == class_names(str(tmp_path)) == expected
    assert read_folder(tmp_path) == (expected, 7, min(ROWS, COLUMNS))


def test_every_unusable_file_is_named_with_the_reason(tmp_path):
    """And so are places; five faults at a time are named, and the rest counted."""
    broken = {name: content for name, (content, _) in unusable().items()}
    for number, (name, (_, words)) in enumerate(unusable().items()):
        store(tmp_path / str(number) / "dog", {name: broken[name], "whole.jpg": JPEG})
        with pytest.raises(InputError, match=f"{number} cannot be used: dog/{name} {words}"):
            read_folder(tmp_path / str(number))
    root = store(tmp_path / "root" / "dog", broken).parent
    (root / "cat").mkdir()
    with pytest.raises(InputError) as caught:
        read_folder(root)
    text = str(caught.value)
    assert "cat is an empty class folder" in text and text.count("dog/") == 4
    assert f"; and {len(broken) - 4} more. Expected FOLDER/CLASS/FILE" in text
    (root / ".ipynb_checkpoints").mkdir()
    with pytest.raises(InputError, match=".ipynb_checkpoints is a hidden folder"):
        class_names(root)


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("absent", "expected a folder with one folder a class, got absent, which is none"),
        ("file", "file, which is none"),
        (".", "holds no class"),
    ],
)
def test_folders_that_are_none_are_refused(tmp_path, monkeypatch, path, message):
    monkeypatch.chdir(store(tmp_path, {"file": b"x"}))
    with pytest.raises(InputError, match=message):
        read_folder(path)
