"""What an operator does about who is a member: a site is invited, its key replaced, or revoked for good."""

import base64
import binascii
import os
import shutil
from pathlib import Path

from partita.errors import ConfigError, InputError, StorageError
from partita.federation.folders import ServerFolder, read_server
from partita.federation.register import Register
from partita.federation.state import read_state, request
from partita.foundation.files import MOST_SETTINGS, read_file, replace_file
from partita.foundation.keys import (
    canonical_key,
    fingerprint,
    is_signed_by,
    read_key,
    read_public_key,
    show_key,
    write_site_key,
)
from partita.foundation.locks import private_folder
from partita.site.settings import SITE, site_file_text
from partita.wire.naming import check_site_names
from partita.wire.program_recipe import ProgramRecipe
from partita.wire.signing import Rotation


def invite(path: Path, site: str) -> str:
    """Let a site in that the federation's file does not list: its folder, made as those of the others; what was done.

    It becomes part of the run as soon as it says that it can work.
    """
    folder = read_server(path)
    if site in folder.members.names:
        raise InputError(f"site {site!r}: there is one of that name already, and names are given once")
    check_site_names([site])
    made, public = folder.path / "for-sites" / site, folder.public_key(site)
    for one in (made, public):
        if os.path.lexists(one):
            raise InputError(f"{one}: is in the way: an earlier attempt may have been cut off; delete it")
    with private_folder(made):
        write_site_key(made / "site.key", public)
        replace_file(made / "ca.crt", read_key(folder.keys / "ca.crt"))
        text = site_file_text(site, folder.server.address, folder.recipe.reads, None)
        replace_file(made / SITE, text.encode())
        program = folder.recipe.wanted.file if isinstance(folder.recipe, ProgramRecipe) else None
        if program is not None:
            shutil.copyfile(folder.path / program, made / program)
    # From here on its key opens the door.
    Register(folder.public_keys).add("invited", site, key=show_key(read_public_key(public)))
    return f"{made}: carry it there, and delete it here; the site joins as soon as it is connected and can work"


def rotate(path: Path, site: str, file: Path) -> str:
    """Take a site's next key from the file that `partita site rotate` has made there; what was done, in words."""
    folder = read_server(path)
    current = _current_key(folder, site)
    told = _read_rotation(file)
    old, new = (_read_key(file, key) for key in (told.old, told.new))
    if told.site != site:
        raise InputError(f"{file}: is of site {told.site!r}, not of {site!r}")
    if old != current:
        raise InputError(
            f"{file}: is signed with {fingerprint(old)}, and the key of {site} is {fingerprint(current)}: "
            "make it anew at the site, or compare with whoever runs that by telephone"
        )
    for key, signature in ((old, told.by_old), (new, told.by_new)):
        if not is_signed_by(key, told.signed, _decode(signature)):
            raise InputError(f"{file}: is not signed with {fingerprint(key)}: have it sent again, as it was made")
    if new in _known_keys(folder):
        raise InputError(f"{file}: {fingerprint(new)} is or was a key of this federation: a new one has to be new")
    shown = {"key": show_key(old), "new": show_key(new)}
    Register(folder.public_keys).add("rotated", site, **shown, by_old=told.by_old, by_new=told.by_new)
    replace_file(folder.public_key(site), f"{show_key(new)}\n".encode(), durable=True)
    return f"{site}: its key is {fingerprint(new)} from now on; {fingerprint(old)} opens nothing any more"


def revoke(path: Path, site: str, forget: bool) -> str:
    """Close the door for a site's key, for good; its factor stays, or is divided out. What was done, in words."""
    folder = read_server(path)
    key = _current_key(folder, site)
    Register(folder.public_keys).add("revoked", site, key=show_key(key))
    request(folder, site, "retired" if forget else "quarantined")
    when = "now" if read_state(folder)["serving"] else f"with: partita resume {path}"
    factor = f"will be divided out {when}" if forget else "stays in the posterior"
    return f"{site}: {fingerprint(key)} is revoked and opens nothing any more; what is known of its data {factor}"


def _current_key(folder: ServerFolder, site: str) -> bytes:
    """The key that a site has now."""
    names = folder.members.names
    if site not in names:
        raise InputError(f"site {site!r}: there are {', '.join(names)}")
    if site not in folder.members.current():
        raise InputError(
            f"{site}: its key was revoked, or cannot be read: what it signs counts for nothing. To let the site in "
            f"again, have it make a new key, and put the public half into {folder.public_key(site)} by hand"
        )
    return folder.members.current()[site]


def _known_keys(folder: ServerFolder) -> set[bytes]:
    """All keys that any site ever had here."""
    members = folder.members
    return {key for site in members.names for key in members.known_keys(site)}


def _read_rotation(file: Path) -> Rotation:
    try:
        return Rotation.parse(read_file(file, MOST_SETTINGS))
    except OSError as error:
        raise StorageError(f"{file}: {error.strerror or error}") from None
    except ValueError as error:
        raise ConfigError(f"{file}: is nothing that `partita site rotate` has made: {error}") from None


def _read_key(file: Path, key: str) -> bytes:
    from cryptography.exceptions import UnsupportedAlgorithm

    try:
        return canonical_key(key.encode())
    except (ValueError, TypeError, UnsupportedAlgorithm):
        raise ConfigError(f"{file}: has a public key that is none") from None


def _decode(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return b""
