#!/bin/sh
# Make the virtual environment ready; installs once for each content of pyproject.toml and constraints.txt.
#   environment.sh base | docs      what the labs need | and the book
#   environment.sh test             and the tests (mostly PyTorch)
#   environment.sh all              and others' networks, which slow tests train, without what they require
#   environment.sh remove           remove the environment, if this script has made it
# From the environment: VENV (default .venv) and PYTHON (default: the first fitting one below).
set -eu
# As activate does for the first; with the second pip takes for installed what lies there.
unset PYTHONHOME PYTHONPATH
cd -P -- "$(dirname -- "$0")/.." # not by a link, which may go while what it names stays
what=$1 venv=${VENV:-.venv}
made=$venv/.made-by-environment.sh installing=$venv/.incomplete stamp=$venv/.installed
refuse() { echo "$1" >&2 && exit 2; }
place() { (cd -- "$venv" && pwd -P); }
runs_labs() { "$1" -c "import ${2-ensurepip, venv,} sys; sys.exit(not (3, 11) <= sys.version_info < (3, 13))" 2>/dev/null; }
# Usable as it is: not half installed, not moved, of the Python asked for.
fits() {
    runs_labs "$venv/bin/python" "" && [ ! -e "$installing" ] &&
        { [ ! -e "$made" ] || [ "$(tail -n 1 "$made")" = "$(place)" ]; } &&
        { [ -z "${PYTHON:-}" ] || [ "$("$PYTHON" -V)" = "$("$venv/bin/python" -V)" ]; }
}
# Into this environment, whatever else the settings of pip name; index, proxy and certificates are theirs.
pip_install() {
    PIP_DRY_RUN=0 PIP_NO_DEPS=0 PIP_REQUIRE_HASHES=0 "$(place)/bin/python" -m pip --python= install --no-user \
        --target= --prefix="$(place)" --root=/ --no-input --disable-pip-version-check -c constraints.txt "$@"
}
# The last three are what transformers imports. What timm and torchvision require is a second PyTorch.
networks="mindcv timm torchvision transformers huggingface-hub regex tokenizers"
packages() { ls "$venv"/lib/python*/site-packages | cksum; }

if [ "$what" = remove ]; then
    [ ! -d "$venv" ] || [ -e "$made" ] || refuse "$venv was not made by make, and stays."
    rm -rf -- "$venv" && exit
fi
exec 9<pyproject.toml # pip holds this lock too, should it outlive the script
! command -v flock >/dev/null || flock -n 9 || { echo "Another make is installing; waiting for it." && flock 9; }
key=$( (pwd && cat pyproject.toml constraints.txt) | cksum)
if fits && grep -qsx "$what $key" "$stamp"; then exit; fi
if ! fits; then
    [ ! -e "$venv" ] || [ -e "$made" ] || [ -z "$(ls -A "$venv")" ] ||
        refuse "$venv cannot be used and was not made by make: move it away, or name another: VENV="
    if [ -n "${PYTHON:-}" ]; then set -- "$PYTHON"; else set -- python3 python3.12 python3.11; fi
    looked=
    until [ $# -eq 0 ] || runs_labs "$1"; do looked="$looked $1 ($("$1" -V 2>&1 | tail -n 1))" && shift; done
    [ $# -gt 0 ] || refuse "labkit needs Python 3.11 or 3.12 with venv (Debian: apt install python3-venv); looked at:\
$looked. Name another: make run PYTHON=/path/to/python3.12"
    mkdir -p "$venv" && place >"$made" && : >"$installing"
    (cd -- "$venv" && rm -rf bin include lib lib64 share etc pyvenv.cfg .installed*)
    "$1" -m venv "$(place)"
fi
"$venv/bin/python" -m pip --version >/dev/null 2>&1 || "$venv/bin/python" -m ensurepip >/dev/null 2>&1 ||
    refuse "$venv has no pip, and its Python cannot add it. With uv: uv pip install --python '$venv' -c constraints.txt \
-e '.[labs]'; then call its bin/labkit."
echo "Installing into $venv: 3.1 GB on disk, about a minute after the download; the tests take more."
: >"$installing" && before=$(packages)
case $what in base) extras=labs ;; docs) extras=labs,docs ;; *) extras=labs,docs,test ;; esac
# In two calls: the pip that builds in isolation would take the user's target from a pip.conf.
if ! pip_install "setuptools>=77" || ! pip_install --no-build-isolation -e ".[$extras]" ||
    { [ "$what" = all ] && ! pip_install --no-deps $networks; }; then
    [ "$(packages)" != "$before" ] || rm -f "$installing" # without a network nothing has changed
    refuse "The installation failed; the reason is above. The same command tries again."
fi
for word in base docs test all; do echo "$word $key" && [ "$word" != "$what" ] || break; done >"$stamp"
rm -f "$installing"
