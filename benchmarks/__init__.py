"""Every number that is quoted somewhere, measured beside its rival in one run."""
