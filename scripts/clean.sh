#!/bin/sh
# Remove what runs and tools have left in this checkout, by name, where they leave it; nothing else:
# not work/, not data that was downloaded or converted, no folder of yours, nothing behind a link.
set -eu
unset CDPATH
cd -- "$(dirname -- "$0")/.."

# What can be made again: runs and builds, and the caches of tools.
for name in runs build dist labkit.egg-info mindspore_labs.egg-info \
    .pytest_cache .ruff_cache .mypy_cache .hypothesis .ipynb_checkpoints kernel_meta; do
    if [ -L "$name" ]; then
        echo "$name is a link, and stays"
    elif [ -d "$name" ]; then
        rm -rf "$name"
    fi
done

# MNIST, where it is the bundled one: data_scripts/mnist.py takes files of your own as well.
bundled=data_scripts/bundled/mnist
prepared=datasets/MNIST_Data
for path in train/train-images-idx3-ubyte train/train-labels-idx1-ubyte \
    test/t10k-images-idx3-ubyte test/t10k-labels-idx1-ubyte; do
    [ ! -L datasets ] && [ ! -L "$prepared" ] && [ ! -L "$prepared/${path%/*}" ] || continue
    [ -f "$prepared/$path" ] && [ ! -L "$prepared/$path" ] || continue
    if gzip -dc "$bundled/${path##*/}.gz" 2>/dev/null | cmp -s - "$prepared/$path"; then
        rm -f "$prepared/$path"
    fi
done
rmdir "$prepared/train" "$prepared/test" "$prepared" 2>/dev/null || true

# Colour digits, drawn from it by data_scripts/color_digits.py: manifest.json and CLASS/ROW.jpg.
for folder in datasets/color_digits_*px_*_*; do
    [ ! -L datasets ] && [ ! -L "$folder" ] && [ -f "$folder/manifest.json" ] || continue
    for split in "$folder/train" "$folder/val"; do
        [ -d "$split" ] && [ ! -L "$split" ] || continue
        find "$split" -path "$split/[0-9]/[0-9][0-9][0-9][0-9][0-9].jpg" -type f -exec rm -f {} +
        find "$split" -depth -type d -exec rmdir {} + 2>/dev/null || true
    done
    [ -e "$folder/train" ] || [ -e "$folder/val" ] || rm -f "$folder/manifest.json"
    rmdir "$folder" 2>/dev/null || true
done
[ -L datasets ] || rmdir datasets 2>/dev/null || true

# In the project's own folders: Python's and Jupyter's caches, and what MindSpore compiles there.
for folder in labkit tests benchmarks data_scripts examples notebooks; do
    [ -d "$folder" ] && [ ! -L "$folder" ] || continue
    # Not in an environment, wherever one is.
    find "$folder" \( -type d -exec test -e {}/pyvenv.cfg \; -prune \) -o \( -type d \
        \( -name __pycache__ -o -name .ipynb_checkpoints -o -name kernel_meta \) \
        -prune -exec rm -rf {} + \)
done
# Where a compilation fails MindSpore leaves rank_N/om/*.ir in the folder it was started in.
for folder in rank_[0-9]* labkit/rank_[0-9]* tests/rank_[0-9]* benchmarks/rank_[0-9]* \
    data_scripts/rank_[0-9]* examples/rank_[0-9]* notebooks/rank_[0-9]*; do
    number=${folder##*rank_}
    case $number in *[!0-9]*) continue ;; esac
    [ -d "$folder/om" ] && [ ! -L "$folder" ] && [ ! -L "${folder%/*}" ] || continue
    [ -L "$folder/om" ] || rm -f "$folder/om/"*.ir
    rmdir "$folder/om" "$folder" 2>/dev/null || true
done
