"""Another key for a site: made here, where its private half stays, and taken over when the server has taken it."""

import base64
import os
from dataclasses import replace
from pathlib import Path

from partita.errors import InputError
from partita.foundation.files import is_file, replace_file
from partita.foundation.keys import read_own_public_key, show_key, sign, write_site_key
from partita.site.settings import SiteSettings, read_site
from partita.wire.signing import Rotation

# What an operator is handed, in a site's folder.
FILE = "rotation.json"


def next_key(settings: SiteSettings) -> Path:
    """Where a site's next key lies until the server has taken it."""
    return settings.key.with_name(f"{settings.key.name}.next")


def rotate_key(folder: Path) -> Path:
    """Make a site's next key, and the file that its operator is handed; a next key that is there already is kept."""
    settings = read_site(folder)
    new = next_key(settings)
    if new.is_symlink() or (new.exists() and not is_file(new)):
        raise InputError(f"{new}: is in the way: delete it")
    if not new.exists():
        public = new.with_name(f"{new.name}.pub")
        public.unlink(missing_ok=True)
        write_site_key(new, public)
    told = Rotation(settings.name, *(show_key(read_own_public_key(key)) for key in (settings.key, new)))
    by_old, by_new = (base64.b64encode(sign(key, told.signed)).decode() for key in (settings.key, new))
    return replace_file(settings.path / FILE, replace(told, by_old=by_old, by_new=by_new).encode(), durable=True)


def adopt_key(settings: SiteSettings) -> None:
    """The next key is the key from now on; the one before is deleted."""
    new = next_key(settings)
    os.replace(new, settings.key)
    new.with_name(f"{new.name}.pub").unlink(missing_ok=True)
    (settings.path / FILE).unlink(missing_ok=True)
