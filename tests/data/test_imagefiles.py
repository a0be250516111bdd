"""What a folder of classes may hold, and the messages for what it may not.

test_imagefolder.py tests the files that it may hold.
"""

import pytest
from PIL import Image

from labkit.data.imagefiles import class_names, read_folder
from labkit.errors import InputError
from tests.support.image_files import COLUMNS, ROWS, encode, picture, store, unusable

JPEG = encode(Image.fromarray(picture()), "JPEG")


@pytest.fixture
def root(tmp_path):
    store(tmp_path / "root" / "cat", {"a.jpg": JPEG, "b.jpg": JPEG})
    store(tmp_path / "root" / "dog", {"c.jpg": JPEG})
    return tmp_path / "root"


def test_classes_are_the_sorted_folder_names(tmp_path):
    for name in ("b", "a", "C", "10", "9", "狗", "two words"):
        store(tmp_path / name, {"é 1.jpg": JPEG})
    store(tmp_path, {"manifest.json": b"{}", ".DS_Store": b""})
    expected = ("10", "9", "C", "a", "b", "two words", "狗")
    assert class_names(tmp_path) == class_names(str(tmp_path)) == expected
    assert read_folder(tmp_path) == (expected, 7, min(ROWS, COLUMNS))


@pytest.mark.parametrize("name", unusable())
def test_every_unusable_file_is_named_with_the_reason(root, name):
    content, words = unusable()[name]
    store(root / "dog", {name: content})
    with pytest.raises(InputError, match=f"{root}.*dog/{name} {words}"):
        read_folder(root)
    assert read_folder(root, check=False) == (("cat", "dog"), 4, None)


def test_five_faults_are_named_and_the_rest_counted(root):
    store(root / "cat", {f"{n}.jpg": b"" for n in range(7)})
    with pytest.raises(InputError) as caught:
        read_folder(root)
    assert str(caught.value).count("is not a readable image") == 5
    assert "; and 2 more. Expected FOLDER/CLASS/FILE" in str(caught.value)


def test_places_are_checked_too(root):
    (root / "empty").mkdir()
    store(root / "cat" / "kittens", {"d.jpg": JPEG})
    (root / "dog" / "gone.jpg").symlink_to(root / "nowhere")
    for check in (True, False):
        with pytest.raises(InputError) as caught:
            read_folder(root, check=check)
        for words in ("cat/kittens is a folder", "dog/gone.jpg is a", "empty is an empty class"):
            assert words in str(caught.value)
    (root / ".ipynb_checkpoints").mkdir()
    with pytest.raises(InputError, match=".ipynb_checkpoints is a hidden folder"):
        class_names(root)


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("absent", "expected a folder with one folder a class, got absent, which is not there"),
        ("file", "file, which is a file"),
        (".", "holds no class"),
    ],
)
def test_folders_that_are_none_are_refused(tmp_path, monkeypatch, path, message):
    monkeypatch.chdir(store(tmp_path, {"file": b"x"}))
    with pytest.raises(InputError, match=message):
        read_folder(path)
