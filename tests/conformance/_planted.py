"""Folders of the files that were recorded."""

import base64


def plant(folder, tree, files):
    """Make a folder ``data`` beside a folder ``other``, and return its path.

    ``tree`` has for each path the key of a file, {"link": target} for a symbolic link, or None for an empty folder.
    """
    (folder / "other").mkdir()
    (folder / "other" / "o.png").write_bytes(base64.b64decode(files["grey"]))
    base = folder / "data"
    base.mkdir()
    for path, what in tree.items():
        place = base / path
        (place if what is None else place.parent).mkdir(parents=True, exist_ok=True)
        if isinstance(what, dict):
            place.symlink_to(what["link"])
        elif what is not None:
            place.write_bytes(base64.b64decode(files[what]))
    return base
