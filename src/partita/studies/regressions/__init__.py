"""Regressions beside NUTS, quadrature, statsmodels and bambi, on public data."""
