"""Federations: a server and sites with keys, on one machine or many, over Flower.

`folders` says what lies where, `recipe` what everybody agrees on, `site` what a site answers, `server` what the server
does; `processes` keeps Flower's processes going, and `state` tells how things are.
"""
