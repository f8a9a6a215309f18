"""The scenarios, by subject. Each function with `@scenario` is one; each has a recording of its name."""
