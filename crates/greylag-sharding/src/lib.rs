//! Entities found by name: coordinator, regions, shards, and the runtime of their entities.
