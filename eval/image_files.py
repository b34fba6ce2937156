"""Image files that a user names, and those in the folders that a user names.

Does not import TensorFlow.
"""

import os
from collections.abc import Callable, Iterable, Iterator

from data_prep.sources.folders import EXTENSIONS

Report = Callable[[str], None]


def find(names: Iterable[str], report: Report) -> Iterator[str]:
    """Yields the paths of image files: those named, and those in the folders named.

    Folders are searched recursively, without links to other folders. What they contain
    comes in the order of the names, the files of a folder before its subfolders. Hidden
    files and folders, and files without the extension of an image, are left out of
    folders; a file that is named may have any name.

    Args:
        names: Paths of files and folders.
        report: A function that is called with one sentence for each path that is
            missing, each folder that can't be read, and each one without images.
    """
    for name in names:
        if os.path.isdir(name):
            num_found = 0
            for path in _in_folder(name, report):
                num_found += 1
                yield path
            if not num_found:
                extensions = " ".join(EXTENSIONS)
                report(f"{name} must contain images ({extensions}); found none.")
        elif os.path.lexists(name):
            yield name
        else:
            report(f"{name} must be an image or a folder; there is no such file.")


def _in_folder(root: str, report: Report) -> Iterator[str]:
    def unreadable(error: OSError) -> None:
        report(f"{error.filename} can't be read: {error.strerror}.")

    for folder, subfolders, files in os.walk(root, onerror=unreadable):
        subfolders[:] = sorted(name for name in subfolders if name[0] != ".")
        for name in sorted(files):
            if name[0] != "." and name.lower().endswith(EXTENSIONS):
                yield os.path.join(folder, name)
