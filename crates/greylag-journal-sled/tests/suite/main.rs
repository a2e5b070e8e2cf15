//! The integration tests of this crate that can share a process. They are one program, because each program links the
//! whole workspace once more.

mod common;

mod conformance;
mod copy;
mod crash;
mod damage;
mod damaged_pages;
mod disk;
mod journal;
mod maintenance;
mod mutilation;
mod offsets;
mod power_loss;
mod salvage;
mod states;
