//! Three replicators, no cluster: concurrent edits while a link is cut, agreement when it heals.

fn main() {}
