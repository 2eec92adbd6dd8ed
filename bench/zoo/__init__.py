"""Public networks that nothing here was tuned on: does each compile, into how many delegates, how exact, how accurate."""
