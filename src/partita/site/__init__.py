"""The side of the wall that may touch data: what a site reads, computes, answers and refuses."""
