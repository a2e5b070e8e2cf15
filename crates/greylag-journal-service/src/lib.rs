//! One journal served over gRPC by one process to the others of a machine.
