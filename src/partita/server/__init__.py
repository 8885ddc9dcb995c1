"""The side of the wall that never sees data: ledger, schedules, rules, journal and the loop."""
