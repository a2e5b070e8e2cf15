//! The real machines of every layer under seeded faults, with checkers apart from the code.
