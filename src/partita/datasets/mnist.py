"""MNIST as the file mnist.npz: where it is looked for, its download, and its check."""

import hashlib
import urllib.request
from http.client import HTTPException
from pathlib import Path

import numpy as np

from partita.datasets.npz import read_arrays
from partita.datasets.places import Data, Folder, Split, cache_folder, find_file
from partita.errors import InputError
from partita.foundation.files import replace_file

FILE = "mnist.npz"
SOURCE = "https://storage.googleapis.com/tensorflow/tf-keras-datasets/mnist.npz"
SHA256 = "731c5ac602752760c8e48fbffcf8c3b850d9dc2a2aedcf2cc48468fc17b673d1"
LARGEST = 16 * 2**20
LARGEST_UNPACKED = 64 * 2**20
SECONDS = 30.0
ARRAYS = ("x_train", "y_train", "x_test", "y_test")


def read_mnist(folder: Folder = None) -> Split:
    """Training and test part as (pixels, labels): 784 numbers from 0 to 1 a row, and whole numbers from 0 to 9."""
    path = _find(folder)
    arrays = read_arrays(path, ARRAYS, LARGEST_UNPACKED, f"; get it from {SOURCE}")
    return _part(path, arrays, "train"), _part(path, arrays, "test")


def _find(folder: Folder) -> Path:
    path = find_file(FILE, folder)
    if path is None:
        path = cache_folder() / FILE
        _download(path)
    return path


def _download(target: Path) -> None:
    advice = f"get {SOURCE}, put it into {target.parent} or another folder, and set PARTITA_DATA to that folder"
    try:
        with urllib.request.urlopen(SOURCE, timeout=SECONDS) as response:
            content = response.read(LARGEST + 1)
    except (OSError, HTTPException) as error:
        raise InputError(f"{FILE} is not here and its download failed ({error}): {advice}") from None
    if hashlib.sha256(content).hexdigest() != SHA256:
        raise InputError(f"{FILE}: the download is not the published file, its SHA-256 differs: try again, or {advice}")
    try:
        replace_file(target, content)
    except OSError as error:
        raise InputError(f"{target}: cannot be written ({error.strerror}): {advice}") from None


def _part(path: Path, arrays: dict[str, np.ndarray], part: str) -> Data:
    images, labels = arrays[f"x_{part}"], arrays[f"y_{part}"]
    if images.dtype != np.uint8 or images.ndim != 3 or images.shape[1:] != (28, 28) or len(images) == 0:
        raise InputError(f"{path}: x_{part}: expected uint8 of shape (rows, 28, 28), got {_kind(images)}")
    if labels.dtype.kind not in "iu" or labels.shape != images.shape[:1]:
        raise InputError(f"{path}: y_{part}: expected whole numbers of shape ({len(images)},), got {_kind(labels)}")
    if labels.min() < 0 or labels.max() > 9:
        raise InputError(f"{path}: y_{part}: expected labels from 0 to 9, got {labels.min()} to {labels.max()}")
    pixels = np.divide(images.reshape(len(images), -1), 255, dtype=np.float32)
    return pixels, labels.astype(np.int64)


def _kind(array: np.ndarray) -> str:
    return f"{array.dtype} of shape {array.shape}"
