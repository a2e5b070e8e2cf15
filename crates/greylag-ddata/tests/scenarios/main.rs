//! Numbered scenarios of the specification about several replicators, run at the level of whole
//! machines. Source: ddata §12.

mod deleted;
mod early;
mod extremes;
mod levels;
mod modes;
mod partitions;
mod world;
