"""Servers that are killed, sites that come and go, messages that are lost: what has to come out nevertheless."""
