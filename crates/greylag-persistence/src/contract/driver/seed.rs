//! Seeds of generators, where a driver starts a machine.

/// A random seed for [`EntityInit::seed`](crate::EntityInit::seed).
pub fn random_seed() -> [u8; 32] {
    rand::random()
}
