//! Event sourcing: the journal contract with its fence, entities, recovery, snapshots.
