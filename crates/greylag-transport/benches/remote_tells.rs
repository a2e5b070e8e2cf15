//! Filled in next.

fn main() {}
