"""The cases of `benchmarks.same_bits`: small runs with fixed seeds, from every part of the library."""
