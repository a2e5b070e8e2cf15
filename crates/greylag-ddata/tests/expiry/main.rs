//! Entries that are not used, tombstones that are old, and entries that are large, as directed traces
//! through whole machines. Source: ddata §7, R5.

mod inactivity;
mod random;
mod sizes;
mod tombstones;
mod world;
