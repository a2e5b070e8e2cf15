//! Unused entries, old tombstones and large entries, as directed traces through whole machines. Source: ddata §7, R5.

mod inactivity;
mod random;
mod sizes;
mod tombstones;
mod world;
