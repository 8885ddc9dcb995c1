"""Federations: a server and sites with keys, on one machine or many, over Flower.

`folders` says what lies where, and `new` makes it; `server` is the run, `processes` keeps Flower's processes going,
`serving` is `partita serve`, and `state`, `status` and `metrics` tell how things are. What a site does is in
`partita.site`, and what both agree on in `partita.wire.recipe`.
"""
