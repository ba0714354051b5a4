#!/usr/bin/env bash
# webdataset 1.0.2, tar files of a folder that were made on macOS.
#
# The tar of macOS writes a member "._NAME" with the resource fork beside each NAME. webdataset leaves these members out if the
# samples lie at the top of the archive ("0.jpg", "./0.jpg"), so one expects that it always does. If they lie in a folder
# ("photos/0.jpg"), it does not: "photos/._0.jpg" becomes a sample with the key "photos/" and the ending "_0.jpg". Because such a
# member stands between those of each real sample, the real samples come in pieces, too: the picture in one and its label in the
# next. Nothing is raised or logged.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check webdataset==1.0.2
cat > "$folder/read.py" <<'PROGRAM'
import io
import pathlib
import sys
import tarfile

import webdataset

FOLDER = pathlib.Path(sys.argv[1])


def samples(prefix):
    """Write one picture with its label as macOS does, under names with this prefix, and read them."""
    path = FOLDER / "shard.tar"
    with tarfile.open(path, "w") as archive:
        for name, data in (("._0.jpg", b"fork"), ("0.jpg", b"picture"), ("._0.cls", b"fork"), ("0.cls", b"3")):
            member = tarfile.TarInfo(prefix + name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    found = webdataset.WebDataset(str(path), shardshuffle=False)
    return [{key: value for key, value in sample.items() if key not in ("__url__", "__local_path__")} for sample in found]


at_the_top, in_a_folder = samples(""), samples("photos/")
print("at the top: ", at_the_top)
print("in a folder:", in_a_folder)
assert at_the_top == [{"__key__": "0", "jpg": b"picture", "cls": b"3"}]
assert in_a_folder == [
    {"__key__": "photos/", "_0.jpg": b"fork"},
    {"__key__": "photos/0", "jpg": b"picture"},
    {"__key__": "photos/", "_0.cls": b"fork"},
    {"__key__": "photos/0", "cls": b"3"},
]
PROGRAM
"$folder/venv/bin/python" "$folder/read.py" "$folder"
# Seen on 2026-11-29:
# at the top:  [{'__key__': '0', 'jpg': b'picture', 'cls': b'3'}]
# in a folder: [{'__key__': 'photos/', '_0.jpg': b'fork'}, {'__key__': 'photos/0', 'jpg': b'picture'},
#               {'__key__': 'photos/', '_0.cls': b'fork'}, {'__key__': 'photos/0', 'cls': b'3'}]
