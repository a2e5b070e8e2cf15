//! Real purchases through a cluster that loses a node.

fn main() {}
