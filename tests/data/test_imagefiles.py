"""What a folder of classes may hold, and the messages for what it may not.

test_imagefolder.py tests the files that it may hold.
"""

import os

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from labkit.data.imagefiles import ImageFolder, check_image, class_names, read_folder
from labkit.errors import InputError
from tests.support.image_files import COLUMNS, ROWS, encode, picture, store, unusable, usable

JPEG = encode(Image.fromarray(picture()), "JPEG")


@pytest.fixture
def root(tmp_path):
    store(tmp_path / "root" / "cat", {"a.jpg": JPEG, "b.jpg": JPEG})
    store(tmp_path / "root" / "dog", {"c.jpg": JPEG})
    return tmp_path / "root"


def test_classes_are_the_sorted_folder_names(tmp_path):
    for name in ("b", "a", "C", "10", "9", "狗", "two words"):
        store(tmp_path / name, {"é 1.jpg": JPEG})
    expected = ("10", "9", "C", "a", "b", "two words", "狗")
    assert class_names(tmp_path) == class_names(str(tmp_path)) == expected
    assert read_folder(tmp_path) == ImageFolder(tmp_path, expected, 7, (ROWS, COLUMNS))


@pytest.mark.parametrize("name", unusable())
def test_every_unusable_file_is_named_with_the_reason(root, name):
    content, words = unusable()[name]
    store(root / "dog", {name: content})
    with pytest.raises(InputError, match=f"{root}.*dog/{name} {words}"):
        read_folder(root)
    assert read_folder(root, check=False) == ImageFolder(root, ("cat", "dog"), 4, None)


def test_the_smallest_rows_and_columns_are_those_of_any_image(root):
    store(root / "dog", {"d.jpg": encode(Image.fromarray(picture(20, 90)), "JPEG")})
    store(root / "cat", {"d.png": encode(Image.fromarray(picture(70, 30)), "PNG")})
    store(root / "dog", {"e.png": encode(Image.fromarray(picture(99, 99)), "PNG")})
    assert read_folder(root).sizes == (20, 30)


def test_five_faults_are_named_and_the_rest_counted(root):
    store(root / "cat", {f"{n}.jpg": b"" for n in range(7)})
    with pytest.raises(InputError) as caught:
        read_folder(root)
    assert str(caught.value).count("is empty (0 bytes)") == 5
    assert "; and 2 more. Expected FOLDER/CLASS/FILE" in str(caught.value)


def test_places_are_checked_too(root):
    (root / "empty").mkdir()
    store(root / "cat" / "kittens", {"d.jpg": JPEG})
    store(root, {"lost.JPG": JPEG})
    (root / "dog" / "gone.jpg").symlink_to(root / "nowhere")
    (root / ".ipynb_checkpoints").mkdir()
    for check in (True, False):
        with pytest.raises(InputError) as caught:
            read_folder(root, check=check)
        for words in (
            "lost.JPG is in no class folder",
            ".ipynb_checkpoints is a hidden folder",
            "cat/kittens is a folder in a class folder;",
            "dog/gone.jpg is a link to nothing",
            "empty is an empty class folder",
        ):
            assert words in str(caught.value)


def test_one_level_too_high_is_recognised(root):
    store(root.parent / "all" / "train" / "cat", {"a.jpg": JPEG})
    store(root.parent / "all" / "train" / "dog", {"a.jpg": JPEG})
    store(root.parent / "all" / "val" / "cat", {"a.jpg": JPEG})
    place = root.parent / "all"
    with pytest.raises(InputError) as caught:
        read_folder(place)
    assert f"(did you mean {place / 'train'}?)" in str(caught.value)
    assert str(caught.value).count("did you mean") == 2


def test_links_are_followed_and_other_files_beside_the_classes_do_no_harm(root, tmp_path):
    store(tmp_path / "links", {"manifest.json": b"{}", "LICENSE": b"", ".DS_Store": b""})
    (tmp_path / "links" / "cat").symlink_to(root / "cat")
    (tmp_path / "links" / "dog").mkdir()
    (tmp_path / "links" / "dog" / "a.jpg").symlink_to(root / "dog" / "c.jpg")
    assert read_folder(tmp_path / "links").images == 3


@pytest.mark.parametrize("read", [class_names, read_folder])
@pytest.mark.parametrize(
    ("path", "message"),
    [
        *((path, "expected the path of a folder") for path in (None, 3, b"folder")),
        ("absent", "expected a folder with one folder a class, got .*absent, which is not there"),
        ("x" * 300, "xxx, which is not there"),
        ("file", "file, which is a file"),
        (".", "holds no class"),
    ],
)
def test_folders_that_are_none_are_refused(tmp_path, monkeypatch, read, path, message):
    monkeypatch.chdir(store(tmp_path, {"file": b"x"}))
    with pytest.raises(InputError, match=message):
        read(path)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_without_permission_is_named(root):
    (root / "dog" / "c.jpg").chmod(0)
    with pytest.raises(InputError, match="dog/c.jpg cannot be read .Permission denied"):
        read_folder(root)


def test_a_pipe_and_an_image_too_large_for_memory_are_named(root, monkeypatch):
    os.mkfifo(root / "pipe.jpg")
    with pytest.raises(InputError, match="pipe.jpg is not a regular file; expected a JPEG or PNG"):
        check_image(root / "pipe.jpg")
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", ROWS * COLUMNS // 2 - 1)
    with pytest.raises(InputError, match=f"cat/a.jpg has more than {ROWS * COLUMNS - 2} pixels"):
        read_folder(root)


KINDS = {name: usable()[name] for name in ("rgb.jpg", "cmyk.jpg", "progressive.JPEG", "rgba.png")}


@settings(max_examples=150)
@given(data=st.data(), name=st.sampled_from(sorted(KINDS)))
def test_a_damaged_file_is_taken_or_named_and_nothing_else(tmp_path_factory, data, name):
    content = bytearray(KINDS[name])
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, min(700, len(content) - 1)))] = data.draw(
            st.integers(0, 255)
        )
    folder = tmp_path_factory.mktemp("damaged")
    store(folder / "cat", {name: bytes(content[: data.draw(st.integers(0, len(content)))])})
    try:
        assert read_folder(folder).images == 1
    except InputError as error:
        assert f"cat/{name}" in str(error)
