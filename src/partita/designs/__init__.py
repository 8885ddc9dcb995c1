"""How a formula reads tables, told in plain values: the side that asks and the side that has the data share it."""
