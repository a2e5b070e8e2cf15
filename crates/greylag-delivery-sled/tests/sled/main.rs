//! Queues on disk: the public kits, restarts, kills, damage and full disks.

mod conformance;
mod crash;
mod damage;
