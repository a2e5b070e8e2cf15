//! The counter of the cluster-sharding literature, event sourced.

fn main() {}
