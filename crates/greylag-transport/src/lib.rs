//! Associations between nodes: lanes, handshake, ordering, quarantine; gRPC streams behind a feature.
