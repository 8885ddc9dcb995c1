"""Robot arms: the Barrett WAM, in a file that is not downloaded, and a simulated one that needs none."""

import numpy as np

from partita.datasets.places import Data, Folder, Split, find_needed
from partita.errors import InputError

WAM = "barrett_wam.mat"
WAM_SOURCE = "the inverse dynamics data of Nguyen-Tuong, Seeger and Peters (2009)"


def read_wam(folder: Folder = None) -> Split:
    """12,000 and 3,000 rows of 21 inputs (angles, speeds and accelerations of seven joints), with seven torques."""
    from scipy.io import loadmat

    path = find_needed(WAM, folder, WAM_SOURCE)
    try:
        arrays = loadmat(path)
        parts = [np.asarray(arrays[name], float) for name in ("X_train", "Y_train", "X_test", "Y_test")]
    except Exception as error:  # SciPy has no one error for bytes that are not MATLAB's
        raise InputError(f"{path}: expected a MATLAB file with X_train, Y_train, X_test and Y_test ({error})") from None
    X, Y, X_test, Y_test = parts
    if X.shape[1:] != (21,) or Y.shape != (len(X), 7) or X_test.shape[1:] != (21,) or Y_test.shape != (len(X_test), 7):
        raise InputError(f"{path}: expected 21 inputs and 7 outputs, got {[part.shape for part in parts]}")
    return (X, Y), (X_test, Y_test)


def simulate_arm(rows: int = 3000, seed: int = 0) -> Data:
    """Angles, speeds and accelerations of a planar arm with two links on smooth paths, and the torques that they take.

    Rigid-body dynamics of two unit rods of unit mass under gravity, with friction; 2 % of noise. (See any textbook of
    robotics, such as Spong, Hutchinson and Vidyasagar, 2006, chapter 7.)
    """
    generator = np.random.default_rng(seed)
    time = np.linspace(0, 60, rows)[:, None]
    rates, phases = generator.uniform(0.2, 2.0, (2, 4)), generator.uniform(0, 2 * np.pi, (2, 4))
    waves = [rates[j] * time + phases[j] for j in range(2)]
    angle = np.stack([np.sin(w).sum(axis=1) for w in waves], axis=1) * 0.6
    speed = np.stack([(np.cos(w) * rates[j]).sum(axis=1) for j, w in enumerate(waves)], axis=1) * 0.6
    push = np.stack([-(np.sin(w) * rates[j] ** 2).sum(axis=1) for j, w in enumerate(waves)], axis=1) * 0.6
    c, s = np.cos(angle[:, 1]), np.sin(angle[:, 1])
    gravity = 9.81
    outer = gravity * 0.5 * np.cos(angle.sum(axis=1))
    torque = np.stack(
        [
            (5 / 3 + c) * push[:, 0] + (1 / 3 + 0.5 * c) * push[:, 1]
            - 0.5 * s * (2 * speed[:, 0] * speed[:, 1] + speed[:, 1] ** 2)
            + 1.5 * gravity * np.cos(angle[:, 0]) + outer,
            (1 / 3 + 0.5 * c) * push[:, 0] + push[:, 1] / 3 + 0.5 * s * speed[:, 0] ** 2 + outer,
        ],
        axis=1,
    )  # fmt: skip
    torque += 0.5 * speed
    torque += 0.02 * torque.std(axis=0) * generator.standard_normal(torque.shape)
    return np.concatenate([angle, speed, push], axis=1), torque
