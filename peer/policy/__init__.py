"""What one peer decides alone, and may change alone. As pure as `protocol/`: `now` is an argument."""
