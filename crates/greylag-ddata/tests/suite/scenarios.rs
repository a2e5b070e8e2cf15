//! Numbered scenarios of the specification about several replicators, run as whole machines. Source: ddata §12.

mod deleted;
mod early;
mod extremes;
mod levels;
mod modes;
mod partitions;
mod world;
